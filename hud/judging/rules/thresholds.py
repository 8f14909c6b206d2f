"""How a series is judged: the defaults of its metric, and the thresholds that operators set.

An operator's threshold names suite, case, metric, backend and arch, or leaves them empty for any. Each
setting comes from the row that says it and names the most; of rows that name as many, from the newest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from django.db.models import Q

from hud.judging.verdict import Rule
from hud.models import Experiment, Metric, Series, Threshold
from hud.sql import fetch_models
from runner.schema.metrics import is_known, role_of

LEAST_CHANGE = 0.02  # of a timing, by default; noise decides above it
DERIVED = ("same_choice_ratio", "autotune_regret", "share_of_ceiling")  # computed of other numbers
LEAST_REGRET = 0.01  # of the time, by which a regret must differ


class Thresholds:
    """The thresholds of all operators, for the series that they match."""

    def __init__(self, rows: Iterable[Threshold]) -> None:
        in_order = sorted(rows, key=lambda row: row.pk or math.inf)
        self.rows = sorted(in_order, key=lambda row: sum(bool(getattr(row, name)) for name in row.IDENTITY))

    @classmethod
    def read(cls) -> Thresholds:
        """Return what is stored: 1 statement."""
        return cls(fetch_models(Threshold, "", {}))

    def of(self, experiment: Experiment, metric: Metric) -> Rule:
        rule = default_rule(metric)
        own = {name: getattr(experiment, name) for name in ("suite", "case", "backend", "arch")}
        own["metric"] = metric.name
        for row in self.rows:
            if any(getattr(row, name) not in ("", value) for name, value in own.items()):
                continue
            limits: dict[str, Any] = {"absolute_floor": row.minimum, "judged": row.judged}
            limits |= dict.fromkeys(("relative_floor", "small_step"), row.relative)
            rule = replace(rule, **{name: value for name, value in limits.items() if value is not None})
        return rule


def opens_regressions(rule: Rule, metric: Metric, present: Collection[str]) -> bool:
    """Return whether a series may open a regression, in an experiment and class with the metrics `present`.
    One whose metric an operator has told of may: saying which way is worse asks for that."""
    if rule.judged is not None:
        return rule.judged
    if metric.has_own_direction and metric.told:
        return True
    has_sides = metric.direction != "none" or is_known(metric.name)
    return has_sides and role_of(metric.name, present) == "headline"


def metrics_by_class(experiments: Collection[int]) -> dict[tuple[int, str | None], set[str]]:
    """Return the metrics of experiments by experiment and class; None has those that wait to be judged."""
    names: dict[tuple[int, str | None], set[str]] = {}
    series = Series.objects.filter(experiment__in=experiments)
    stored = series.filter(Q(states__isnull=False) | Q(touched_at__isnull=False))
    rows = stored.values_list("experiment_id", "states__class_key", "metric__name")
    for experiment_id, class_key, name in rows:
        names.setdefault((experiment_id, class_key), set()).add(name)
    return names


def default_rule(metric: Metric) -> Rule:
    """Return the rule of a metric where no operator says otherwise."""
    return Rule(
        direction=metric.direction,  # type: ignore[arg-type]  # the registry's words are the rule's
        kind=metric.kind,  # type: ignore[arg-type]
        relative_floor=least_change(metric.floor),
        prior_noise=prior_noise(metric.floor),
        is_derived=metric.name in DERIVED,
        absolute_floor=LEAST_REGRET if metric.name == "autotune_regret" else 0.0,
    )


def least_change(floor: float) -> float:
    """Return the least relative change that may be a suspect, by the metric's floor of PyTorch's HUD. It is
    smaller, because noise decides above it: 2 % of times and rates, 5 % of compile time and memory (15 %)."""
    return min(floor, LEAST_CHANGE) if floor <= 0.05 else floor / 3


def prior_noise(floor: float) -> float:
    """Return the assumed relative noise between processes of a short series, by its metric's floor.

    Same-choice time (floor 1 %) is a sum over kernels, each of which repeats within 0.5 %.
    Measured on H200 cards: device time (floor 3 %) repeats within 0.2 %, but 1 % over two cards; call time
    (5 %) of small kernels moves by 3 to 7 % with its host; compile time (15 %) by 5 % and more.
    """
    if floor <= 0.01:
        return 0.005
    return 0.01 if floor <= 0.03 else 0.03 if floor <= 0.05 else floor / 3
