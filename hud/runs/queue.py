"""The queue: progress of runs, the order of service, and why each one waits and for how long.

Times are estimated from earlier tasks of the same kind.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TypeAlias

from django.conf import settings
from django.db.models import Count, OuterRef, Subquery
from django.utils import timezone

from hud.hosts.registration import state_of, visible_accelerators
from hud.models import ACTIVE, RUN_CLASSES, Accelerator, Run, RunClass, State, Task
from hud.runs import matching
from hud.runs.matching import ResourceRequest
from hud.sql import fetch, fetch_tuples, int_array
from hud.states.fair_share import WaitingRun, expected_starts
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec

SHOWN_RUNS = 50

# Processes per task; format with an alias that has a run_id.
_PROCESSES = """(
    SELECT CASE WHEN base_interpreter = '' THEN 1 WHEN caches <> 'pinned' THEN 2
        ELSE 2 + 4 * (selection->>'repeats')::int END
    FROM hud_run LEFT JOIN hud_runrequest ON run_id = id WHERE id = {}.run_id
)"""
# An earlier task `p` of the same kind as the task `t`, and its seconds per process.
_ALIKE = """p.state = 'done' AND p.status = 'ok'
    AND p.spec->>'suite' = t.spec->>'suite' AND p.spec->>'case' = t.spec->>'case'
    AND p.spec->>'dtype' = t.spec->>'dtype' AND p.spec->>'mode' = t.spec->>'mode'
    AND p.spec->>'backend' = t.spec->>'backend' AND p.spec ? 'compilation' = t.spec ? 'compilation'"""
_SECONDS = f"extract(epoch FROM p.finished - p.started) / {_PROCESSES.format('p')}"
# Median seconds per process of earlier tasks of the same kind on the same device as the task `t`.
_USUAL = f"""
    LEFT JOIN LATERAL (
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY past.seconds) seconds
        FROM (
            SELECT {_SECONDS} seconds FROM hud_task p
            WHERE {_ALIKE} AND p.spec->>'device' = t.spec->>'device'
            ORDER BY p.id DESC LIMIT 10
        ) past
    ) usual ON true
"""  # noqa: S608 - constants of this file  # nosec B608


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    eta_s: float | None  # None: ended, or never measured before


def progress_of(run: Run) -> Progress:
    """Return the run's progress, with `eta_s` while each remaining task has a past one to estimate from."""
    tasks = Task.objects.filter(run=run).aggregate(done=Count("finished"), total=Count("pk"))
    remaining = _work(run.pk) if run.state in ACTIVE else []
    left_s = [
        inf if usual_s is None else max(usual_s * count - ran_s, 0.0)
        for *_run, count, ran_s, usual_s in remaining
    ]
    is_known = remaining and inf not in left_s
    return Progress(**tasks, eta_s=round(sum(left_s), 1) if is_known else None)


def usual_by_place(spec: TaskSpec) -> dict[tuple[int | None, str, str], float]:
    """Return how long a process of this kind took lately by host, device and arch, and under no host on any:
    the median of the last ten. 1 statement."""
    rows = fetch_tuples(
        f"""
        SELECT a.host_id, a.device, a.arch, ({_SECONDS})::float8
        FROM (SELECT %(spec)s::jsonb spec) t JOIN hud_task p ON {_ALIKE}
        JOIN hud_accelerator a ON a.id = p.accelerator_id
        ORDER BY p.id DESC LIMIT 100
        """,  # noqa: S608 - constants of this file  # nosec B608
        {"spec": json.dumps(spec.to_json())},
    )
    by_kind: dict[tuple[int | None, str, str], list[float]] = {}
    for host, device, arch, seconds in rows:
        for key in ((host, device, arch), (None, device, arch)):
            by_kind.setdefault(key, []).append(seconds)
    return {key: median(seconds[:10]) for key, seconds in by_kind.items()}


