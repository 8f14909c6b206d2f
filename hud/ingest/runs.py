"""Find or make the runs of an upload, and keep what measurements refer to while they are stored."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from operator import attrgetter
from uuid import UUID, uuid4, uuid5

from django.db import OperationalError, transaction
from django.db.models import Q
from django.utils import timezone as clock
from psycopg.errors import DeadlockDetected, LockNotAvailable

from hud.accounts.keys import effective_scopes
from hud.models import ApiKey, Correction, Run, State, Upload
from hud.problems import Problem
from hud.runs.streams import may_write
from hud.sql import execute
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement, RunKey
from runner.formats.parameters import PLAUSIBLE, Parameters, is_plausible, parse_time
from runner.formats.readers.v3 import OURS
from runner.formats.scalars import branch_name, nfc, text
from runner.schema.compilations import COMPILATION
from runner.schema.devices import DEVICE_KINDS
from runner.schema.draws import PairPlace, pair_place
from runner.schema.records import Record, first_runner, object_of
from runner.schema.tasks import CANCELLED

_MAX_NUMBER = 10_000  # of a process
_MAX_COMPILATIONS = 2**15  # that the column of their number holds
_ENDS = (  # the first that applies to a result, as in `hud/states/runs.py`
    (State.CANCELLED, {"not_run"}),
    (State.TIMED_OUT, {"timed_out"}),
    (State.FAILED, {"wrong", "impossible", "oom", "crashed", "failed"}),
)


# columns of a run that its key has under the same name
_OF_KEY = (
    "source", "external_id", "repo", "branch", "commit", "order_time_source", "interpreter",
    "base_interpreter",
)  # fmt: skip


def run_of(record: Record, parameters: Parameters, *, any_time: bool) -> tuple[RunKey, PairPlace]:
    """Return a record's run and its repeat, side and draw there. Raise WrongRecord for a place that no A/B
    comparison has, a wrong number of a compilation, or a time that an upload cannot have, unless `any_time`.
    """
    time, compilation = from_epoch(record.timestamp), _compilation_of(record)
    if time and not (any_time or is_plausible(time)):
        raise WrongRecord("/timestamp", f"{time.isoformat()} is not {PLAUSIBLE}")
    runner = first_runner(record)
    facts = object_of(runner.get("extra_info"))
    try:
        place = pair_place(facts.get("pair"))
    except ValueError as error:
        raise WrongRecord("/runners/0/extra_info/pair", str(error)) from error
    base, head = (text(facts["pair"].get(name))[:60] if place else "" for name in ("base", "new"))
    process = facts.get("process")
    number = process if type(process) is int and 0 <= process < _MAX_NUMBER else compilation
    # one process of several, which share the time of their run
    is_numbered = bool(base and head) or number is not None
    if not (place and base and head):
        base = head = ""
        place = PairPlace(number or 0, 0)
    name = text(runner.get("name"))
    host = "" if name in DEVICE_KINDS else name  # some scripts write the kind of device there
    external_id = None
    if record.workflow_id not in (None, 0, "0", ""):
        external_id = f"{record.workflow_id}/{record.job_id or 0}/{record.run_attempt or 1}"[:200]
    commit_time = parse_time(parameters.commit_date) if parameters.commit_date else None
    run_time = time or (parse_time(parameters.run_time) if parameters.run_time else None)
    run = RunKey(
        source=nfc(parameters.source or record.benchmark.name)[:100],
        external_id=external_id or parameters.run_id or None,
        host=nfc(host or parameters.host)[:200],
        commit=(record.head_sha or parameters.commit)[:64],
        branch=branch_name(record.head_branch or parameters.branch),
        repo=nfc(record.repo or parameters.repo)[:200],
        order_time=commit_time or run_time,
        order_time_source="commit" if commit_time else "run" if run_time else "upload",
        interpreter=head,
        base_interpreter=base,
        # a workflow's job has one result for each experiment and metric
        point_time=None if commit_time or external_id or is_numbered else time,
    )
    return run, place


def _compilation_of(record: Record) -> int | None:
    number: int | None = (record.metric.extra_info or {}).get(COMPILATION)
    if number is not None and not (type(number) is int and 0 <= number < _MAX_COMPILATIONS):
        detail = f"a compilation is a whole number from 0 to {_MAX_COMPILATIONS - 1}"
        raise WrongRecord(f"/metric/extra_info/{COMPILATION}", detail)
    return number


def from_epoch(moment: float | None) -> datetime | None:
    """Read seconds since 1970, or the milliseconds that some uploaders write; None and 0 are no time. Raise
    WrongRecord for a time that no calendar has."""
    if not moment:
        return None
    try:
        return datetime.fromtimestamp(moment / 1000 if moment > 1e11 else moment, tz=timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise WrongRecord("/timestamp", f"{moment:g} is no time in seconds since 1970") from error


def _end_of(items: Sequence[ParsedMeasurement]) -> tuple[State, str]:
    """Return how a run of our runner ended, by its results, and the reason; other systems do not say."""
    run = items[0].run
    for state, statuses in _ENDS if run.source.startswith(OURS) and not run.uid else ():
        for item in items:
            if item.status in statuses and (item.status != "not_run" or item.code == CANCELLED):
                return state, f"{item.case}: {item.message or item.status}"[:500]
    return State.SUCCEEDED, ""


@dataclass
class Runs:
    """The runs of one upload or delivery. `closed` are runs of this hud's runner, of other streams, and those
    of other people that it names by their uid, which an upload (of an export, say) may repeat but not add to;
    `grown` are those that may have measurements already, `known` those that were stored before."""

    parameters: Parameters
    upload: Upload | None = None  # None: a host's delivery, whose run is known
    key: ApiKey | None = None  # None: the command line
    by_key: dict[RunKey, Run] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    grown: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    partial: str = ""  # why the upload's file is not whole

    @property
    def ids(self) -> set[int]:
        return {run.pk for run in self.by_key.values()}

    def resolve(self, measurements: Sequence[ParsedMeasurement], partial: str = "") -> None:
        """Find or make the runs of these measurements. A new run gets their earliest time, and `partial`, why
        their file is not whole: then its points shape no level, night, best, newest or trend."""
        self.partial = partial
        self.grown |= self.ids
        of_runs: dict[RunKey, list[ParsedMeasurement]] = {}
        for item in measurements:
            of_runs.setdefault(item.run, []).append(item)
        new = of_runs.keys() - self.by_key.keys()
        for key in sorted(new, key=lambda run: (run.source, run.external_id or "", run.host, run.commit)):
            self.by_key[key] = self._find_or_make(of_runs[key], UUID(key.uid) if key.uid else None)
        for key, items in of_runs.items():
            if self.by_key[key].is_ab:  # a comparison has one point for each side, whatever the times say
                for item in items:
                    item.run = replace(item.run, point_time=None)

    def _find_or_make(self, items: Sequence[ParsedMeasurement], uid: UUID | None) -> Run:
        """Return the run of all these measurements of an upload, which may name it by its uid."""
        assert self.upload
        timed = (item.run for item in items if item.run.order_time)
        key = min(timed, key=attrgetter("order_time"), default=items[0].run)
        state, reason = _end_of(items)
        suites, now = sorted({item.suite for item in items}), clock.now()
        new = Run(
            uid=uid or uuid4(),
            state=state,
            reason=reason or (f"the file is not whole: {self.partial}" if self.partial else ""),
            rerun=bool(self.partial),
            title=f"{key.source}: {', '.join(suites)}"[:300],
            host_name=key.host,
            upload=self.upload,
            stream=self.upload.stream,
            provenance=self.parameters.provenance,
            order_time=key.order_time or now,
            started=now,
            finished=now,
            **{name: getattr(key, name) for name in _OF_KEY},
        )
        if not (uid or key.external_id):  # nothing names it, so that it is a new one
            Run.objects.bulk_create([new])
            return new
        # two uploads may bring a new run at the same moment: the second waits here, then finds it
        Run.objects.bulk_create([new], ignore_conflicts=True)
        natural = {name: getattr(new, name) for name in Run.IDENTITY if name != "stream"}
        is_it = Q(uid=new.uid) | Q(stream=self.upload.stream, external_id__isnull=False, **natural)
        known = Run.objects.select_related("upload__key", "stream").defer("upload__receipt").filter(is_it)
        run = min(known, key=lambda run: run.uid != new.uid)
        is_foreign = run.stream_id != self.upload.stream_id
        if is_foreign and (self.parameters.stream or not may_write(run.stream, self.key)):
            # the same run in two streams is stored twice
            return self._find_or_make(items, uuid5(run.uid, f"stream {self.upload.stream_id}"))
        if uid or run.uid != new.uid:
            _check_not_corrected(run)
            self.known.add(run.pk)
            self.grown.add(run.pk)
        if is_foreign or not self._may_add_to(run.upload):
            self.closed.add(run.pk)
        elif more := [suite for suite in suites if suite not in run.title]:
            Run.objects.filter(pk=run.pk).update(title=", ".join([run.title, *more])[:300])
        return run

    def _may_add_to(self, upload: Upload | None) -> bool:
        """Return whether to add to the run of an upload: its uid and what else names it are public."""
        if upload is None:
            return False
        if self.key is None or upload == self.upload:
            return True
        if upload.key_id == self.key.pk or "run" in effective_scopes(self.key):
            return True
        return upload.key is not None and upload.key.owner_id in {self.key.owner_id} - {None}


def _check_not_corrected(run: Run) -> None:
    """Raise Problem 503 while series of the run's stream are renamed or merged in parts: an upload would not
    find what is stored of the run under its name, and its values would be taken for the others'."""
    of_stream = Q(arguments__stream=run.stream_id) | Q(arguments__into=run.stream_id)
    unfinished = Correction.objects.filter(of_stream | Q(action="rename"), finished=None)
    if row := unfinished.first():
        detail = f"a run of this upload is changed by correction {row.pk}, {row.subject}: send it after that"
        raise Problem(503, detail, retry_after_s=30, correction=row.pk)


_REFERENCES = 4_170_226_001  # number of the advisory lock, of no meaning
_WAIT = "10s"


def keep_references() -> None:
    """Keep runs, series and uploads from being removed or merged until the transaction ends. The database
    does not check the references of measurements."""
    execute("SELECT pg_advisory_xact_lock_shared(%s)", [_REFERENCES])


@contextmanager
def changing_references() -> Iterator[None]:
    """Open a transaction that may remove or merge what measurements refer to. Raise Problem 503 if it has to
    wait for longer than 10 s, since uploads wait behind it."""
    try:
        with transaction.atomic():
            execute(f"SET LOCAL lock_timeout = '{_WAIT}'")
            execute("SELECT pg_advisory_xact_lock(%s)", [_REFERENCES])
            yield
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
            detail = "an upload is being stored or a correction under way; try again"
            raise Problem(503, detail, retry_after_s=30) from error
        raise
