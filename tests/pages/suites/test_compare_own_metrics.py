"""Metrics that the registry does not know are compared by the direction that came with them."""

from __future__ import annotations

import pytest
from django.test import Client

from hud.models import Metric, Run
from tests.pages.suites.test_compare import measured, model, nights, sides, verdicts

__all__ = ["nights"]
pytestmark = pytest.mark.django_db


def test_metrics_of_one_s_own_decide_too_if_they_have_a_direction(
    client: Client, nights: tuple[Run, Run]
) -> None:
    """Compare our own counts, of which one has no direction."""
    for case, metric in (("own", "widgets"), ("silent", "gadgets")):
        for run, value in zip(nights, (1.0, 1.5), strict=True):
            measured(run, model(case), value, metric=metric)
    Metric.objects.filter(name="widgets").update(direction="down")
    assert verdicts(client, **sides(*nights))["own"][0] == "regressed"
    assert "silent" not in verdicts(client, **sides(*nights))
    assert verdicts(client, **sides(*nights), metric="gadgets")["silent"] == ("inconclusive", "no_direction")
