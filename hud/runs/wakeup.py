"""Wake idle accelerators with an RQ job that names a waiting task; which one they get, they claim over HTTP.

`manage.py tick` repeats a lost wake-up; a superfluous one finds nothing to claim.
"""

import logging
import uuid

from django.conf import settings
from django.db.models.functions import Now
from redis.exceptions import RedisError, ResponseError
from rq import Queue
from rq.serializers import JSONSerializer

from hud.hosts import queues, redis_users
from hud.models import Accelerator
from hud.runs import matching
from hud.sql import fetch_tuples
from runner.schema.protocol import FUNCTION, sign

logger = logging.getLogger(__name__)
_TTL_S = 120  # a job that no host has taken by then is stale; tick rings again


_WAITING = f"""
    SELECT a.id, min(t.uid::text) FROM {matching.FITTING_RUNS}
    JOIN LATERAL (SELECT uid FROM hud_task WHERE run_id = r.id AND state = 'queued' LIMIT 1) t ON true
    WHERE {matching.OPEN} AND {matching.HEARD}
      AND (r.id = %(run)s OR %(run)s IS NULL)
      AND (a.rung_at IS NULL OR a.rung_at > clock_timestamp()
        OR a.rung_at < clock_timestamp() - %(again)s * interval '1 s')
      AND NOT EXISTS (SELECT 1 FROM hud_task WHERE accelerator_id = a.id AND state = 'running')
    GROUP BY a.id
"""  # noqa: S608 - constants of ours  # nosec B608


def ring_for(run_id: int) -> int:
    """Wake every idle accelerator that could take a task of this run now; return how many."""
    return ring_idle(again_s=0, run_id=run_id)


def ring_idle(*, again_s: float | None = None, run_id: int | None = None) -> int:
    """Wake each idle accelerator that has queued work and was not woken for `again_s` (default HUD_RING_S);
    return how many. This makes up for wake-ups that an outage of Redis or a crash after the commit lost. It
    stops where Redis does not answer, so that an outage costs one time-out."""
    again_s = settings.HUD_RING_S if again_s is None else again_s
    waiting = fetch_tuples(_WAITING, {"run": run_id, "lost": settings.HUD_LOST_S, "again": again_s})
    accelerators = Accelerator.objects.in_bulk([row[0] for row in waiting])
    rung = []
    try:
        with queues.connect() as redis:
            for pk, task in waiting:
                accelerator = accelerators[pk]
                host, queue = accelerator.host_id, accelerator.queue
                job_id = f"host-{host}-{uuid.uuid4()}"  # the host's Redis user may touch it
                digest = redis_users.key_digest_of(host) or ""
                try:
                    Queue(queue, connection=redis, serializer=JSONSerializer).enqueue(
                        FUNCTION,
                        task,
                        job_id=sign(job_id, task, key_digest=digest, queue=queue),
                        job_timeout=-1,
                        result_ttl=0,
                        failure_ttl=3600,
                        ttl=_TTL_S,
                    )
                except ResponseError as error:  # such as where the host made something else of its queue
                    logger.warning("%s could not be woken: %s", queue, error)
                    continue
                rung.append(pk)
    except (RedisError, OSError) as error:
        logger.warning("accelerators could not be woken: %s", error)
    Accelerator.objects.filter(pk__in=rung).update(rung_at=Now())
    return len(rung)
