"""Targets: the operator's, then a fraction of the ceiling, then the record's own."""

from __future__ import annotations

import pytest

from hud.models import Target
from hud.points import targets
from runner.schema.suite import TargetFraction
from tests.support.factories import (
    create_ceiling,
    create_experiment,
    create_metric,
)

pytestmark = pytest.mark.django_db
GPT_FAST = "memory_bandwidth(GB/s)"
FRACTION = TargetFraction(GPT_FAST, "layer_norm", "bfloat16", "mean", 0.55)


def test_the_target_is_the_operators_then_a_fraction_then_the_records_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, metric = create_experiment(), create_metric(GPT_FAST)

    def own() -> str:
        target = targets.Targets.read().own(experiment, metric, 950, "h200")
        return target.name if target else ""

    assert own() == "H200 target 950 GB/s"
    monkeypatch.setattr(targets, "FRACTIONS", {FRACTION.metric: [FRACTION]})
    assert own() == "H200 target 950 GB/s"  # no ceiling was measured
    for copy_gbps in (4000.0, 4258.0, 4300.0):
        create_ceiling(copy_gbps)
    assert own() == "H200 target 2342 GB/s (0.55 of the measured copy 4258)"
    Target.objects.create(metric=metric, arch="h200", value=2400, note="agreed")
    assert own() == "H200 target 2400 GB/s (agreed)"
    Target.objects.create(metric=metric, arch="h200", case="layer_norm", size="mean", fraction=0.5)
    assert own() == "H200 target 2129 GB/s (0.5 of the measured copy 4258)"


def test_a_target_of_another_arch_judges_nothing() -> None:
    experiment, metric = create_experiment(), create_metric(GPT_FAST)
    (shown,) = targets.Targets.read().of(experiment, metric, 950, "a100-40gb")
    assert not shown.own
    assert shown.verdict(900, "up") == "below A100-40GB target 950"
    assert targets.Targets.read().own(experiment, metric, 950, "a100-40gb") is None


@pytest.mark.parametrize(
    ("direction", "value", "met"),
    [
        ("up", 950, "met"),
        ("up", 949, "missed"),
        ("down", 950, "met"),
        ("down", 951, "missed"),
        ("none", 1, "none"),
    ],
)
def test_a_target_is_met_in_the_metrics_direction(direction: str, value: float, met: str) -> None:
    assert targets.AppliedTarget(950, "target 950", own=True).met_by(value, direction) == met
