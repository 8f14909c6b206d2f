"""Check the answer of a comparison at equal choices, on pages and in the API."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.judging.compare import ab_runs
from hud.models import Experiment, Run, RunRequest
from hud.pages.run import query
from hud.pages.run.results import ResultFilters
from runner.schema.draws import pinned_repeat
from runner.schema.records import QUALITIES
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_run,
    create_verdict,
)


def ab_run(**request: Any) -> Run:
    """A comparison of an environment with itself under another option, that ended."""
    run = create_run(base_interpreter="default", interpreter="default", state="succeeded")
    options = {"caches": "pinned", "candidate_options": {"epilogue_fusion": False}, **request}
    RunRequest.objects.update_or_create(run=run, defaults=options)
    return Run.objects.get(pk=run.pk)


def experiment_of_pairs() -> Experiment:
    return Experiment.objects.first() or create_experiment(suite="micro", case="layer_norm")


def measure_draws(run: Run, metric: str, value: float, rounds: int = 3, **fields: Any) -> None:
    """Store a metric of both sides: free processes, and both pinned to the draws of each round."""
    for number, side in itertools.product(range(rounds), (0, 1)):
        free: dict[str, Any] = {"run": run, "side": side, "metric": metric, "value": value, **fields}
        create_measurement(experiment_of_pairs(), repeat=number, **free)
        for draw in (2 * number, 2 * number + 1):
            create_measurement(
                experiment_of_pairs(), repeat=pinned_repeat(draw, 0, repeated=False), draw=draw, **free
            )


def headline_of(client: Client, run: Run) -> str:
    """The text of the page's cards before its tables."""
    text = client.get(f"/runs/{run.pk}/").content.decode()
    cards = re.findall(r'class="pairs-result">(.*?)class="pairs-picture', text, re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", " ".join(cards)).split())


@pytest.mark.django_db
def test_where_no_time_decides_no_count_stands_for_the_result(client: Client) -> None:
    run = ab_run(selection={"suite": "micro", "draws": 3})
    measure_draws(run, "kernel_count", 1.0)
    measure_draws(run, "eager_latency_ms", 3.0)
    measure_draws(run, "compiled_latency_ms", 2.0, quality="busy_cpu")
    lines = {line["metric"]: line for line in client.get(f"/runs/{run.pk}.json").json()["pairs"]}
    assert lines["kernel_count"]["verdict"] == "dismissed"
    time = lines["compiled_latency_ms"]
    assert (time["verdict"], time["base"], time["change"], time["draws"]) == ("inconclusive", 2.0, None, 0)
    headline = headline_of(client, run)
    assert "inconclusive" in headline
    assert QUALITIES["busy_cpu"] in headline
    assert "dismissed" not in headline


@pytest.mark.django_db
def test_the_surest_time_that_decides_is_the_headline(client: Client) -> None:
    run = ab_run(selection={"suite": "micro", "draws": 3})
    page = query.read(run.pk, ResultFilters(), 10)
    assert page.headline_pairs == []
    expected = []
    for metric in ("kernel_count", "cold_compile_s", "compiled_latency_ms", "device_latency_ms"):
        measure_draws(run, metric, 2.0)
        page = query.read(run.pk, ResultFilters(), 10)
        expected.append([line.metric.name for line in page.headline_pairs])
    assert expected == [[], ["cold_compile_s"], ["compiled_latency_ms"], ["device_latency_ms"]]


@pytest.mark.django_db
@pytest.mark.parametrize(("unequal_us", "is_named"), [(5.0, False), (20.0, True)])
def test_the_share_at_equal_choices_is_named_where_it_is_below_90_percent(
    client: Client, unequal_us: float, is_named: bool
) -> None:
    run = ab_run(selection={"suite": "micro", "draws": 3})
    measure_draws(run, "device_latency_ms", 2.0)
    environment = create_environment()
    for side, draw in itertools.product((0, 1), (None, 0)):
        config = "XBLOCK=512" if side and draw is not None else "XBLOCK=64"
        kernels = kernel("mul", 100 - unequal_us), kernel("add", unequal_us, config=config)
        repeat = 0 if draw is None else pinned_repeat(draw, 0, repeated=False)
        about: dict[str, Any] = {"run": run, "environment": environment, "side": side, "repeat": repeat}
        store(compiled(*kernels), experiment=experiment_of_pairs(), draw=draw, **about)
    assert ("At equal choices for 80 % of the time" in headline_of(client, run)) == is_named
    answer = client.get(f"/api/v1/runs/{run.pk}/result").json()
    (verdict,) = answer.pop("verdicts")
    assert answer == {"state": "succeeded", "verdict": "unchanged", "pairs": 6}
    assert verdict == {
        "experiment": experiment_of_pairs().pk,
        "metric": "device_latency_ms",
        "code": "inconclusive",
        "choice": "inconclusive",
        "one_sided": [],
        "equal_choice_percent": 100 - unequal_us,
    }


@pytest.mark.django_db
def test_the_result_of_a_run_is_its_worst_verdict(client: Client) -> None:
    run = create_run("succeeded")
    address = f"/api/v1/runs/{run.pk}/result"
    assert client.get(address).json() == {"state": "succeeded", "verdict": None, "pairs": 0, "verdicts": []}
    for place, verdict in enumerate(("unchanged", "improved", "regressed")):
        measured = create_measurement(create_experiment(case=str(place)), run=run)
        create_verdict(measured, verdict)
        assert client.get(address).json()["verdict"] == verdict
    assert client.get(f"/api/v1/runs/{run.pk + 99}/result").status_code == 404


@pytest.mark.django_db
def test_the_result_of_a_run_can_be_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run("running")
    address = f"/api/v1/runs/{run.pk}/result"
    looks: list[dict[str, Any]] = [{"state": "running"}, {"state": "failed", "finished": timezone.now()}]
    monkeypatch.setattr(time, "sleep", lambda _s: Run.objects.update(**looks.pop(0)))
    assert client.get(address).json()["state"] == "running"
    assert client.get(f"{address}?wait=60").json()["state"] == "failed"
    assert looks == []
    assert client.get(f"{address}?wait=61").status_code == 422


@pytest.mark.django_db
def test_before_the_first_draw_a_comparison_at_equal_choices_counts_draws(client: Client) -> None:
    run = ab_run(selection={"suite": "micro", "draws": 3})
    Run.objects.filter(pk=run.pk).update(state="running", finished=None)
    for metric in ("memory_bandwidth(GB/s)", "cold_compile_s"):
        create_measurement(experiment_of_pairs(), metric=metric, value=2.0, run=run, side=0, repeat=0)
    lines = {line.metric.name: line for line in ab_runs.read(Run.objects.get(pk=run.pk))[0]}
    assert lines["memory_bandwidth(GB/s)"].code is not None
    assert lines["cold_compile_s"].code is None
