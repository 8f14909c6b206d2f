"""A/B runs at equal choices: their answers on the page, for regressions, and when they may stop."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.judging.comparison import compare, noise_before, noise_of, planned_draws
from hud.judging.regressions.confirm import confirm
from hud.models import (
    Compilation,
    DetailedMeasurement,
    Environment,
    Experiment,
    Kernel,
    Measurement,
    Point,
    Regression,
    Run,
    RunRequest,
    Series,
    State,
    Task,
)
from runner.schema.draws import pair_place, pinned_repeat
from tests.support.claims import attach
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_metric,
    create_run,
)

pytestmark = pytest.mark.django_db
OLD, NEW = ("2.10.0", "aaa"), ("2.11.0", "bbb")
CHOICES = ("XBLOCK=512", "XBLOCK=1024", "XBLOCK=256")
TIMES_US = dict(zip(CHOICES, (150.0, 100.0, 130.0), strict=True))
OFFERED = (CHOICES, CHOICES)


@pytest.fixture
def experiment() -> Experiment:
    return create_experiment(suite="micro", case="gather_gemv", knobs={"D": 4096}, backend="inductor")


@pytest.fixture
def sides() -> list[Environment]:
    return [create_environment(torch=torch, torch_git=git) for torch, git in (OLD, NEW)]


def ab_run(experiment: Experiment, draws: int = 4, **more: Any) -> Run:
    run = create_run(base_interpreter="stable", interpreter="default", **more)
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, finished=timezone.now())
    selection = {"suite": "micro", "draws": draws, "repeats": 1}
    RunRequest.objects.update_or_create(
        run=run, defaults={"experiment": experiment, "caches": "pinned", "selection": selection}
    )
    return Run.objects.get(pk=run.pk)


def measure(
    run: Run,
    experiment: Experiment,
    sides: list[Environment],
    *,
    code: float = 1.0,
    scatter: float = 0.001,
    drawn: tuple[tuple[str, ...], tuple[str, ...]] = (CHOICES, CHOICES),
    offered: tuple[tuple[str, ...], tuple[str, ...]] = OFFERED,
    rounds: int = 4,
    with_kernels: bool = True,
    candidates: tuple[str, ...] = (),
) -> None:
    """Measure rounds of draws: a slot with three choices 50 % apart; the candidate's code takes `code` times
    as long at each. Each round also times `candidates`."""

    def process(pair: int, side: int, choice: str, draw: int | None, candidate: int | None = None) -> None:
        time_us = TIMES_US[choice] * (code if side else 1.0) * (1 + scatter * ((pair + side) % 3))
        repeat = pair if draw is None else pinned_repeat(draw, 0, repeated=False)
        if candidate is not None:
            place = pair_place({"number": pair, "side": "new", "draw": "base", "candidate": candidate})
            assert place
            repeat = place.repeat
        where: dict[str, Any] = {"run": run, "environment": sides[side], "repeat": repeat, "side": side}
        create_measurement(experiment, metric="device_latency_ms", value=time_us / 1000, draw=draw, **where)
        if with_kernels:
            timed = kernel("mul", time_us, config=choice, candidates=len(offered[side]))
            row = store(compiled(timed), experiment=experiment, **where)
            row.draw = draw
            row.save()
            Kernel.objects.filter(pk__in=row.kernels).update(offered=list(offered[side]))

    for pair in range(rounds):
        choices = [own[pair % len(own)] for own in drawn]
        for side in (0, 1):
            process(pair, side, choices[side], None)
            process(pair, side, choices[0], 2 * pair)
            process(pair, side, choices[1], 2 * pair + 1)
            for number, choice in enumerate(candidates):
                process(pair, side, choice, 2 * pair, number)


def regression(experiment: Experiment, sides: list[Environment]) -> Regression:
    metric = create_metric("device_latency_ms")
    good, bad = (create_run(host_name="h200-a") for _ in range(2))
    for run, environment, value in zip((good, bad), sides, (0.1, 0.15), strict=True):
        create_measurement(experiment, metric=metric.name, value=value, run=run, environment=environment)
        store(
            compiled(kernel("mul", 1000 * value, config=CHOICES[value < 0.12])),
            experiment=experiment,
            run=run,
            environment=environment,
        )
    return Regression.objects.create(
        series=Series.objects.get(experiment=experiment, metric=metric, stream=bad.stream),
        class_key=sides[0].class_key,
        state="open",
        first_run=bad,
        last_good_run=good,
        since=bad.order_time,
        opened=timezone.now() - timedelta(hours=1),
        change=0.5,
    )


def test_the_code_is_judged_at_equal_choices_where_draws_differ_by_half(
    experiment: Experiment, sides: list[Environment], client: Client
) -> None:
    run = ab_run(experiment)
    measure(run, experiment, sides, code=1.05, drawn=(CHOICES, CHOICES[1:] + CHOICES[:1]))
    (metric,) = compare([run]).metrics
    assert metric.pairs.change.word == "inconclusive"  # four fresh pairs
    assert (metric.word, metric.better, metric.cause, metric.count) == ("confirmed", False, "code", 8)
    assert metric.change == pytest.approx(0.05, abs=0.002)
    answer = client.get(f"/runs/{run.pk}.json").json()
    (row,) = answer["pairs"]
    assert (row["verdict"], row["cause"], row["draws"], row["pairs"]) == ("confirmed", "code", 8, 4)
    (kernels,) = answer["kernels"]
    assert kernels["equal_choices"] == "confirmed"
    assert kernels["equal_choice_percent"] == 100
    assert kernels["same_candidates"] is True
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert page.count("Draw ") >= 8
    assert client.get(f"/runs/{run.pk}.csv?table=pairs").status_code == 200


def test_code_decides_on_a_regression(experiment: Experiment, sides: list[Environment]) -> None:
    one = regression(experiment, sides)
    measure(ab_run(experiment), experiment, sides, code=1.05)
    confirm()
    one.refresh_from_db()
    assert (one.state, one.kind) == ("confirmed", "step")


def test_a_worse_draw_is_a_regression_of_that_kind(experiment: Experiment, sides: list[Environment]) -> None:
    """The candidate's heuristics no longer offer the best configuration."""
    one = regression(experiment, sides)
    worse = CHOICES[0], CHOICES[2]
    drawn = (CHOICES[1],), worse
    measure(ab_run(experiment, 6), experiment, sides, drawn=drawn, offered=(CHOICES, worse), rounds=6)
    confirm()
    one.refresh_from_db()
    assert (one.state, one.kind) == ("confirmed", "choice")


