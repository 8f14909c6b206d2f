"""Match accelerators and runs: one rule for claims, wake-ups, queue positions and refused requests.

Idle accelerators are woken with an RQ job that names a waiting task; which one they get, they claim over
HTTP. `manage.py tick` repeats a lost wake-up; a superfluous one finds nothing to claim.

Series stay on their cards: a task waits a while for the card on which its kind was last measured, since two
cards of one kind differ by 1 %, more than many changes that are searched for. In the SQL `a` is the
accelerator, `h` its host, `r` the run and `q` the run's request.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from django.conf import settings
from django.db.models.functions import Now
from redis.exceptions import RedisError, ResponseError
from rq import Queue
from rq.serializers import JSONSerializer

from hud.hosts import queues, redis_users
from hud.hosts.registration import unavailable_suites
from hud.models import RUN_CLASSES, Accelerator, Host, Run, Task
from hud.sql import execute, fetch_tuples
from hud.states.fair_share import NIGHT_EVERY
from runner.schema.protocol import FUNCTION, overlay_of, sign
from runner.schema.suite import TaskSpec, suite_of
from runner.suites import CEILINGS

OVERLAID = "@[0-9a-f]{40}$"  # names of interpreters with an overlay
# The accelerator could take a task of the run, now or later. While the host that the run began on is there,
# another one only with the same torch and Triton, where it says so.
FITS = f"""
    (a.present AND h.detached_at IS NULL
    AND q.device = a.device AND q.arch IN ('', a.arch) AND (q.host_id IS NULL OR q.host_id = a.host_id)
    AND a.labels @> q.labels
    AND a.catalog->'suites' ? (q.selection->>'suite')
    AND (r.interpreter = '' OR a.catalog->'pythons' ? regexp_replace(r.interpreter, '{OVERLAID}', ''))
    AND (r.base_interpreter = ''
        OR a.catalog->'pythons' ? regexp_replace(r.base_interpreter, '{OVERLAID}', ''))
    AND NOT EXISTS (
        SELECT FROM jsonb_each(q.fingerprints) AS begun(python, interpreter)
        JOIN hud_host b ON b.id = (interpreter->>'host')::int AND b.id <> h.id
        WHERE b.detached_at IS NULL AND b.last_beat > clock_timestamp() - interval '10 min'
            AND NOT h.facts->'pythons'->begun.python->'fingerprint'
                @> (interpreter - '{{host,packages}}'::text[])))
"""
# What FITS and OPEN read of a run: those that are alike in it fit the same.
NEED = """q.device, q.arch, q.host_id, q.labels, q.selection->>'suite', r.interpreter, r.base_interpreter,
    q.fingerprints"""
# Accelerators, each with the unended runs that it fits.
FITTING_RUNS = f"""
    hud_accelerator a JOIN hud_host h ON h.id = a.host_id
    JOIN hud_run r ON r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
    JOIN hud_runrequest q ON q.run_id = r.id AND {FITS}
"""
# The accelerator may be given new tasks of the run now; one in quarantine only its canaries.
OPEN = f"""
    (a.unavailable_reason = '' AND NOT h.drained
    AND (a.quarantine_reason = '' OR q.selection->>'suite' = '{CEILINGS}')
    AND (h.paused_until IS NULL OR h.paused_until <= clock_timestamp()))
"""
# Its host sent a heartbeat within the last `lost` seconds.
HEARD = "(h.last_beat > clock_timestamp() - %(lost)s * interval '1 s')"
# Who asked, by page or by key, and when a task of his was last claimed.
OWNER = "split_part(q.requested_by, ', key ', 1)"
TURNS = f"LEFT JOIN hud_turn turn ON turn.run_class = q.run_class AND turn.owner = {OWNER}"
# `next_run` of hud.states.fair_share, of all accelerators alike: tests compare them.
ORDER = f"""
    (q.run_class = 'night' AND a.since_night >= {NIGHT_EVERY - 1}) DESC,
    array_position('{{{",".join(RUN_CLASSES)}}}', q.run_class::text), turn.at NULLS FIRST, r.created, r.id
"""
_TTL_S = 120  # a job that no host has taken by then is stale; `manage.py tick` rings again
_LOOK_BACK = 5000  # tasks of the stream
_KIND = "spec - '{compilation,timeout_s}'::text[]"  # of a task: what it measures
# Task t may go to accelerator a: it has no card, or this one, or its own cannot take it, or did not within
# the bound since another card was free for it.
MAY_GO = f"""
    (t.home_id IS NULL OR t.home_id = a.id
    OR t.passed_at <= clock_timestamp() - %(same_card)s * interval '1 s'
    OR NOT EXISTS (
        SELECT FROM (SELECT * FROM hud_accelerator WHERE id = t.home_id) a
        JOIN hud_host h ON h.id = a.host_id WHERE {FITS} AND {OPEN} AND {HEARD}))
