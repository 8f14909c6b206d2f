"""The tabs of the regressions: which states each has, as a condition and as counts."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone

from hud.judging.regressions.states import ACTIVE, RegressionState
from hud.models import Stream
from hud.sql import fetch_tuples

WAITING = (RegressionState.OPEN, RegressionState.CONFIRMED, RegressionState.ACKNOWLEDGED)
# SQL, of a row of hud_regression: it waits for somebody; `waiting` is `WAITING`
IS_WAITING = "(state = ANY(%(waiting)s) AND coalesce(muted_until <= now(), true))"
_TABS: dict[str, tuple[Sequence[RegressionState], bool | None]] = {  # states, and whether they are muted
    "inbox": (WAITING, False),
    "mine": (WAITING, False),
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


def counts(stream: Stream, user: User | None) -> dict[str, int]:
    """Return how many regressions of a stream each tab has: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT r.state, coalesce(r.muted_until > now(), false), r.owner_id, count(*) FROM hud_regression r
        JOIN hud_series s ON s.id = r.series_id AND s.stream_id = %(stream)s GROUP BY 1, 2, 3
        """,
        {"stream": stream.pk},
    )
    return {
        tab: sum(
            count
            for state, is_muted, owner, count in rows
            if state in states
            and muted in (None, is_muted)
            and (tab != "mine" or owner == (user and user.pk))
        )
        for tab, (states, muted) in _TABS.items()
        if tab != "mine" or user
    }
