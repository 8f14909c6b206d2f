"""Failures that a list expects, or a person has marked, open no regression and send no message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.judging.regressions.known_failures import forget, mark
from hud.models import Audit, Delivery, Experiment, Follow, KnownFailure, Notice, Regression, Stream
from hud.notifications.messages import queue_messages
from hud.problems import Problem
from hud.states.regressions import ACTIVE
from runner.formats.parameters import Parameters
from tests.support.factories import create_measurement, create_regression
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
FIRST = datetime.now(UTC) - timedelta(days=59)  # the last night is today, so that messages about it are news
LIST = b"name,accuracy,graph_breaks\ndlrm,fail_to_run,0\nresnet18,pass,0\n"
FILE = "ci_expected_accuracy/inductor_torchbench_inference.csv"
SAID = {"device": "cuda", "dtype": "bfloat16"}


def record(case: str, metric: str, value: float | None) -> dict[str, Any]:
    made = v3_record(metric, [] if value is None else [value], case=case)
    made["benchmark"]["name"] = "TorchInductor"
    made["benchmark"]["extra_info"] = {"device": "cuda", "arch": "NVIDIA H200"}
    made["benchmark"] |= {"mode": "inference", "dtype": "bfloat16"}
    made["model"] |= {"backend": "inductor_cudagraphs", "origins": ["torchbench"]}
    if metric == "accuracy":
        made["metric"]["benchmark_values"] = ["pass" if value else "fail_to_run"]
        made["metric"]["extra_info"] = {"benchmark_values": made["metric"].pop("benchmark_values")}
    elif value is None:
        made["metric"]["extra_info"] = {"status": "failed"}
    return made


def night(day: int, *, dlrm: float | None) -> None:
    records = [record("resnet18", "speedup", 1.5), record("resnet18", "accuracy", 1)]
    records += [record("dlrm", "speedup", dlrm), record("dlrm", "accuracy", dlrm)]
    for one in records:
        one["timestamp"] = (FIRST + timedelta(days=day)).timestamp()
    ingest(as_list(*records), Parameters(driver="580.1", stream="nightly"))
    judge()


def judge() -> None:
    while process_pending():
        pass


def active() -> list[str]:
    found = Regression.objects.filter(state__in=ACTIVE)
    return sorted(found.values_list("series__metric__name", flat=True))


def dlrm() -> Experiment:
    return Experiment.objects.get(case="dlrm")


def nightly() -> Stream:
    return Stream.objects.get(name="nightly")


def test_a_mark_in_a_stream_without_results_of_the_experiment_is_refused() -> None:
    night(1, dlrm=None)
    other = Stream.objects.get(name="samples")
    with pytest.raises(Problem) as refused:
        mark(stream=other, experiment=dlrm(), reason="slow", who="t")
    assert refused.value.status == 422
    assert [fault.pointer for fault in refused.value.errors] == ["/stream"]
    assert not KnownFailure.objects.exists()
    assert mark(stream=nightly(), experiment=dlrm(), reason="slow", who="t").stream == nightly()


def test_a_model_that_begins_to_fail_is_news_without_a_mark() -> None:
    for day in range(58):
        night(day, dlrm=1.2)
    night(58, dlrm=None)
    night(59, dlrm=None)
    assert "speedup" in active()
    assert Notice.objects.exists()


@pytest.mark.parametrize("how", ["marked", "listed"])
def test_what_fails_for_a_month_is_no_news_once_it_is_known(how: str) -> None:
    Follow.objects.create(url="https://example.org/", events=["open", "resolved", "confirmed"])
    for day in range(30):
        night(day, dlrm=1.2)
    if how == "listed":
        given = {**SAID, "commit_date": (FIRST + timedelta(days=29)).isoformat(), "stream": "nightly"}
        ingest(LIST, Parameters.parse({**given, "filename": FILE}))
    else:
        mark(stream=nightly(), experiment=dlrm(), reason="the index is out of range", who="olga")
    for day in range(30, 60):
        night(day, dlrm=None)
    assert active() == []
    assert not Notice.objects.exists()
    assert queue_messages() == 0
    assert not Delivery.objects.exists()


def test_a_failure_that_is_open_ends_in_silence_when_it_is_marked_and_comes_back_when_forgotten() -> None:
    for day in range(54):
        night(day, dlrm=1.2)
    night(54, dlrm=None)
    night(55, dlrm=None)
    assert "speedup" in active()
    failure = mark(stream=nightly(), experiment=dlrm(), reason="known since spring", who="olga")
    assert active() == []
    assert not Notice.objects.exists(), "also what nobody was told yet"
    night(56, dlrm=None)
    night(57, dlrm=None)
    assert active() == []
    forget(failure, who="olga")
    assert not KnownFailure.objects.exists()
    night(58, dlrm=None)
    night(59, dlrm=None)
    assert "speedup" in active()
    actions = (
        Audit.objects.filter(action__startswith="known_failure").order_by("pk").values_list("action", "who")
    )
    assert sorted(actions) == [("known_failure.forget", "olga"), ("known_failure.mark", "olga")]


def test_a_failure_that_a_later_list_expects_ends_with_the_next_night() -> None:
    for day in range(56):
        night(day, dlrm=1.2)
    night(56, dlrm=None)
    night(57, dlrm=None)
    assert "speedup" in active()
    given = {**SAID, "commit_date": (FIRST + timedelta(days=58)).isoformat(), "stream": "nightly"}
    ingest(LIST, Parameters.parse({**given, "filename": FILE}))
    night(58, dlrm=None)
    night(59, dlrm=None)
    assert active() == []


def test_a_mark_of_another_stream_changes_nothing() -> None:
    for day in range(58):
        night(day, dlrm=1.2)
    ingest(as_list(record("dlrm", "speedup", None)), Parameters(stream="laptop"))
    mark(stream=Stream.objects.get(name="laptop"), experiment=dlrm(), reason="no GPU", who="olga")
    night(58, dlrm=None)
    night(59, dlrm=None)
    assert "speedup" in active()


def test_a_step_of_a_known_failure_is_still_followed() -> None:
    measurement = create_measurement(metric="speedup", value=1.0)
    regression = create_regression(measurement, kind="step")
    series = measurement.series
    mark(stream=series.stream, experiment=series.experiment, reason="it crashes", who="olga")
    regression.refresh_from_db()
    assert regression.state == "open"


@pytest.mark.parametrize("reason", ["", " \n", "x" * 1001, "a\u202eb"])
def test_a_reason_can_be_read(reason: str) -> None:
    measurement = create_measurement()
    with pytest.raises(Problem):
        mark(stream=measurement.run.stream, experiment=measurement.series.experiment, reason=reason, who="o")
