"""Suspects are repeated and regressions compared in pairs on the host that measured them, within a budget."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.judging.regressions.confirm import confirm
from hud.models import Accelerator, Environment, Experiment, Host, Regression, Run, Series, State, Stream
from hud.runs.matching import ResourceRequest
from hud.runs.requests import RunOptions, request_rerun
from runner.schema.variables import env_number
from tests.support.factories import (
    create_accelerator,
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_metric,
    create_run,
    create_upload,
)

pytestmark = pytest.mark.django_db
OLD, NEW = ("2.10.0", "aaa"), ("2.11.0", "bbb")


@pytest.fixture
def host() -> Host:
    pythons = {
        "stable": {"torch": OLD[0], "torch_git": OLD[1]},
        "default": {"torch": NEW[0], "torch_git": NEW[1]},
    }
    host = create_host("h200-a", facts={"pythons": pythons})
    create_accelerator(host, pythons=["default", "stable"], labels={"accelerator": "cuda:0"})
    return host


@pytest.fixture
def experiment() -> Experiment:
    return create_experiment(suite="micro", case="layer_norm", knobs={"D": 4096}, backend="inductor")


def regression(
    experiment: Experiment,
    state: str = "suspect",
    torches: Any = (OLD, NEW),
    stream: Stream | None = None,
    **over: Any,
) -> Regression:
    """A regression whose two runs used these versions of torch on h200-a."""
    metric = create_metric()
    where: dict[str, Any] = {"stream": stream} if stream else {}
    good, bad = (create_run(host_name="h200-a", **where) for _ in range(2))
    for run, (torch, git), value in zip((good, bad), torches, (2500, 2000), strict=True):
        environment = create_environment(torch=torch, torch_git=git)
        create_measurement(experiment, metric=metric.name, value=value, run=run, environment=environment)
    return Regression.objects.create(
        series=Series.objects.get(experiment=experiment, metric=metric, stream=bad.stream),
        class_key=create_environment().class_key,
        state=state,
        first_run=bad,
        last_good_run=good,
        since=bad.order_time,
        opened=timezone.now() - timedelta(hours=1),
        before=2500,
        after=2000,
        change=-0.2,
        **over,
    )


def test_a_suspect_is_repeated_where_it_was_measured(host: Host, experiment: Experiment) -> None:
    one = regression(experiment)
    assert confirm() == 1
    one.refresh_from_db()
    assert one.repeat_run
    request = one.repeat_run.request
    assert (request.host, request.run_class, request.requested_by) == (host, "night", "judge")
    assert not one.repeat_run.base_interpreter
    assert (one.repeat_run.rerun, one.repeat_run.stream) == (True, one.series.stream)
    assert confirm() == 0


def test_each_stream_has_its_own_repeat(host: Host, experiment: Experiment) -> None:
    regression(experiment)
    other = regression(experiment, stream=Stream.objects.create(name="laptop"))
    assert confirm() == 2
    streams = Run.objects.filter(request__requested_by="judge").values_list("stream__name", flat=True)
    assert sorted(streams) == ["import", "laptop"]
    other.refresh_from_db()
    assert other.repeat_run
    assert other.repeat_run.stream.name == "laptop"


def test_a_host_that_is_not_there_repeats_nothing(experiment: Experiment) -> None:
    regression(experiment)
    assert confirm() == 0


def test_the_budget_and_the_switch_hold(host: Host, experiment: Experiment, settings: Any) -> None:
    one = regression(experiment)
    settings.HUD_CONFIRM_MINUTES = 0
    assert confirm() == 0
    settings.HUD_CONFIRM_MINUTES = 30
    assert confirm() == 1
    start = timezone.now() - timedelta(minutes=40)
    Run.objects.filter(request__requested_by="judge").update(
        state=State.SUCCEEDED, started=start, finished=timezone.now()
    )
    Regression.objects.filter(pk=one.pk).update(repeat_run=None)
    assert confirm() == 0


@pytest.mark.parametrize(("head", "state"), [(2000.0, "confirmed"), (2501.0, "dismissed")])
def test_pairs_of_both_torches_decide(host: Host, experiment: Experiment, head: float, state: str) -> None:
    one = regression(experiment, "open")
    assert confirm() == 1
    one.refresh_from_db()
    run = one.pairs_run
    assert run
    assert (run.base_interpreter, run.interpreter) == ("stable", "default")
    measure_pairs(run, experiment, (OLD, NEW), (2500.0, head))
    confirm()
    one.refresh_from_db()
    assert (one.state, one.verdict) == (state, "regressed")


def test_pairs_that_scatter_make_it_inconclusive(host: Host, experiment: Experiment, client: Client) -> None:
    one = regression(experiment, "open")
    confirm()
    one.refresh_from_db()
    assert one.pairs_run
    measure_pairs(one.pairs_run, experiment, (OLD, NEW), (2500.0, 2450.0), spread=100.0)
    confirm()
    one.refresh_from_db()
    assert (one.state, one.verdict) == ("open", "inconclusive")
    assert one.events.last().event == "cannot tell"  # type: ignore[union-attr]
    page = client.get("/regressions/", {"open": one.pk})
    (answer,) = page.context["page"].detail.pairs
    assert answer.word == "inconclusive"
    assert f"run {one.pairs_run.pk}</a>, candidate against baseline" in page.text


@pytest.mark.parametrize(("base", "state"), [("default", "confirmed"), ("planted", "open")])
def test_pairs_of_one_torch_with_other_variables(
    host: Host, experiment: Experiment, base: str, state: str
) -> None:
    """One torch under two names: the variables of the environment differ."""
    host.facts["pythons"]["planted"] = {"torch": NEW[0], "torch_git": NEW[1]}
    host.save()
    Accelerator.objects.update(catalog={"suites": ["micro"], "pythons": ["default", "planted"]})
    one = regression(experiment, "open", (NEW, NEW))
    assert one.first_run
    Run.objects.filter(pk=one.first_run.pk).update(interpreter="planted")
    confirm()
    one.refresh_from_db()
    assert one.pairs_run
    assert (one.pairs_run.base_interpreter, one.pairs_run.interpreter) == ("default", "planted")
    Run.objects.filter(pk=one.pairs_run.pk).update(base_interpreter=base)
    measure_pairs(one.pairs_run, experiment, (NEW, NEW), (2500.0, 2000.0))
    confirm()
    one.refresh_from_db()
    assert one.state == state


@pytest.mark.parametrize(
    ("place", "base", "head", "state"),
    [
        ("h200-a", "night", 2000.0, "confirmed"),
        ("h200-a", "night", 2501.0, "dismissed"),
        ("h200-a", "other", 2501.0, "open"),
        ("h200-b", "night", 2501.0, "open"),
    ],
)
def test_uploaded_pairs_decide_on_what_their_host_uploaded(
    experiment: Experiment, place: str, base: str, head: float, state: str
) -> None:
    one, upload = regression(experiment, "open", (NEW, NEW)), create_upload()
    for run, name in ((one.last_good_run, "night"), (one.first_run, "planted")):
        assert run
        Run.objects.filter(pk=run.pk).update(upload=upload, interpreter=name)
    sides = {"base_interpreter": base, "interpreter": "planted"}
    pairs = create_run(upload=upload, host_name=place, order_time=timezone.now(), **sides)
    measure_pairs(pairs, experiment, (NEW, NEW), (2500.0, head))
    confirm()
    one.refresh_from_db()
    assert one.state == state


def test_pairs_of_a_suite_decide_on_each_experiment(host: Host, experiment: Experiment) -> None:
    """Nobody asked for this experiment alone."""
    one = regression(experiment, "open")
    run = create_run(base_interpreter="stable", interpreter="default", requested_by="mara")
    measure_pairs(run, experiment, (OLD, NEW), (2500.0, 2000.0))
    confirm()
    one.refresh_from_db()
    assert one.state == "confirmed"


def test_pairs_of_the_same_torch_say_nothing_of_the_regression(host: Host, experiment: Experiment) -> None:
    one = regression(experiment, "open")
    confirm()
    one.refresh_from_db()
    assert one.pairs_run
    measure_pairs(one.pairs_run, experiment, (NEW, NEW), (2500.0, 2501.0))
    confirm()
    one.refresh_from_db()
    assert one.state == "open"


def test_pairs_of_one_interpreter_with_itself_decide_nothing(host: Host, experiment: Experiment) -> None:
    """Somebody asks how quiet the host is; torch was the same on both sides of the regression too."""
    one = regression(experiment, "open", (NEW, NEW))
    run = request_rerun(
        experiment, RunOptions(ResourceRequest("cuda", host, base_interpreter="default"), "olga")
    )
    measure_pairs(run, experiment, (NEW, NEW), (2500.0, 2501.0))
    confirm()
    one.refresh_from_db()
    assert one.state == "open"


def measure_pairs(
    run: Run, experiment: Experiment, torches: Any, values: tuple[float, float], spread: float = 1.0
) -> None:
    for side, ((torch, git), value) in enumerate(zip(torches, values, strict=True)):
        environment = create_environment(torch=torch, torch_git=git)
        for pair in range(7):
            create_measurement(
                experiment,
                metric="device_bandwidth_gbps",
                value=value + spread * ((pair + side * (spread > 1)) % 3),
                run=run,
                environment=environment,
                repeat=pair,
                side=side,
            )
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, finished=timezone.now())


def test_an_accelerator_is_found_by_its_card(host: Host, experiment: Experiment) -> None:
    regression(experiment)
    for environment in Environment.objects.all():
        environment.facts["gpu_uuid"] = "GPU-other"
        environment.save()
    assert confirm() == 0
    Accelerator.objects.update(uuid="GPU-other")
    assert confirm() == 1


def test_what_a_person_compared_first_does_not_hide_the_pairs_of_the_judge(
    host: Host, experiment: Experiment
) -> None:
    one = regression(experiment, "open")
    confirm()
    one.refresh_from_db()
    assert one.pairs_run
    own = create_run(
        base_interpreter="stable", interpreter="default", experiment=experiment, requested_by="mara"
    )
    measure_pairs(own, experiment, (NEW, NEW), (2500.0, 2501.0))  # of the same torch: says nothing
    confirm()
    measure_pairs(one.pairs_run, experiment, (OLD, NEW), (2500.0, 2000.0))
    confirm()
    one.refresh_from_db()
    assert one.state == "confirmed"


def test_a_run_that_no_host_takes_expires_and_is_requested_again_once_one_does(
    host: Host, experiment: Experiment
) -> None:
    one = regression(experiment)
    assert confirm() == 1
    host.drained = True
    host.save()
    asked = Run.objects.filter(request__requested_by="judge")
    asked.update(created=timezone.now() - timedelta(hours=23))
    assert confirm() == 0
    assert asked.get().state == State.QUEUED
    asked.update(created=timezone.now() - timedelta(hours=25))
    assert confirm() == 0
    assert asked.get().state == State.CANCELLED
    one.refresh_from_db()
    assert (one.state, one.repeat_run) == ("suspect", None)
    assert one.events.get().event == "expired"
    host.drained = False
    host.save()
    assert confirm() == 1


def test_the_budget_is_the_number_that_may_be_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUD_CONFIRM_MINUTES", "0")
    assert env_number("HUD_CONFIRM_MINUTES", 60, or_zero=True) == 0
    with pytest.raises(ValueError, match="above 0"):
        env_number("HUD_CONFIRM_MINUTES", 60)


def test_a_run_that_goes_on_takes_its_real_minutes(host: Host, experiment: Experiment, settings: Any) -> None:
    regression(experiment)
    settings.HUD_CONFIRM_MINUTES = 60
    assert confirm() == 1
    other = create_experiment(suite="micro", case="gemv", knobs={"D": 4096}, backend="inductor")
    regression(other)
    own = Run.objects.filter(request__requested_by="judge")
    own.update(state=State.RUNNING, started=timezone.now() - timedelta(minutes=61))
    assert confirm() == 0
    own.update(started=timezone.now() - timedelta(minutes=30))
    assert confirm() == 1
