"""Wake idle accelerators with a job in Redis that says "there is work".

It carries no truth: `manage.py tick` repeats a lost one, a superfluous one finds nothing to claim.
"""

from __future__ import annotations

import logging
import uuid

from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer

from hud.hosts import queues
from hud.models import Accelerator
from hud.runs import matching

logger = logging.getLogger(__name__)
_FUNCTION = "runner.host.jobs.work"  # by name only: the web process never imports the runner's jobs
_TTL_S = 120  # a job that nobody takes by then is stale; tick rings again


_WAITING = f"""
    SELECT a.id, min(r.uid::text) FROM hud_accelerator a
    JOIN hud_host h ON h.id = a.host_id
    JOIN hud_run r ON {matching.FITS} AND r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
    WHERE {matching.OPEN} AND {matching.HEARD}
      AND (r.id = %(run)s OR %(run)s IS NULL)
      AND (a.rung_at IS NULL OR a.rung_at < clock_timestamp() - %(again)s * interval '1 s')
      AND NOT EXISTS (SELECT 1 FROM hud_task b WHERE b.accelerator_id = a.id AND b.state = 'running')
      AND EXISTS (SELECT 1 FROM hud_task q WHERE q.run_id = r.id AND q.state = 'queued')
    GROUP BY a.id
"""  # noqa: S608 - constants of ours


def ring_for(run_id: int) -> int:
    """Ring every idle accelerator that could take a task of this run now; return how many."""
    return _ring_all(run=run_id, again_s=0)


def ring_idle(*, again_s: float | None = None) -> int:
    """Ring each idle accelerator that has queued work and was not rung for `again_s` (HUD_RING_S); return how
    many.

    This restores what a lost Redis, or a crash between commit and ringing, has swallowed.
    """
    return _ring_all(run=None, again_s=settings.HUD_RING_S if again_s is None else again_s)


def _ring_all(*, run: int | None, again_s: float) -> int:
    """Ring as far as Redis answers: an outage costs one time-out, however many accelerators wait."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, {"run": run, "lost": settings.HUD_LOST_S, "again": again_s})
        waiting = cursor.fetchall()
    accelerators = Accelerator.objects.in_bulk([row[0] for row in waiting])
    rung = []
    try:
        with queues.connect() as redis:
            for pk, run_uid in waiting:
                _ring(redis, accelerators[pk], run_uid)
                rung.append(pk)
    except (RedisError, OSError) as error:
        logger.warning("accelerators could not be woken: %s", error)
    Accelerator.objects.filter(pk__in=rung).update(rung_at=Now())
    return len(rung)


def _ring(redis: Redis, accelerator: Accelerator, run_uid: str) -> None:
    """One job on the accelerator's queue, under a name that its host's own Redis user may touch."""
    Queue(accelerator.queue, connection=redis, serializer=JSONSerializer).enqueue(
        _FUNCTION,
        run_uid,
        job_id=f"host-{accelerator.host_id}-{uuid.uuid4()}",
        job_timeout=-1,
        result_ttl=0,
        failure_ttl=3600,
        ttl=_TTL_S,
    )