"""  # noqa: S608 - constants of ours  # nosec B608
_QUEUED = "state = 'queued' AND (run_id = %(run)s OR %(run)s IS NULL)"
# Idle accelerators, each with a task, and how many tasks wait: first those on which they were measured last,
# then who was rung longest ago. It ends at the first run that fits, since a fleet has thousands.
_WAITING = f"""
    SELECT a.id, a.host_id, waiting.uid, (SELECT count(*) FROM hud_task WHERE {_QUEUED})
    FROM hud_accelerator a JOIN hud_host h ON h.id = a.host_id
    CROSS JOIN LATERAL (
        SELECT t.uid::text FROM hud_run r JOIN hud_runrequest q ON q.run_id = r.id
        CROSS JOIN LATERAL (SELECT uid FROM hud_task WHERE run_id = r.id AND state = 'queued' LIMIT 1) t
        WHERE r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
            AND (r.id = %(run)s OR %(run)s IS NULL) AND {FITS} AND {OPEN}
        LIMIT 1
    ) waiting
    WHERE {HEARD}
        AND (a.rung_at IS NULL OR a.rung_at > clock_timestamp()
            OR a.rung_at < clock_timestamp() - %(again)s * interval '1 s')
        AND NOT EXISTS (SELECT FROM hud_task WHERE accelerator_id = a.id AND state = 'running')
    ORDER BY EXISTS (SELECT FROM hud_task WHERE home_id = a.id AND {_QUEUED}) DESC, a.rung_at NULLS FIRST
"""  # noqa: S608 - constants of ours  # nosec B608
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResourceRequest:
    """The accelerator that a run needs; '' and None mean any."""

    device: str  # cuda or cpu
    host: Host | None = None
    arch: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""  # by name
    base_interpreter: str = ""  # the baseline of an A/B comparison


def eligible_accelerators(
    request: ResourceRequest, suites: set[str], accelerators: Sequence[Accelerator]
) -> tuple[list[Accelerator], str]:
    """Return the accelerators that could take such a run, and the reason if none could."""
    if not accelerators:
        return [], "no host is attached; attach one with: python -m runner attach --hud URL --token TOKEN"
    left = [item for item in accelerators if request.host is None or item.host_id == request.host.pk]
    if request.host and not left:
        return [], f"host {request.host.name} is not attached"
    whose = f"host {request.host.name}" if request.host else "no attached host"
    fulfilled: list[str] = []
    for text, wanted, offered in _needs(request, suites):
        able = [item for item in left if wanted <= offered(item)]
        if not able:
            such = f" with {' and '.join(fulfilled)}" if fulfilled else ""
            lacks = "has not" if request.host else "has"
            reasons = [unavailable_suites(item.host.facts) for item in left] if wanted is suites else []
            why = "; ".join(sorted({reason[name] for reason in reasons for name in wanted if name in reason}))
            there = ", ".join(sorted(set().union(*map(offered, left)))) or "nothing"
            return [], f"{whose}{such} {lacks} {text}{why and f' ({why})'}; there are: {there}"
        left = able
        fulfilled.append(text)
    return left, ""


def _needs(
    request: ResourceRequest, suites: set[str]
) -> Iterator[tuple[str, set[str], Callable[[Accelerator], set[str]]]]:
    """Yield each need in the order of the checks: its text, the wanted words, and a reader of the offered."""
    if request.arch:
        yield f"arch {request.arch}", {request.arch}, lambda item: {item.arch}
    yield f"device {request.device}", {request.device}, lambda item: {item.device}
    for key, value in sorted(request.labels.items()):
        label = f"{key}={value}"
        yield f"the label {label}", {label}, partial(_label, key=key)
    for name in filter(None, (request.interpreter, request.base_interpreter)):
        plain = overlay_of(name)[0]
        yield f"an interpreter called {plain}", {plain}, lambda item: set(item.catalog.get("pythons", []))
    text = f"the suite {', '.join(sorted(suites))}"
    yield text, suites, lambda item: set(item.catalog.get("suites", []))


def _label(item: Accelerator, key: str) -> set[str]:
    return {f"{key}={item.labels[key]}"} if key in item.labels else set()


def reasons_of(suites: Iterable[str], there: Sequence[Accelerator]) -> dict[str, str]:
    """Return the reason for each suite that none of these accelerators' hosts offers; {} without any."""
    lacks = {name: why for item in there for name, why in unavailable_suites(item.host.facts).items()}
    offered = {name for item in there for name in item.catalog.get("suites", [])}
    missing = set(suites) - offered if there else set()
    return {name: lacks.get(name, "no attached host offers it") for name in missing}


