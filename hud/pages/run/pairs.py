"""The A/B comparison of a run: a row for each experiment and metric, and one for the kernels of each
experiment."""

from __future__ import annotations

from typing import Any

from hud.judging.comparison import Comparison, KernelsOfSides, MetricComparison, compare
from hud.models import Run
from hud.pages.suite.query import identity
from hud.points.read import metric_place


def read(run: Run) -> Comparison:
    """Return the comparison, its metrics by experiment, and inside one as its suite is read: 4 statements."""
    comparison = compare([run])
    comparison.metrics.sort(
        key=lambda line: (
            line.experiment.case,
            line.experiment.title,
            line.experiment.dtype,
            metric_place(line.experiment.suite, line.metric),
        ),
    )
    return comparison


def metric_row(line: MetricComparison) -> dict[str, Any]:
    """Return a metric as JSON and CSV have it."""
    base, head = line.values
    code = line.code
    return {
        **identity(line.experiment),
        "metric": line.metric.name,
        "unit": line.metric.unit,
        "direction": line.metric.direction,
        "base": base,
        "new": head,
        "change": line.change,
        "low": line.low,
        "high": line.high,
        "p": line.p,
        "pairs": line.pairs.pairs,
        "draws": len(line.draws) or None,
        "verdict": line.word,
        "better": line.better,
        "cause": line.cause or None,
        "at_base_draws": code.at_base if code else None,
        "at_new_draws": code.at_head if code else None,
        "detects_percent": line.detects_percent,
        "repeated": line.repeated,
        "base_status": line.base_status,
        "new_status": line.head_status,
        "base_values": line.base,
        "new_values": line.head,
        "draw_ratios": line.ratios if line.draws else None,
    }


def kernels_row(line: KernelsOfSides) -> dict[str, Any]:
    """Return the three answers of an experiment's kernels: code, choice, and kernels of one side."""
    code, choice, one_sided = line.found.code, line.found.choice, line.found.one_sided
    change, low, high = (None if ratio is None else ratio - 1 for ratio in (code.ratio, code.low, code.high))
    percent = line.found.equal_choice_percent
    return {
        **identity(line.experiment),
        "base_compilations": len(line.base),
        "new_compilations": len(line.head),
        "equal_choices": code.word,
        "change": change,
        "low": low,
        "high": high,
        "p": code.p,
        "coverage": None if percent is None else percent / 100,
        "equal_choice_percent": percent,
        "not_pinned": {line.titles[slot]: share for slot, share in line.found.unequal_percent.items()},
        "choice": choice.word,
        "choice_worse": choice.worse,
        "choice_ratio": choice.ratio,
        "choice_best_ratio": choice.best_ratio,
        "same_candidates": choice.same_candidates,
        "other_candidates": [line.titles[slot] for slot in choice.differing],
        "other_frequencies": choice.frequencies,
        "other_frequencies_p": choice.frequencies_p,
        "only_base": line.only_base,
        "only_new": line.only_head,
        "only_base_us": one_sided.base_us,
        "only_new_us": one_sided.head_us,
    }
