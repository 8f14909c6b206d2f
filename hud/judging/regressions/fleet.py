"""Read the canaries of all cards, quarantine what drifts, and let its night decide nothing."""

import logging
from datetime import datetime, timedelta

from django.db.models import Max, Min

from hud.hosts import quarantine
from hud.models import Accelerator, DetailedMeasurement, Environment, Point, Task
from hud.points.write import touch_series
from hud.sql import fetch_tuples
from hud.states.fleet import NIGHT, Card, Reading, Review, review
from runner.suites import CEILINGS

_BASELINE = timedelta(days=90)
_QUALITY = "quarantined"  # of runner.schema.records
logger = logging.getLogger(__name__)


def act() -> None:
    """Quarantine and release cards by their newest readings."""
    answer, cards = _review()
    if answer.together:
        logger.warning("%s", answer.together)
    attached = Accelerator.objects.select_related("host").in_bulk([*answer.quarantined, *answer.released])
    for pk, reason in answer.quarantined.items():
        quarantine.quarantine(attached[pk], reason, since=cards[pk].newest)
        _mark_night(pk, cards[pk].newest)
    for pk in answer.released if answer.together else ():
        _mark_night(pk, cards[pk].newest, quality=None)
    quarantine.release([attached[pk] for pk in answer.released], who=quarantine.JUDGE)


def moved_together() -> str:
    """Return that most hosts moved in the newest night, so that none is quarantined, or ''."""
    return _review()[0].together


def _review() -> tuple[Review, dict[int, Card]]:
    """Return what follows from the readings of the cards, and these: 1 statement. Only those with the torch
    of the newest one count: a canary's interpreter is frozen."""
    cards: dict[int, Card] = {}
    rows = fetch_tuples(
        """
        SELECT a.id, h.name, a.quarantined_at, x.case, r.created, p.value,
            coalesce(p.quality = 'throttled', false)
        FROM hud_accelerator a JOIN hud_host h ON h.id = a.host_id AND h.detached_at IS NULL
        JOIN hud_task t ON t.accelerator_id = a.id
        JOIN hud_run r ON r.id = t.run_id AND r.created > greatest(
            a.canaries_from, clock_timestamp() - %(baseline)s)
        JOIN hud_runrequest q ON q.run_id = r.id AND q.selection->>'suite' = %(suite)s
        JOIN hud_point p ON p.run_id = r.id AND p.value > 0
        JOIN hud_series s ON s.id = p.series_id
        JOIN hud_experiment x ON x.id = s.experiment_id AND x.suite = %(suite)s AND x.case = t.spec->>'case'
        JOIN hud_environment e ON e.id = p.environment_id AND e.facts->>'gpu_uuid' = a.uuid
        WHERE a.present AND a.uuid <> ''
            AND e.torch = (SELECT torch FROM hud_environment n JOIN hud_point o ON o.environment_id = n.id
                WHERE o.series_id = s.id AND n.facts->>'gpu_uuid' = a.uuid ORDER BY o.order_time DESC LIMIT 1)
        ORDER BY r.created, r.id
        """,
        {"baseline": _BASELINE, "suite": CEILINGS},
    )
    for pk, host, since, ceiling, time, value, throttled in rows:
        card = cards.setdefault(pk, Card(pk, host, {}, since))
        card.readings.setdefault(ceiling, []).append(Reading(time, value, throttled))
    return review(list(cards.values())), cards


def _mark_night(pk: int, reading: datetime, *, quality: str | None = _QUALITY) -> None:
    """Let the values of a card's night decide nothing, or again: those of tasks since the reading before."""
    card = Accelerator.objects.get(pk=pk)
    own = {
        "run__in": Task.objects.filter(accelerator=card, started__gt=reading - NIGHT).values("run"),
        "environment__in": Environment.objects.filter(facts__gpu_uuid=card.uuid),
    }
    old = None if quality else _QUALITY
    for kind in (Point, DetailedMeasurement):
        kind.objects.filter(**own, value__isnull=False, quality=old).update(quality=quality)
    points = Point.objects.filter(**own)
    touch_series(points.values("series"), **points.aggregate(first=Min("order_time"), last=Max("order_time")))