def test_a_lost_candidate_that_nobody_drew_is_a_worse_choice(
    experiment: Experiment, sides: list[Environment]
) -> None:
    drawn, offered = (CHOICES[2:], CHOICES[2:]), (CHOICES, (CHOICES[0], CHOICES[2]))
    runs = [ab_run(experiment) for _ in range(2)]
    measure(runs[0], experiment, sides, drawn=drawn, offered=offered)
    measure(runs[1], experiment, sides, drawn=drawn, offered=offered, candidates=CHOICES)
    for run, word, untimed in zip(runs, ("inconclusive", "confirmed"), (2, 0), strict=True):
        found = compare([run])
        (metric,) = [one for one in found.metrics if one.metric.name == "device_latency_ms"]
        (kernels,) = found.kernels.values()
        assert (len(metric.draws), metric.code and metric.code.word) == (8, "dismissed")
        assert all(0.13 <= draw.base <= 0.1303 for draw in metric.draws), "a candidate is no draw"
        choice = kernels.found.choice
        assert (choice.word, choice.differing_candidates, choice.untimed) == (word, 3, untimed)
        assert (metric.word, metric.cause) == (
            ("confirmed", "choice") if word == "confirmed" else ("dismissed", "")
        )
    assert choice.best_ratio == pytest.approx(1.3, abs=0.01)


