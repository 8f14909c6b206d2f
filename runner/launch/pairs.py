"""Run a task once, or as a pair: a fresh process of each of two environments, base and new, in random order.

All processes of a pair belong to one task on one accelerator, whose lock is held from the first to the last.
A process of each side that warms the toolchain and the driver comes first and is thrown away. Every pair then
compiles both sides afresh. At equal choices (the project's measuring rule 18) both sides are then pinned to
what the autotuner chose in each of these two free processes, in random order: what differs is the code.
Where the autotuner is offered other candidates on one side, both are pinned to these, too.
With kept caches the thrown away process compiles, and all pairs compare the same code.

A task alone compiles afresh too, or uses the caches that the first process of its run left.
"""

import json
import math
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.launch import ledger
from runner.launch.jobs import LaunchRequest
from runner.launch.launch import Event
from runner.launch.results import FILE
from runner.measure import turns
from runner.schema import compilations
from runner.schema.compilations import COMPILED, Kernels
from runner.schema.draws import BASE, LEAST_DRAWS, NEW, RUN_TIMES, Side, outliers
from runner.schema.metrics import is_of_running
from runner.schema.protocol import CHANGED_INTERPRETER
from runner.schema.records import BUSY_CPU, STATUSES, SUCCESS, Json, with_runner_fact
from runner.schema.statistics import geometric_mean, median
from runner.schema.suite import COMPILATION_VARIABLE, BadRequest, suite_of
from runner.schema.tasks import CANCELLED, KEPT_CACHES, NEW_CACHES, TaskOutcome
from runner.system import account, machine
from runner.system.task_files import CappedLog, artifacts_in, write_new

SIDES: tuple[Side, Side] = (BASE, NEW)
_UNKNOWN = "not pinned: the process that drew these choices did not tell its kernels"
_OF_KERNELS = ("kernels", "busy_us", "gaps_us", "overlap_us", "unpinned", "blind")  # of `Compiled`
_CANDIDATES = 4  # that a pair times on both sides; more where three pairs would not time all
_FILLED = "filled"  # in a folder of caches: a process has filled them; it holds the number of its compilation


def run_task(request: LaunchRequest) -> TaskOutcome:
    """Launch the task. Raise KeyError for an unknown interpreter.

    Of a pair the folder then holds the same files as after a single launch, and each record names its side.
    Its outcome is that of the first process that failed; the reason names the side.
    """
    job = request.job
    request.folder.mkdir(parents=True, exist_ok=True)
    account.pass_alone(request.folder)
    if job.base_python:
        for name in (FILE, "outcome.json"):
            (request.folder / name).unlink(missing_ok=True)
        with closing(CappedLog(request.folder / "log")) as log:
            pair = _Pair(request, log)
            pair.run()
        return pair.outcome()
    if job.caches == "kept":
        return _run_on_kept_caches(request)
    variables, path = {}, request.folder.resolve() / "pinned.json"
    if job.caches == "pinned":
        variables = ledger.pinned_variables(path, job.pinned)
    elif job.caches == "ledger":
        try:
            choices = ledger.applied()
            variables = choices.force(choices.of(job.task), path)
        except BadRequest as error:
            return TaskOutcome("unsupported", "no_choices", str(error))
    return request.launch(job.python, variables)


def _run_on_kept_caches(request: LaunchRequest) -> TaskOutcome:
    """Launch the task over the caches that its first process left on this accelerator, else leave them.

    A process that finds none, as on another accelerator, is a compilation of its own: its records and those
    of the processes after it carry its number.
    """
    folder = request.run_folder / request.job.task.fingerprint()
    filled = folder / _FILLED
    try:
        compilation, variable = int(filled.read_text()), KEPT_CACHES
    except (OSError, ValueError):
        compilation, variable = request.job.process, NEW_CACHES
        account.remove(folder)  # what a process that failed has left
    variables = {**_caches(folder, variable), COMPILATION_VARIABLE: str(compilation)}
    outcome = request.launch(request.job.python, variables)
    if variable == NEW_CACHES and outcome.status in SUCCESS:
        write_new(filled, str(compilation))
    return outcome


@dataclass(frozen=True)
class _Process:
    """A process of a pair; with an `owner`, pinned to the choices of that side's free process."""

    side: Side
    warms: bool = False  # its results are thrown away
    owner: Side | None = None
    round: int = 0
    repeated: bool = False
    candidate: int | None = None  # the number of the candidates that it takes in slots whose lists differ

    @property
    def of_other_side(self) -> "_Process":
        return replace(self, side=NEW if self.side == BASE else BASE)

    @property
    def words(self) -> str:
        """Return which process it is, for people."""
        parts = [self.side, "first process" if self.warms else ""]
        parts += [f"choices of {self.owner}" if self.owner else "", "again" if self.repeated else ""]
        parts += ["" if self.candidate is None else f"candidate {self.candidate}"]
        return ", ".join(filter(None, parts))


