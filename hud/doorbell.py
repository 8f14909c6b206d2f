"""The doorbell: a job in Redis that says "there is work". It carries no truth; a lost one is rung again
by `manage.py tick`, a superfluous one finds nothing to claim.
"""

from __future__ import annotations

import logging
import uuid

import django_rq
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from hud.models import Accelerator, Run

logger = logging.getLogger(__name__)
_FUNCTION = "runner.jobs.work"  # by name only: the web process never imports the runner's jobs
_TTL_S = 120  # a doorbell nobody answers by then is stale; tick rings again


def ring_for(run_id: int) -> None:
    """Rings every accelerator that could take a task of this run now."""
    run = Run.objects.get(pk=run_id)
    accelerators = Accelerator.objects.filter(present=True, device=run.device, host__detached_at__isnull=True)
    if run.host_id:
        accelerators = accelerators.filter(host_id=run.host_id)
    if run.arch:
        accelerators = accelerators.filter(arch=run.arch)
    idle = accelerators.exclude(tasks__state="running").filter(dirty="")
    for accelerator in idle:
        ring(accelerator, run.uid)


def ring(accelerator: Accelerator, run_uid: uuid.UUID) -> bool:
    """One job on the accelerator's queue; False where Redis did not answer within a second."""
    try:
        queue = django_rq.get_queue(accelerator.queue, connection=_connection())
        queue.enqueue(
            _FUNCTION,
            str(run_uid),
            job_id=f"bell-{uuid.uuid4()}",
            job_timeout=-1,
            result_ttl=0,
            failure_ttl=3600,
            ttl=_TTL_S,
        )
    except (RedisError, OSError) as error:
        logger.warning("the doorbell of %s is silent: %s", accelerator.queue, error)
        return False
    Accelerator.objects.filter(pk=accelerator.pk).update(rung_at=Now())
    return True


def _connection() -> Redis:
    """redis-py would retry for seconds and raise after the commit; a doorbell may stay silent instead."""
    return Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
    )


def ring_idle() -> int:
    """Rings each idle accelerator that has queued work and was not rung lately; returns how many.

    This restores what a lost Redis, or a crash between commit and doorbell, has swallowed.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT a.id, min(r.uid::text) FROM hud_accelerator a
            JOIN hud_host h ON h.id = a.host_id
            JOIN hud_run r ON r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
                AND r.device = a.device AND (r.arch = '' OR r.arch = a.arch)
                AND (r.host_id IS NULL OR r.host_id = h.id)
            WHERE a.present AND a.dirty = '' AND h.detached_at IS NULL AND NOT h.drained
              AND (h.paused_until IS NULL OR h.paused_until < now())
              AND h.last_beat > now() - %(lost)s * interval '1 s'
              AND (a.rung_at IS NULL OR a.rung_at < now() - %(again)s * interval '1 s')
              AND NOT EXISTS (SELECT 1 FROM hud_task b WHERE b.accelerator_id = a.id AND b.state = 'running')
              AND EXISTS (SELECT 1 FROM hud_task q WHERE q.run_id = r.id AND q.state = 'queued')
            GROUP BY a.id
            """,
            {"lost": settings.HUD_LOST_S, "again": settings.HUD_RING_S},
        )
        waiting = cursor.fetchall()
    accelerators = Accelerator.objects.in_bulk([row[0] for row in waiting])
    return sum(ring(accelerators[pk], uuid.UUID(run_uid)) for pk, run_uid in waiting)