@pytest.mark.parametrize(
    ("offered", "drawn", "state"),
    [
        (OFFERED, (CHOICES, CHOICES), "dismissed"),
        ((CHOICES, (*CHOICES, "XBLOCK=64")), (CHOICES, CHOICES), "open"),  # other candidates
        (((), ()), (CHOICES, CHOICES), "open"),  # unknown ones
        (OFFERED, ((CHOICES[1],), (CHOICES[1],)), "open"),  # the suspect's choice is not among the baseline's
    ],
)
def test_pairs_dismiss_only_what_the_draw_cannot_hide(
    experiment: Experiment, sides: list[Environment], offered: Any, drawn: Any, state: str
) -> None:
    one = regression(experiment, sides)
    measure(ab_run(experiment), experiment, sides, offered=offered, drawn=drawn)
    confirm()
    one.refresh_from_db()
    assert one.state == state
    assert one.events.filter(event="cannot tell").exists() == (state == "open")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "dismissed"),
        ({"code": 1.05}, "confirmed"),
        ({"offered": (CHOICES, (*CHOICES, "XBLOCK=64"))}, "same code"),  # other candidates
        ({"offered": ((), ())}, "same code"),  # unknown ones
        ({"drawn": (CHOICES[:1], CHOICES[1:2])}, "same code"),  # the candidate's choice is not the baseline's
        ({"with_kernels": False}, "same code"),
    ],
)
def test_the_page_dismisses_only_what_the_draw_cannot_hide(
    experiment: Experiment, sides: list[Environment], client: Client, more: dict[str, Any], word: str
) -> None:
    run = ab_run(experiment)
    measure(run, experiment, sides, **more)
    text = client.get(f"/runs/{run.pk}/").content.decode()
    badges = re.findall(r'class="badge [^>]*>(?:<svg.*?</svg>)?\s*([^<]+)<', text)
    words = [badge for badge in badges if badge in {"dismissed", "confirmed", "same code"}]
    assert words.count(word) >= 2 + more.get("with_kernels", True), "headline, kernels and table"
    assert word == "dismissed" or "dismissed" not in words
    found = client.get(f"/runs/{run.pk}.json").json()
    verdict = "dismissed" if word == "same code" else word
    assert {line["verdict"] for line in found["pairs"]} == {verdict}, "the word that programs know"
    for line in found["kernels"]:
        assert bool(line["obstacle"]) == (word == "same code")


def test_a_gpu_whose_kernels_are_unknown_dismisses_nothing(
    experiment: Experiment, sides: list[Environment]
) -> None:
    one = regression(experiment, sides)
    measure(ab_run(experiment), experiment, sides, with_kernels=False)
    confirm()
    one.refresh_from_db()
    assert one.state == "open"


@pytest.mark.parametrize("unknown", ["first", "latest", "untimed"])
def test_a_suspect_whose_choices_are_unknown_is_not_dismissed(
    experiment: Experiment, sides: list[Environment], unknown: str
) -> None:
    one = regression(experiment, sides)
    of_suspect = Compilation.objects.filter(run=one.first_run_id)
    if unknown == "first":
        of_suspect.delete()
    elif unknown == "latest":
        Regression.objects.filter(pk=one.pk).update(latest_run=create_run(host_name="h200-a"))
    else:  # a kernel that was not timed, with a choice that the baseline never drew
        of_suspect.delete()
        untimed = kernel("add", None, config="XBLOCK=2")
        kernels = compiled(kernel("mul", 150.0, config=CHOICES[0]), untimed)
        store(kernels, experiment=experiment, run=one.first_run, environment=sides[1])
    measure(ab_run(experiment), experiment, sides)
    confirm()
    one.refresh_from_db()
    assert one.state == "open"
    assert one.events.filter(event="cannot tell").exists()


@pytest.mark.parametrize("offered", [OFFERED, (CHOICES, (CHOICES[0], CHOICES[2]))])
def test_only_code_without_a_change_dismisses(
    experiment: Experiment, sides: list[Environment], offered: Any
) -> None:
    """At equal choices the candidate is faster, which says nothing of what it chooses."""
    drawn = CHOICES[2:], CHOICES[2:]
    one = regression(experiment, sides)
    measure(ab_run(experiment), experiment, sides, code=0.9, drawn=drawn, offered=offered)
    confirm()
    one.refresh_from_db()
    assert one.state == "open"
    assert one.events.filter(event="cannot tell").exists()