@dataclass(slots=True)
class QueueLine:
    run: int
    title: str
    state: str
    run_class: RunClass
    created: datetime
    requested_by: str
    host: str  # that was asked for; '' any
    arch: str
    device: str
    labels: dict[str, str]
    interpreter: str
    base_interpreter: str
    tasks: int
    done: int
    untaken: int  # tasks that nobody has claimed
    owner: str  # who asked, by page or by key
    served_s: float | None  # since a task of his was last claimed, negative
    need: int  # the first run that needs the same
    fits: frozenset[int] = frozenset()  # accelerators that could take it, now or later
    usable: frozenset[int] = frozenset()  # those of them that take work now
    position: int | None = None  # in the queue, 1 is next; None once it works
    starts_in_s: float | None = None  # None where it works already, or where nobody can say

    @property
    def watched(self) -> bool:
        """Return whether a person waits for it."""
        return self.run_class == "person"

    @property
    def queued(self) -> bool:
        return self.state == "queued"

    @property
    def order(self) -> tuple[float, int, datetime, int]:
        """Return the sort key of the queue: by expected start, those that nobody can tell last."""
        starts_in_s = inf if self.starts_in_s is None else self.starts_in_s
        return starts_in_s, RUN_CLASSES.index(self.run_class), self.created, self.run

    @property
    def wants(self) -> str:
        """Return the requested accelerators in words."""
        place = f"host {self.host}" if self.host else "any host"
        texts = [place, self.arch or self.device, *(f"{key}={text}" for key, text in self.labels.items())]
        pythons = [self.interpreter, self.base_interpreter]
        return ", ".join([*filter(None, texts), *(f"Python {name}" for name in pythons if name)])

    @property
    def hindrance(self) -> str:
        """Return why it cannot start now, or '' where only the queue is before it."""
        if not self.queued or self.usable:
            return ""
        return "no matching accelerator is available" if self.fits else "no attached accelerator matches"


# Remaining tasks of one kind of a run, a running one or all that wait: run, accelerator where it runs, tasks,
# seconds that they ran, usual seconds of one.
_Work: TypeAlias = tuple[int, int | None, int, float, float | None]


@dataclass(slots=True)
class Queue:
    lines: list[QueueLine] = field(default_factory=list)
    more: int = 0  # runs behind those
    running: int = 0  # runs of all
    waiting: int = 0
    tasks_for: Mapping[int, int] = field(default_factory=dict)  # that an accelerator may take, by its key


def read(limit: int = SHOWN_RUNS) -> Queue:
    """Return running runs, then waiting ones in the order of service: 3 statements."""
    lines = _read()
    lines.sort(key=lambda line: (line.queued, line.order))
    waiting = sum(line.queued for line in lines)
    untaken, tasks_for = Counter[int](), Counter[int]()
    for line in lines:
        untaken[line.need] += line.untaken
    for need, fits in {line.need: line.fits for line in lines}.items():
        tasks_for.update(dict.fromkeys(fits, untaken[need]))
    return Queue(lines[:limit], max(len(lines) - limit, 0), len(lines) - waiting, waiting, tasks_for)


def _read() -> list[QueueLine]:
    """Return the runs that have not ended, with positions and expected starts: 3 statements."""
    lines = _lines()
    rows = _places({line.need for line in lines})
    places = {run: (frozenset(fits), frozenset(usable)) for run, fits, usable, _counts in rows}
    for line in lines:
        line.fits, line.usable = places.get(line.need, (line.fits, line.usable))
    nights = {
        place: count for *_, usable, counts in rows for place, count in zip(usable, counts, strict=True)
    }
    _estimate(lines, _work(), nights)
    return lines


