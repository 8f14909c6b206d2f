"""Metrics that are computed of others: quiet nights move none of them, slower kernels same-choice time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from hud.ingest import ingest
from hud.judging import judge
from hud.judging.choices import Drawn, autotune_regret, same_choice_ratios
from hud.judging.compilations import process_pending
from hud.judging.levels import Level, SeriesPoint, advance
from hud.judging.rules.thresholds import DERIVED, default_rule
from hud.judging.verdict import Rule, Verdict, noise_of_median
from hud.models import VERDICT_CODES, Metric, Point, Regression
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled, Kernel, digest
from runner.schema.metrics import metric_info
from tests.support.records import as_lines, compiled_record

NIGHTS = 60
COMPILATIONS = 3
START = datetime(2026, 8, 1, 3, tzinfo=UTC)


def rule_of(metric: str) -> Rule:
    info = metric_info(metric)
    return default_rule(Metric(name=metric, direction=info.direction, kind=info.kind, floor=info.floor))


class Model:
    """Compilations of a model: half of its slots draw one of two or three choices 25 % apart, kernels repeat
    within the larger of 0.5 % and 0.3 µs, and a night within 0.1 %."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        count = (6, 20, 60, 120)[seed % 4]
        self._times_us = self._chance.uniform(4, 120, count)
        self._choices = self._chance.choice([1, 1, 2, 3], count)

    def night(self, factor: float = 1.0) -> list[Drawn]:
        chance, times_us = self._chance, self._times_us
        of_night = factor * np.exp(chance.normal(0, 0.001))
        found: list[Drawn] = []
        for _ in range(COMPILATIONS):
            drawn = chance.integers(self._choices)
            noise = np.exp(chance.normal(0, np.maximum(0.005, 0.3 / times_us)))
            measured = times_us * (1 + 0.25 * drawn) * of_night * noise
            found.append([(str(at), str(drawn[at]), float(us)) for at, us in enumerate(measured)])
        return found


def points(model: Model, planted: float) -> Iterator[dict[str, SeriesPoint]]:
    """Yield the derived points of each night, the last of which is slower by a factor."""
    chance = np.random.default_rng(1)
    earlier: list[Drawn] = []
    ceilings: list[float] = []
    for night in range(NIGHTS + 1):
        own = model.night(planted if night == NIGHTS else 1.0)
        ratios = [ratio for ratio in same_choice_ratios(earlier, own) if ratio is not None]
        regret = autotune_regret([*earlier, *own][-100:])
        ceilings = [*ceilings, 4000 * float(np.exp(chance.normal(0, 0.002)))][-7:]
        totals = [sum(us for _slot, _choice, us in drawn) for drawn in own]
        shares = [1e6 / total / float(np.median(ceilings)) for total in totals]
        values: dict[str, tuple[list[float], float | None]] = {
            "same_choice_ratio": (ratios, None),
            "share_of_ceiling": (shares, None),
            "autotune_regret": ([regret.value], regret.spread) if regret else ([], None),
        }
        at = START + timedelta(days=night)
        yield {
            metric: SeriesPoint(night, 1, at, tuple(found), (None,) * len(found), spread=spread)
            for metric, (found, spread) in values.items()
            if found
        }
        earlier += own


def judged(seed: int, planted: float = 1.0) -> tuple[Counter[str], Verdict]:
    """Return how many quiet points of each metric were called improved or regressed, and the verdict on the
    last night's same-choice time."""
    levels = {metric: Level() for metric in DERIVED}
    moved: Counter[str] = Counter()
    for night, found in enumerate(points(Model(seed), planted)):
        for metric, point in found.items():
            verdict = advance(levels[metric], point, rule_of(metric))
            if metric == "same_choice_ratio":
                last = verdict
            if night < NIGHTS:
                moved[metric] += verdict.verdict in {"improved", "regressed"}
    return moved, last


