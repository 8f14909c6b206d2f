"""Run a task once, or as a pair: a fresh process of each of two environments, base and new, in random order.

Both sides of a pair belong to one task on one accelerator, whose lock is held from the first to the last.
Every pair compiles both sides afresh (the project's measuring rule 18), after a process of each side that
warms the toolchain and the driver and is thrown away. With kept caches the thrown away process compiles, and
all pairs compare the same code.

A task alone compiles afresh too, or uses the caches that the first process of its run left.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.launch.launch import Event, launch
from runner.launch.results import FILE
from runner.schema import inductor_options
from runner.schema.compilations import PINNED_VARIABLE
from runner.schema.inductor_options import InductorValue
from runner.schema.outcome_records import CANCELLED, TaskOutcome
from runner.schema.plan import KEPT_CACHES, NEW_CACHES, Caches
from runner.schema.records import STATUSES, SUCCESS, Json, with_runner_fact
from runner.schema.suite import COMPILATION_VARIABLE, TaskSpec, suite_of
from runner.system.interpreters import DEFAULT, Interpreter
from runner.system.log import CappedLog

BASE, NEW = "base", "new"
_WITH = "/@"  # in a key, before what a job is measured with
_FILLED = "filled"  # in a folder of caches: a process has filled them; it holds the number of its compilation


@dataclass(frozen=True)
class Job:
    """A process of a task and the name of the interpreter to run it in; with a base, a pair of launches."""

    task: TaskSpec
    process: int = 0  # its number among the fresh processes of a task; the number of a pair
    python: str = DEFAULT
    base_python: str = ""
    new_options: Mapping[str, InductorValue] = field(default_factory=dict)  # inductor's, of a pair's new side
    measured_with: str = ""  # a digest: `runner.cli.resume.measured_with`
    caches: Caches = "fresh"
    pinned: Mapping[str, str] = field(default_factory=dict)  # configurations by slot

    @property
    def plain_key(self) -> str:
        """Return the key without `measured_with`."""
        named = (self.python, self.base_python) != (DEFAULT, "")
        number = f"{self.process}" if self.process else ""
        number = f"compilation-{number}" if self.task.compilation else number
        parts = [self.task.fingerprint(), number]
        sides = f"{self.base_python}:{self.python}" if named else ""
        return "/".join(filter(None, [*parts, sides, inductor_options.words(self.new_options)]))

    @property
    def key(self) -> str:
        """Return the name of the job in a file; for a plain task in our own interpreter its fingerprint."""
        return f"{self.plain_key}{_WITH}{self.measured_with}" if self.measured_with else self.plain_key

    def interpreter(self, side: str) -> str:
        return self.base_python if side == BASE else self.python

    def label(self, side: str) -> str:
        """Return the name of a side for people."""
        options = inductor_options.words(self.new_options) if side == NEW else ""
        return f"{self.interpreter(side)} with {options}" if options else self.interpreter(side)


def plain_key(key: str) -> str:
    return key.partition(_WITH)[0]


@dataclass(frozen=True)
class LaunchRequest:
    """A job, its folder and its interpreters; `runner.launch.launch.launch` explains the fields."""

    job: Job
    folder: Path
    pythons: Mapping[str, Interpreter]
    environment: Mapping[str, str]  # besides that of the interpreter, which wins
    lock_fd: int | None
    on_event: Callable[[Event], None]
    should_stop: Callable[[], str]
    run_folder: Path  # of the caches that the processes of a run share on this accelerator


def run_task(request: LaunchRequest) -> TaskOutcome:
    """Launch the task. Raise KeyError for an unknown interpreter."""
    if request.job.base_python:
        return _run_pair(request)
    if request.job.caches == "kept":
        return _run_on_kept_caches(request)
    if request.job.caches == "pinned":
        request.folder.mkdir(parents=True, exist_ok=True)
        path = request.folder.resolve() / "pinned.json"
        path.write_text(json.dumps(dict(request.job.pinned)))
        return _run_alone(request, {PINNED_VARIABLE: str(path)})
    return _run_alone(request, {})


def _run_alone(request: LaunchRequest, variables: Mapping[str, str]) -> TaskOutcome:
    """Launch the task; `variables` are added to its environment."""
    interpreter = request.pythons[request.job.python]
    return launch(
        request.job.task,
        request.folder,
        python=interpreter.path,
        environment={**request.environment, **interpreter.environment, **variables},
        lock_fd=request.lock_fd,
        on_event=request.on_event,
        should_stop=request.should_stop,
    )


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
        shutil.rmtree(folder, ignore_errors=True)  # what a process that failed has left
    outcome = _run_alone(request, {**_caches(folder, variable), COMPILATION_VARIABLE: str(compilation)})
    if variable == NEW_CACHES and outcome.status in SUCCESS:
        filled.write_text(str(compilation))
    return outcome


def _run_pair(request: LaunchRequest) -> TaskOutcome:
    """Run one pair. The folder then holds the same files as after a single launch, and each record names its
    side. The outcome is that of the first side that failed; its reason names the side."""
    job, task, folder = request.job, request.job.task, request.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FILE, "outcome.json"):
        (folder / name).unlink(missing_ok=True)
    sides = random.sample([BASE, NEW], 2)  # so that neither always runs on the warmer machine
    kept = job.caches == "kept"
    folders = {side: request.run_folder / task.fingerprint() / side for side in sides}
    first = [side for side in sides if not (folders[side] / _FILLED).exists()]
    # the first process of a side warms the machine, or fills the caches: its results are thrown away
    compiles = suite_of(task.suite).has_compilations(task) and not kept
    warming = replace(task, compilation=1) if compiles else task
    steps = [*((side, True) for side in first), *((side, False) for side in sides)]
    failed: dict[str, TaskOutcome] = {}
    records: list[dict[str, Json]] = []
    unexpected: list[dict[str, Json]] = []
    seconds = 0.0
    with CappedLog(folder / "log") as log:
        for place, (side, prepares) in enumerate(steps):
            if side in failed:
                continue
            step = f"{side}, first process" if prepares else side
            log.note(f"pair {job.process}: {step}, environment {job.label(side)}")
            interpreter = request.pythons[job.interpreter(side)]
            outcome = launch(
                warming if prepares else task,
                folder / side,
                python=interpreter.path,
                environment={
                    **request.environment,
                    **interpreter.environment,
                    **(_caches(folders[side], KEPT_CACHES) if kept else {}),
                    COMPILATION_VARIABLE: "0" if kept else str(job.process),
                    **(inductor_options.variable(job.new_options) if side == NEW else {}),
                },
                lock_fd=request.lock_fd,
                on_event=_counting_steps(request.on_event, step, place, len(steps)),
                should_stop=request.should_stop,
                log=log,
            )
            seconds += outcome.seconds
            if outcome.status not in SUCCESS:
                failed[side] = outcome
            keep = not prepares or side in failed
            if keep and outcome.status in {*STATUSES, CANCELLED}:
                own = [_sided(record, job, side) for record in outcome.records]
                others = [_sided(record, job, side) for record in outcome.unexpected]
                with (folder / FILE).open("a") as results:
                    results.writelines(json.dumps(record) + "\n" for record in (*own, *others))
                records += own
                unexpected += others
                for path in (folder / side).glob("artifacts/*/*"):
                    kind = folder / "artifacts" / path.parent.name
                    kind.mkdir(parents=True, exist_ok=True)
                    path.replace(kind / f"{side}-{path.name}")
            shutil.rmtree(folder / side, ignore_errors=True)
            if outcome.status not in STATUSES or outcome.leftover:
                break  # stopped, or the accelerator is not free
            if prepares and side not in failed:
                folders[side].mkdir(parents=True, exist_ok=True)
                (folders[side] / _FILLED).write_text("0")
    side, outcome = next(iter(failed.items()), ("", TaskOutcome("ok")))
    reason = outcome.reason
    if failed and outcome.status in STATUSES:
        reason = f"{side} ({job.label(side)}): {outcome.reason or outcome.status}"[:1000]
    return replace(outcome, reason=reason, seconds=seconds, records=records, unexpected=unexpected)


def _caches(folder: Path, variable: str) -> dict[str, str]:
    for name in ("inductor", "triton"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        variable: str(folder),  # a suite that empties its caches otherwise uses these instead
    }


def _counting_steps(
    on_event: Callable[[Event], None], step: str, place: int, steps: int
) -> Callable[[Event], None]:
    """Report progress as processes done of all; the label holds the progress inside the current one."""

    def tell(event: Event) -> None:
        inside = f"{event.get('done', 0)} of {event['total']}" if event.get("total") else ""
        label = ", ".join(filter(None, (step, str(event.get("label") or ""), inside)))
        on_event({**event, "done": place, "total": steps, "label": label})

    return tell


def _sided(record: dict[str, Json], job: Job, side: str) -> dict[str, Json]:
    """Return the record with its side of the pair (`runner.schema.records`)."""
    of_pair = {"number": job.process, "side": side, "base": job.label(BASE), "new": job.label(NEW)}
    return with_runner_fact(record, "pair", of_pair)