def missing_packages(
    specs: Sequence[TaskSpec], accelerators: Iterable[Accelerator], interpreters: Iterable[str] = ()
) -> str:
    """Return why none of these tasks can start on these accelerators for want of a package, '' if one can.

    `interpreters` are those that the run names; without any, one of each host has to fit. A host that does
    not say what its interpreters have may have everything.
    """
    named = [overlay_of(name)[0] for name in interpreters if name]
    groups: list[list[set[str] | None]] = []  # packages of interpreters, of which one has to fit
    for item in accelerators:
        pythons = item.host.facts.get("pythons", {})
        modules = {name: facts.get("modules") for name, facts in pythons.items() if "error" not in facts}
        packages = {name: None if known is None else set(known) for name, known in modules.items()}
        groups += [[packages[name]] for name in named if name in packages] or [list(packages.values())]
    missing: dict[str, set[str]] = {}
    for spec in specs:
        needs = set(suite_of(spec.suite).packages_of(spec))
        unmet = [[set() if known is None else needs - known for known in group] for group in groups]
        lacks = [min(group, key=len, default=set()) for group in unmet]
        if not lacks or not all(lacks):
            return ""
        missing[f"{spec.suite}/{spec.case}"] = min(lacks, key=len)
    task, lacking = next(iter(missing.items()), ("", set()))
    return f"no attached host has {' and '.join(sorted(lacking))}, which {task} needs" if task else ""


def assign_cards(run: Run) -> None:
    """Give each task of a new run the card of the newest task of its stream that measured the same: 1
    statement. A processor is no card."""
    if not settings.HUD_SAME_CARD_S:
        return
    execute(
        f"""
        UPDATE hud_task t SET home_id = past.accelerator_id FROM (
            SELECT DISTINCT ON (kind) kind, accelerator_id FROM (
                SELECT p.id, p.{_KIND} AS kind, p.accelerator_id FROM hud_task p
                JOIN hud_run r ON r.id = p.run_id AND r.stream_id = %(stream)s
                WHERE p.state = 'done' AND p.status = 'ok' ORDER BY p.id DESC LIMIT {_LOOK_BACK}
            ) p JOIN hud_accelerator a ON a.id = p.accelerator_id AND a.uuid <> ''
            ORDER BY kind, p.id DESC
        ) past
        WHERE t.run_id = %(run)s AND t.{_KIND} = past.kind
        """,  # noqa: S608 - constants of this file  # nosec B608
        {"run": run.pk, "stream": run.stream_id},
    )


def note_turn(task: Task) -> None:
    """Note whose task an accelerator has just taken."""
    execute(
        f"""
        WITH asked AS (SELECT q.run_class, {OWNER} AS owner FROM hud_runrequest q WHERE q.run_id = %(run)s),
        nights AS (
            UPDATE hud_accelerator a
            SET since_night = CASE WHEN asked.run_class = 'night' THEN 0 ELSE a.since_night + 1 END
            FROM asked WHERE a.id = %(accelerator)s)
        INSERT INTO hud_turn (run_class, owner, at) SELECT run_class, owner, clock_timestamp() FROM asked
        ON CONFLICT (run_class, owner) DO UPDATE SET at = excluded.at
        """,  # noqa: S608 - constants of ours  # nosec B608
        {"run": task.run_id, "accelerator": task.accelerator_id},
    )


def pass_over(accelerator_id: int) -> None:
    """Note that an accelerator was free for tasks that wait for their cards: from now on the bound counts."""
    execute(
        f"""
        UPDATE hud_task SET passed_at = clock_timestamp() WHERE id IN (
            SELECT t.id FROM {FITTING_RUNS}
            JOIN hud_task t ON t.run_id = r.id AND t.state = 'queued' AND t.passed_at IS NULL
            WHERE a.id = %(accelerator)s AND {OPEN} AND t.home_id <> a.id
            FOR UPDATE OF t SKIP LOCKED)
        """,  # noqa: S608 - constants of ours  # nosec B608
        {"accelerator": accelerator_id},
    )


def elsewhere(task: Task) -> str:
    """Return what to know of a claimed task's numbers if another card measured its series last, else ''."""
    home, now = task.home, task.accelerator
    if home is None or now is None or home.pk == now.pk:
        return ""
    last = f"{home.host.name} {home.name}"
    return f"measured on another card, {now.host.name} {now.name}, than last time ({last})"


def ring_idle(*, again_s: float | None = None, run_id: int | None = None) -> int:
    """Wake idle accelerators that have queued work, of one run or of any, and were not woken for `again_s`
    (default HUD_RING_S), as many as there are tasks; return how many. This makes up for wake-ups that an
    outage of Redis or a crash after the commit lost. It stops where Redis does not answer, so that an outage
    costs one time-out."""
    again_s = settings.HUD_RING_S if again_s is None else again_s
    waiting = fetch_tuples(_WAITING, {"run": run_id, "lost": settings.HUD_LOST_S, "again": again_s})
    rung = list[int]()
    try:
        with queues.connect() as redis:
            for pk, host, task, tasks in waiting:
                if len(rung) == tasks:
                    break
                queue = Accelerator(pk=pk, host_id=host).queue
                job_id = f"host-{host}-{uuid.uuid4()}"  # the host's Redis user may touch it
                digest = redis_users.key_digest_of(host) or ""
                try:
                    Queue(queue, connection=redis, serializer=JSONSerializer).enqueue(
                        FUNCTION,
                        task,
                        job_id=sign(job_id, task, key_digest=digest, queue=queue),
                        job_timeout=-1,
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