class _Pair:
    """The processes of one pair, one after the other, and what they left."""

    def __init__(self, request: LaunchRequest, log: CappedLog) -> None:
        self._request = request
        self._log = log
        self._job = job = request.job
        self._kept = job.caches == "kept"
        self._compiles = suite_of(job.task.suite).has_compilations(job.task)
        self._folders = {side: request.run_folder / job.task.fingerprint() / side for side in SIDES}
        # nothing is tuned on a CPU, so that pinned processes would compile again what their side just has
        self._reuses = job.caches == "pinned" and job.task.device == "cpu" and self._compiles
        self._measured: set[Side] = set()  # whose free process timed compiled code
        # the clock of a shared host moves from one process to the next
        self._takes_turns = job.task.device == "cpu"
        self._choices: dict[Side, dict[str, str] | None] = {}  # by slot; None where unknown
        self._kernels: dict[Side, Kernels] = {}
        self._candidates: list[dict[str, str]] = []  # by slot: those to time beside the draws
        self._times_ms: dict[_Process, float] = {}
        self._failed: dict[_Process, TaskOutcome] = {}
        self._records: list[dict[str, Json]] = []
        self._unexpected: list[dict[str, Json]] = []
        self._seconds = 0.0
        self._done = self._total = 0
        self._stopped = False

    def run(self) -> None:
        """Run the free processes, then at equal choices the pinned ones."""
        sides = random.sample(SIDES, 2)  # so that neither always runs on the warmer machine
        # the first process of a side warms the machine, or fills the caches
        first = [side for side in sides if not (self._folders[side] / _FILLED).exists()]
        pinned: list[_Process] = []
        if self._job.caches == "pinned":
            pinned = [
                _Process(side, owner=owner, round=number)
                for number in range(self._job.rounds)
                for owner in SIDES
                for side in SIDES
            ]
            random.shuffle(pinned)
        free = [*(_Process(side, warms=True) for side in first), *map(_Process, sides)]
        self._total = len(free) + len(pinned)
        self._run_each(free)
        if pinned and self._measured == set(SIDES):  # also after a wrong result, or a shape that fails
            self._run_each(pinned)
            strays = self._strays()
            self._total += len(strays)
            self._run_each(strays)
            self._run_candidates()

    def _strays(self) -> list[_Process]:
        """Return the pinned processes to run once more. A free process is one of those that timed the choices
        which it drew. Processes that took turns count by the ratio of both sides: the clock moves."""
        times = self._times_ms
        if self._takes_turns:
            times = {
                one: math.sqrt(time_ms / times[one.of_other_side])
                for one, time_ms in times.items()
                if one.of_other_side in times
            }
        timed = list(times.items())
        places = outliers([(one.owner or one.side, one.side, value) for one, value in timed])
        strays = dict.fromkeys(timed[place][0] for place in places)
        if self._takes_turns:
            strays |= dict.fromkeys(one.of_other_side for one in strays)
        return [replace(one, repeated=True) for one in strays if one.owner]

    def _run_candidates(self) -> None:
        """Pin both sides to the candidates of slots whose candidates differ: a part of them, and no further
        ones once they took twice as long as all before them."""
        self._candidates = compilations.candidate_pins(self._kernels[BASE], self._kernels[NEW])
        count, until_s = len(self._candidates), 3 * self._seconds
        part = min(count, max(_CANDIDATES, math.ceil(count / LEAST_DRAWS)))
        for turn in range(part):
            number = (self._job.process * part + turn) % count
            if self._seconds < until_s:
                self._total += 2
                self._run_each(
                    _Process(side, owner=BASE, candidate=number) for side in random.sample(SIDES, 2)
                )

    def outcome(self) -> TaskOutcome:
        process, outcome = next(iter(self._failed.items()), (None, TaskOutcome("ok")))
        reason = outcome.reason
        if process and outcome.status in STATUSES:
            where = f"{process.side} ({self._job.label(process.side)})"
            where += f" with the choices of {process.owner}" if process.owner else ""
            reason = f"{where}: {outcome.reason or outcome.status}"[:1000]
        outcome = replace(outcome, records=self._records, unexpected=self._unexpected)
        return replace(outcome, reason=reason, seconds=self._seconds)

    def _run_each(self, processes: Iterable[_Process]) -> None:
        """Run processes one after the other, or both sides at once."""
        teams: dict[_Process, list[_Process]] = {}
        for process in processes:
            teams.setdefault(replace(process, side=BASE) if self._takes_turns else process, []).append(
                process
            )
        for team in teams.values():
            failed_so_far = {(failed.side, failed.owner) for failed in self._failed}
            going = [one for one in team if not self._stopped and (one.side, one.owner) not in failed_so_far]
            outcomes = self._launch_both(*going) if len(going) == 2 else [*map(self._launch, going)]
            self._seconds += max((outcome.seconds for outcome in outcomes), default=0.0)
            for process, outcome in zip(going, outcomes, strict=True):
                self._finish(process, outcome)
            self._done += len(team)

    def _launch_both(self, first: _Process, second: _Process) -> list[TaskOutcome]:
        """Run both sides at once, in turns. The log has the output of the second after that of the first."""
        path, gone = self._request.folder / "second.log", threading.Event()
        sharing, other = turns.sides()

        def run_second() -> TaskOutcome:
            with other, closing(CappedLog(path)) as log:
                return self._launch(
                    second,
                    other,
                    log=log,
                    should_stop=lambda: CANCELLED if gone.is_set() else self._request.should_stop(),
                )

        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(run_second)
            try:
                with sharing:
                    outcome = self._launch(first, sharing)
            except BaseException:  # such as Ctrl-C: the second must not go on alone
                gone.set()
                raise
        self._log.feed(path.read_bytes())
        path.unlink()
        return [outcome, waits.result()]

    def _launch(self, process: _Process, sharing: turns.Sharing | None = None, **changes: Any) -> TaskOutcome:
        """Run one process, in turns with the other side if there is `sharing`; `changes` are other arguments
        of `launch`."""
        request, job, side = self._request, self._job, process.side
        log = changes.setdefault("log", self._log)
        log.note(f"pair {job.process}: {process.words}, environment {job.label(side)}")

        def tell(event: Event) -> None:
            """Report progress as processes done of all; the label holds the progress inside this one."""
            inside = f"{event.get('done', 0)} of {event['total']}" if event.get("total") else ""
            label = ", ".join(filter(None, (process.words, str(event.get("label") or ""), inside)))
            request.on_event({**event, "done": self._done, "total": self._total, "label": label})

        options = json.dumps(dict(job.new_options), sort_keys=True) if side == NEW and job.new_options else ""
        variables = {}
        if sharing:
            variables[turns.TURNS_VARIABLE] = " ".join(map(str, sharing.files))
            changes |= {"inherited": sharing.files, "waited_s": lambda: sharing.waited[0]}
        partly = self._compiles and (process.owner or (process.warms and not self._kept))
        return request.launch(
            job.interpreter(side),
            {
                **self._cached(process),
                COMPILATION_VARIABLE: "0" if self._kept else str(job.process),
                **({compilations.INDUCTOR_VARIABLE: options} if options else {}),
                **self._pinning(process),
                **variables,
            },
            spec=replace(job.task, compilation=1) if partly else job.task,
            folder=request.folder / side,
            on_event=tell,
            **changes,
        )

    def _finish(self, process: _Process, outcome: TaskOutcome) -> None:
        """Take over what a process leaves, and see whether others may follow."""
        request, side = self._request, process.side
        is_changed = outcome.code == CHANGED_INTERPRETER  # what it measured would make a mixed pair
        is_candidate = process.candidate is not None and outcome.status in STATUSES  # some do not compile
        if is_changed:
            self._failed = {process: outcome}
        elif outcome.status not in SUCCESS and not is_candidate:
            self._failed[process] = outcome
        is_kept = not process.warms or process in self._failed
        if is_kept and not is_changed and outcome.status in {*STATUSES, CANCELLED}:
            self._take(process, outcome)
        account.remove(request.folder / side)
        # with processes left the GPU is not free
        self._stopped |= is_changed or outcome.status not in STATUSES or bool(outcome.leftover)
        if process.warms and process not in self._failed and not self._stopped:
            self._folders[side].mkdir(parents=True, exist_ok=True)
            write_new(self._folders[side] / _FILLED, "0")

    def _take(self, process: _Process, outcome: TaskOutcome) -> None:
        """Keep a process's records and artifacts; of a pinned one only what tells how its code runs."""
        folder, side = self._request.folder, process.side
        records: Sequence[dict[str, Json]] = outcome.records
        if process.owner:
            unknown = self._has_unknown_choices(process.owner)
            records = [
                _of_pinned(record, unknown=unknown, in_turns=self._takes_turns)
                for record in records
                if is_of_running(record["metric"]["name"])
            ]
            if process.candidate is not None:  # it is no draw: only its kernels count
                records = [record for record in records if COMPILED in record["metric"]["extra_info"]]
        elif not process.warms:
            self._choices[side] = compilations.choices_of(records)
            self._kernels[side] = compilations.timed_kernels(records)
            metrics = (record["metric"] for record in records)
            if any(is_of_running(metric["name"]) and metric.get("benchmark_values") for metric in metrics):
                self._measured.add(side)
        if time_ms := _run_time_ms(records):
            self._times_ms[process] = time_ms
        own, others = (
            [self._placed(record, process) for record in group] for group in (records, outcome.unexpected)
        )
        with (folder / FILE).open("a") as results:
            results.writelines(json.dumps(record) + "\n" for record in (*own, *others))
        self._records += own
        self._unexpected += others
        for path in [] if process.owner else artifacts_in(folder / side):
            kind = folder / "artifacts" / path.parent.name
            kind.mkdir(parents=True, exist_ok=True)
            path.replace(kind / f"{side}-{path.name}")

    def _placed(self, record: dict[str, Json], process: _Process) -> dict[str, Json]:
        """Return the record with its place in the comparison (`runner.schema.draws`)."""
        job = self._job
        pair = {"number": job.process, "side": process.side, "base": job.label(BASE), "new": job.label(NEW)}
        if process.owner:
            pair |= {"draw": process.owner, "round": process.round}
            pair |= {"repeated": True} if process.repeated else {}
            pair |= {} if process.candidate is None else {"candidate": process.candidate}
            pair |= {"choices": "unknown"} if self._has_unknown_choices(process.owner) else {}
        return with_runner_fact(record, "pair", pair)

    def _has_unknown_choices(self, owner: Side) -> bool:
        """Return whether the free process of a side compiled kernels and did not tell them."""
        return self._compiles and self._choices.get(owner) is None

    def _cached(self, process: _Process) -> dict[str, str]:
        """Return the variables of the caches that a process shares with others of its side, if it does."""
        if self._kept:
            return _caches(self._folders[process.side], KEPT_CACHES)
        if not self._reuses or process.warms:
            return {}
        compiled = self._folders[process.side].with_name(f"{process.side}-compiled")
        if not process.owner:
            account.remove(compiled)  # of the round before
        return _caches(compiled, KEPT_CACHES if process.owner else NEW_CACHES)

    def _pinning(self, process: _Process) -> dict[str, str]:
        """Return the variables that force the choices of a side; {} where there is nothing to force."""
        choices = self._choices.get(process.owner) if process.owner else None
        if not choices:
            return {}
        if process.candidate is not None:
            choices = {**choices, **self._candidates[process.candidate]}
        path = self._request.folder.resolve() / f"{process.side}-pinned-{process.owner}.json"
        return ledger.pinned_variables(path, choices)