@pytest.mark.parametrize("models", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_sixty_quiet_nights_move_nothing_and_two_percent_of_all_kernels_is_seen_at_once(models: int) -> None:
    moved: Counter[str] = Counter()
    seen = 0
    for seed in range(models):
        quiet, last = judged(seed, 1.02)
        moved += quiet
        seen += last.verdict == "regressed"
    assert not moved.total(), moved
    assert seen >= 0.95 * models


def test_the_noise_of_own_compilations_is_the_least() -> None:
    """Three compilations that differ by 5 % decide nothing about 4 %, however quiet the nights were."""
    assert noise_of_median([1.0]) == noise_of_median([0.0, 0.0]) == 0.0
    assert noise_of_median([0.95, 1.0, 1.05]) == pytest.approx(0.036, abs=0.001)
    for values, verdict in (((1.039, 1.04, 1.041), "regressed"), ((0.99, 1.04, 1.09), "unchanged")):
        level = Level()
        for night in range(20):
            at, quiet = START + timedelta(days=night), tuple(1 + number / 2000 for number in range(3))
            advance(level, SeriesPoint(night, 1, at, quiet, (None,) * 3), rule_of("same_choice_ratio"))
        point = SeriesPoint(20, 1, START + timedelta(days=20), values, (None,) * 3)
        assert advance(level, point, rule_of("same_choice_ratio")).verdict == verdict


def test_a_regret_has_to_leave_its_own_interval() -> None:
    for value, spread, verdict in (
        (0.00005, 0.0, "unchanged"),
        (0.02, 0.02, "unchanged"),
        (0.2, 0.02, "regressed"),
    ):
        level = Level()
        for night in range(20):
            point = SeriesPoint(night, 1, START + timedelta(days=night), (1e-6,), (None,), spread=0.0001)
            advance(level, point, rule_of("autotune_regret"))
        last = SeriesPoint(20, 1, START + timedelta(days=20), (value,), (None,), spread=spread)
        assert advance(level, last, rule_of("autotune_regret")).verdict == verdict


def upload(model: Model, night: int, factor: float = 1.0) -> None:
    records = []
    for number, drawn in enumerate(model.night(factor)):
        kernels = tuple(
            Kernel(
                digest(slot),
                digest(slot, choice),
                digest(slot, choice, "code"),
                f"kernel_{slot}",
                "pointwise",
                choice,
                time_us=us,
            )
            for slot, choice, us in drawn
        )
        records.append(compiled_record(Compiled(kernels), number))
    at = START + timedelta(days=night)
    ingest(as_lines(*records), Parameters(run_time=at.isoformat(), run_id=f"night {night}"))
    while process_pending() or judge.process_pending():
        pass


@pytest.mark.django_db
@pytest.mark.parametrize("nights", [20, pytest.param(NIGHTS, marks=pytest.mark.soak)])
def test_stored_nights_are_quiet_and_a_slower_one_is_open_the_same_night(nights: int) -> None:
    model = Model(1)
    for night in range(nights):
        upload(model, night)
    decided = [VERDICT_CODES[word] for word in ("improved", "regressed")]
    derived = Point.objects.filter(series__metric__name__in=DERIVED)
    assert {name for (name,) in derived.values_list("series__metric__name").distinct()} == set(DERIVED[:2])
    assert not derived.filter(verdict_code__in=decided).exists()
    assert not Regression.objects.exists()
    regrets = derived.filter(series__metric__name="autotune_regret")
    assert all(regret.spread for regret in regrets), "half of its interval"
    upload(model, nights, 1.02)
    (one,) = Regression.objects.filter(series__metric__name__in=DERIVED)
    assert (one.series.metric.name, one.state) == ("same_choice_ratio", "open")
    events = list(one.events.order_by("pk").values_list("event", "before", "after", "run"))
    assert events == [("seen", "", "open", one.first_run_id)], "its own run agrees with nothing"