@pytest.mark.parametrize(
    ("scatter", "speedup_for", "ended"),
    [
        (0.001, "", True),
        (0.1, "", False),
        (0.001, "person", False),  # these pairs may decide a regression of the speedup, too
        (0.001, "ci", True),  # a gate reads the time alone
        (0.1, "ci", False),
    ],
)
def test_a_clear_answer_ends_the_run_before_its_host_asks_for_the_next_task(
    client: Client,
    experiment: Experiment,
    sides: list[Environment],
    *,
    scatter: float,
    speedup_for: str,
    ended: bool,
) -> None:
    accelerator, run = attach("one"), ab_run(experiment, 8)
    RunRequest.objects.filter(run=run).update(run_class=speedup_for or "person")
    Run.objects.filter(pk=run.pk).update(state=State.RUNNING, finished=None)
    lease = {"accelerator": accelerator, "token": uuid.uuid4(), "lease_until": timezone.now()}
    states: list[dict[str, Any]] = [
        *3 * [{"state": Task.State.DONE, "status": "ok", "finished": timezone.now()}],
        {"state": Task.State.RUNNING, **lease},
        *4 * [{}],
    ]
    rows = [Task.objects.create(run=run, position=at, spec={}, **state) for at, state in enumerate(states)]
    measure(run, experiment, sides, code=1.05, scatter=scatter)
    for row in list(DetailedMeasurement.objects.filter(run=run)) if speedup_for else ():
        where: dict[str, Any] = {"run": run, "environment": row.environment, "repeat": row.repeat}
        noisy = 1 + ((row.draw or 0) + 2 * row.side) % 5 / 10
        create_measurement(
            experiment, metric="device_speedup", value=noisy, draw=row.draw, side=row.side, **where
        )
    _key, secret = create_key(name="host", scopes=["host"], who="test", host=accelerator.host)
    answer = client.post(
        f"/api/v1/tasks/{rows[3].uid}/finish",
        {"status": "ok"},
        content_type="application/json",
        headers={"authorization": f"Bearer {secret}", "x-task-token": str(lease["token"])},
    )
    assert answer.json() == {"state": "done"}
    run.refresh_from_db()
    assert (run.state == State.SUCCEEDED) == ended
    assert run.tasks.count() == (4 if ended else 8)
    assert bool(run.reason) == ended


def test_draws_of_several_runs_count_together(experiment: Experiment, sides: list[Environment]) -> None:
    runs = [ab_run(experiment) for _ in range(2)]
    for run in runs:
        measure(run, experiment, sides, code=1.05)
    (metric,) = compare(runs).metrics
    assert (len(metric.draws), len({draw.number for draw in metric.draws}), metric.pairs.pairs) == (16, 16, 8)


def test_what_is_measured_once_more_counts_in_place_of_the_first(
    experiment: Experiment, sides: list[Environment]
) -> None:
    run = ab_run(experiment)
    measure(run, experiment, sides)
    slow = Measurement.objects.get(run=run, draw=3, side=1)
    DetailedMeasurement.objects.filter(run=run, draw=3, side=1).update(value=9.0)
    create_measurement(
        experiment,
        metric="device_latency_ms",
        value=slow.value,
        run=run,
        environment=sides[1],
        repeat=pinned_repeat(3, 0, repeated=True),
        side=1,
        draw=3,
    )
    (metric,) = compare([run]).metrics
    assert (metric.word, metric.repeated) == ("dismissed", 1)


def test_noise_is_that_of_compilations_with_one_variant_on_one_card(experiment: Experiment) -> None:
    environment = create_environment(gpu_uuid="GPU-1")
    runs = [create_run() for _ in range(3)]
    for run, value in zip(runs, (100.0, 100.4, 100.2), strict=True):
        create_measurement(
            experiment, metric="device_latency_ms", value=value, run=run, environment=environment
        )
    series = Series.objects.get(experiment=experiment)
    points = Point.objects.filter(series=series)
    assert noise_of(points).assumed
    assert noise_before(experiment).assumed
    points.update(variants=["a"])
    noise = noise_before(experiment)
    assert noise == noise_of(points)
    assert (noise.assumed, noise.processes) == (False, 3)
    assert noise.noise == pytest.approx(0.002, rel=0.01)
    assert planned_draws([series]) == 3