def _of_pinned(record: dict[str, Json], *, unknown: bool, in_turns: bool) -> dict[str, Json]:
    """Return the record of a pinned process without what it says of graphs, phases and caches. Where the
    choices to force are `unknown`, its warning says so. Others on the processors of a pair `in_turns` disturb
    both sides alike: the warning stays, and the time may decide."""
    metric = record["metric"]
    info = dict(metric.get("extra_info") or {})
    if COMPILED in info:
        info[COMPILED] = {name: value for name, value in info[COMPILED].items() if name in _OF_KERNELS}
    if unknown:
        info["warning"] = "; ".join(filter(None, (_UNKNOWN, info.get("warning"))))
    if in_turns and metric["name"] in RUN_TIMES and info.get("quality") == BUSY_CPU:
        del info["quality"]
    return {**record, "metric": {**metric, "extra_info": info}}


def _run_time_ms(records: Iterable[Mapping[str, Json]]) -> float | None:
    """Return the geometric mean over the shapes of how long the compiled code takes, by the first clock of
    `RUN_TIMES` that measured; None where none did."""
    values: dict[str, list[float]] = {}
    for record in records:
        metric = record["metric"]
        samples = [float(value) for value in metric.get("benchmark_values") or []]
        if metric["name"] in RUN_TIMES and samples and median(samples) > 0:
            values.setdefault(metric["name"], []).append(median(samples))
    return next((geometric_mean(values[name]) for name in RUN_TIMES if name in values), None)


def _caches(folder: Path, variable: str) -> dict[str, str]:
    caches = machine.compile_caches(folder)
    account.share(folder.parent, folder, *map(Path, caches.values()))
    return {**caches, variable: str(folder)}  # a suite that empties its caches otherwise uses these instead