def _estimate(lines: Sequence[QueueLine], work: Sequence[_Work], nights: Mapping[int, int]) -> None:
    """Set the start and then the position of each queued run. `nights` are tasks of accelerators since the
    last of a night."""
    free_in_s = {place: 0.0 for line in lines for place in line.usable}
    left: dict[int, list[tuple[int, float]]] = defaultdict(list)  # tasks that wait, and seconds of one
    for run, place, tasks, ran_s, usual_s in work:
        task_s = inf if usual_s is None else usual_s
        if place is None:
            left[run].append((tasks, task_s))
        else:
            free_in_s[place] = max(task_s - ran_s, 0.0)
    waiting = [
        WaitingRun(
            line.run,
            line.run_class,
            line.owner,
            line.created.timestamp(),
            tasks=(count := sum(tasks for tasks, _s in left[line.run])),
            task_s=sum(tasks * task_s for tasks, task_s in left[line.run]) / max(count, 1),
            places=line.usable,
            began=not line.queued,
        )
        for line in lines
    ]
    served = {(line.run_class, line.owner): line.served_s for line in lines if line.served_s is not None}
    starts = expected_starts(waiting, free_in_s, served, nights)
    queued = [line for line in lines if line.queued]
    for line in queued:
        line.starts_in_s = round(starts[line.run], 1) if line.run in starts else None
    needs = {line.need: line.fits for line in queued}
    rivals = {one: {two for two in needs if not needs[one].isdisjoint(needs[two])} for one in needs}
    for line in queued:
        before = (other.need for other in queued if other.order < line.order)
        line.position = 1 + sum(need in rivals[line.need] for need in before)


def _lines() -> list[QueueLine]:
    return fetch(
        QueueLine,
        f"""
        SELECT r.id run, r.title, r.state, q.run_class, r.created, q.requested_by,
            coalesce(wanted.name, '') host, q.arch, q.device, q.labels::json, r.interpreter,
            r.base_interpreter, tasks.n tasks, tasks.done, tasks.untaken, {matching.OWNER} owner,
            extract(epoch FROM turn.at - now())::float8 served_s,
            min(r.id) OVER (PARTITION BY {matching.NEED}) need
        FROM hud_run r JOIN hud_runrequest q ON q.run_id = r.id
        LEFT JOIN hud_host wanted ON wanted.id = q.host_id {matching.TURNS}
        CROSS JOIN LATERAL (
            SELECT count(*) n, count(finished) done, count(*) FILTER (WHERE state = 'queued') untaken
            FROM hud_task WHERE run_id = r.id
        ) tasks
        WHERE r.state IN ('queued', 'running')
        """,  # noqa: S608 - constants of ours  # nosec B608
        {},
    )


