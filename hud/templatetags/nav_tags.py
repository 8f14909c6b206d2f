"""What the head of every page shows."""

from __future__ import annotations

from django import template
from django.db.models import Q
from django.utils import timezone

from hud.judging.regressions.states import RegressionState
from hud.models import Regression

register = template.Library()
_OPEN = (RegressionState.OPEN, RegressionState.CONFIRMED, RegressionState.ACKNOWLEDGED)


@register.simple_tag
def open_regressions() -> int:
    """Return how many regressions wait for somebody: 1 statement."""
    unmuted = Q(muted_until=None) | Q(muted_until__lte=timezone.now())
    return Regression.objects.filter(unmuted, state__in=_OPEN).count()
