"""The tabs of the regressions: which states each has, as a condition."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from hud.judging.regressions.counts import Scope
from hud.judging.regressions.states import ACTIVE, TOLD, RegressionState
from hud.models import Regression

_TABS: dict[str, tuple[Sequence[RegressionState], bool | None]] = {  # states, and whether they are muted
    "inbox": (TOLD, False),
    "mine": (TOLD, False),
    "suspects": ([RegressionState.SUSPECT], False),
    "resolved": ([RegressionState.RESOLVED], None),
    "accepted": ([RegressionState.ACCEPTED], None),
    "dismissed": ([RegressionState.DISMISSED], None),
    "muted": (ACTIVE, True),
}
TABS = tuple(_TABS)


def in_tab(tab: str, user: User | None) -> Q:
    """Return the condition of a tab's regressions."""
    if tab == "all":
        return Q()
    states, muted = _TABS[tab]
    wanted = Q(state__in=states)
    if muted is not None:
        is_muted = Q(muted_until__gt=timezone.now())
        wanted &= is_muted if muted else ~is_muted
    return wanted & Q(owner=user) if tab == "mine" else wanted


def count_suspects(scope: Scope) -> int:
    """Return how many regressions wait for a second result: 1 statement."""
    return Regression.objects.filter(scope.condition() & in_tab("suspects", None)).count()