def _places(runs: Collection[int]) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Return the accelerators that fit each run, those of them that take work now, and how many tasks each of
    these had since its last of a night."""
    return fetch_tuples(
        f"""
        SELECT r.id, array_agg(a.id), coalesce(array_agg(a.id) FILTER (WHERE takes), '{{}}'),
            coalesce(array_agg(a.since_night) FILTER (WHERE takes), '{{}}')
        FROM hud_run r JOIN hud_runrequest q ON q.run_id = r.id
        JOIN hud_accelerator a ON true JOIN hud_host h ON h.id = a.host_id AND {matching.FITS}
        CROSS JOIN LATERAL (SELECT {matching.OPEN} AND {matching.HEARD} takes) now
        WHERE r.id = ANY(%(runs)s::int[]) GROUP BY r.id
        """,  # noqa: S608 - constants of ours  # nosec B608
        {"runs": int_array(runs), "lost": settings.HUD_LOST_S},
    )


def _work(run: int | None = None) -> list[_Work]:
    """Return the tasks that have not ended, of one run or of all."""
    return fetch_tuples(
        f"""
        WITH work AS (
            SELECT t.run_id, CASE WHEN t.state = 'running' THEN t.accelerator_id END accelerator_id,
                jsonb_build_object('suite', t.spec->'suite', 'case', t.spec->'case',
                    'dtype', t.spec->'dtype', 'device', t.spec->'device',
                    'mode', t.spec->'mode', 'backend', t.spec->'backend')
                    || CASE WHEN t.spec ? 'compilation' THEN '{{"compilation": 1}}' ELSE '{{}}' END::jsonb
                    spec,
                count(*) tasks,
                coalesce(sum(extract(epoch FROM now() - t.started)) FILTER (WHERE t.state = 'running'), 0)
                    running_s
            FROM hud_task t
            WHERE t.state IN ('queued', 'running') AND t.run_id = coalesce(%(run)s, t.run_id)
            GROUP BY 1, 2, 3
        ), kinds AS (SELECT DISTINCT spec FROM work)
        SELECT work.run_id run, work.accelerator_id accelerator, work.tasks, work.running_s::float8,
            known.seconds * {_PROCESSES.format("work")} usual_s
        FROM work JOIN (SELECT t.spec, usual.seconds FROM kinds t {_USUAL}) known USING (spec)
        """,  # noqa: S608 - constants of this file  # nosec B608
        {"run": run},
    )


@dataclass(slots=True)
class Occupation:
    """The state of a host, or of one of its accelerators, that could take the run."""

    name: str  # of the host, with its accelerator where only that one is meant
    state: str  # lost, paused, drained, dirty, busy or idle
    since: datetime | None = None  # when a lost host was last heard
    until: datetime | None = None  # of a pause
    note: str = ""
    run: int | None = None  # that it is busy with


@dataclass(slots=True)
class QueuedRun:
    position: int  # in the queue, 1 is next
    starts_in_s: float | None  # None where nobody can say
    places: list[Occupation] = field(default_factory=list)
    lacking: str = ""  # why no attached accelerator could ever take it

    @property
    def open(self) -> bool:
        """Return whether a matching accelerator takes work now, so that only the queue is before it."""
        return any(place.state in ("busy", "idle") for place in self.places)


def read_waiting(run: Run) -> QueuedRun | None:
    """Return why a queued run waits, or None once it has started: 4 statements, 5 where nothing fits it."""
    if run.state != State.QUEUED:
        return None
    line = next((line for line in _read() if line.run == run.pk and line.queued), None)
    if line is None:
        return None
    waiting = QueuedRun(line.position or 1, line.starts_in_s, _occupations(line.fits))
    if not waiting.places:
        asked = run.request
        resources = ResourceRequest(
            asked.device, asked.host, asked.arch, asked.labels, run.interpreter, run.base_interpreter
        )
        suites = {asked.selection.get("suite", "")}
        _able, why = matching.eligible_accelerators(resources, suites, visible_accelerators())
        waiting.lacking = why or "no attached accelerator matches"
    return waiting


def _occupations(ids: Collection[int]) -> list[Occupation]:
    now = timezone.now()
    working = Task.objects.filter(accelerator=OuterRef("pk"), state=Task.State.RUNNING)
    accelerators = (
        Accelerator.objects.filter(pk__in=ids)
        .select_related("host")
        .annotate(busy_with=Subquery(working.values("run")[:1]))
        .order_by("host__name", "name")
    )
    occupations: dict[tuple[str, str], Occupation] = {}  # one line for what holds for a whole host
    for accelerator in accelerators:
        host = accelerator.host
        state = state_of(host, now)
        if state == "lost":
            line = Occupation(host.name, state, since=host.last_beat)
        elif state in ("paused", "drained"):
            until = host.paused_until if state == "paused" else None
            line = Occupation(host.name, state, until=until, note=host.note)
        elif accelerator.hindrance:
            line = Occupation(f"{host.name} {accelerator.name}", "dirty", note=accelerator.hindrance)
        else:
            state = "busy" if accelerator.busy_with else "idle"
            line = Occupation(f"{host.name} {accelerator.name}", state, run=accelerator.busy_with)
        occupations[line.name, line.state] = line
    return list(occupations.values())
