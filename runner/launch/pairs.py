"""Run a task once, or as a pair: a fresh process of each of two environments, base and new, in random order.

Both sides of a pair belong to one task on one accelerator, whose lock is held from the first to the last.
Each side keeps the kernels it compiled from pair to pair, and the first process of a side, which compiles
them, is thrown away: what is compared later is the same code every time (the project's measuring rule 18).
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.launch.launch import Event, launch
from runner.launch.results import FILE
from runner.schema import inductor_options
from runner.schema.inductor_options import InductorValue
from runner.schema.outcome_records import CANCELLED, TaskOutcome
from runner.schema.records import STATUSES, SUCCESS, Json, with_runner_fact
from runner.schema.suite import TaskSpec
from runner.system.interpreters import DEFAULT, Interpreter
from runner.system.log import CappedLog

BASE, NEW = "base", "new"


@dataclass(frozen=True)
class Pair:
    """The names of the two interpreters of a task. `number` counts the run's pairs from 0; all share the
    folder `caches`. `new_options` are inductor's, for the new side alone."""

    base: str
    new: str
    number: int
    caches: Path
    new_options: Mapping[str, InductorValue] = field(default_factory=dict)

    def environment(self, side: str) -> str:
        return self.base if side == BASE else self.new

    def options(self, side: str) -> Mapping[str, InductorValue]:
        return self.new_options if side == NEW else {}

    def label(self, side: str) -> str:
        """Return the name of a side for people."""
        options = inductor_options.words(self.options(side))
        return f"{self.environment(side)} with {options}" if options else self.environment(side)


@dataclass(frozen=True)
class LaunchRequest:
    """A task, its folder and its interpreters; `runner.launch.launch.launch` explains the fields."""

    task: TaskSpec
    folder: Path
    pythons: Mapping[str, Interpreter]
    environment: Mapping[str, str]  # besides that of the interpreter, which wins
    lock_fd: int | None
    on_event: Callable[[Event], None]
    should_stop: Callable[[], str]
    python: str = DEFAULT
    pair: Pair | None = None  # in place of `python`


def run_task(request: LaunchRequest) -> TaskOutcome:
    """Launch the task. Raise KeyError for an unknown interpreter."""
    if request.pair:
        return _run_pair(request, request.pair)
    interpreter = request.pythons[request.python]
    return launch(
        request.task,
        request.folder,
        python=interpreter.path,
        environment={**request.environment, **interpreter.environment},
        lock_fd=request.lock_fd,
        on_event=request.on_event,
        should_stop=request.should_stop,
    )


def _run_pair(request: LaunchRequest, pair: Pair) -> TaskOutcome:
    """Run one pair. The folder then holds the same files as after a single launch, and each record names its
    side. The outcome is that of the first side that failed; its reason names the side."""
    task, folder = request.task, request.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FILE, "outcome.json"):
        (folder / name).unlink(missing_ok=True)
    sides = random.sample([BASE, NEW], 2)  # so that neither always runs on the warmer machine
    fresh = [side for side in sides if not (_cache_folder(pair, task, side) / "prepared").exists()]
    # the first process of a side only compiles: its results are thrown away
    steps = [*((side, True) for side in fresh), *((side, False) for side in sides)]
    failed: dict[str, TaskOutcome] = {}
    records: list[dict[str, Json]] = []
    unexpected: list[dict[str, Json]] = []
    seconds = 0.0
    with CappedLog(folder / "log") as log:
        for place, (side, prepares) in enumerate(steps):
            if side in failed:
                continue
            step = f"{side}, first process" if prepares else side
            log.note(f"pair {pair.number}: {step}, environment {pair.label(side)}")
            interpreter = request.pythons[pair.environment(side)]
            outcome = launch(
                task,
                folder / side,
                python=interpreter.path,
                environment={
                    **request.environment,
                    **interpreter.environment,
                    **_caches(pair, task, side),
                    **inductor_options.variable(pair.options(side)),
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
                own = [_sided(record, pair, side) for record in outcome.records]
                others = [_sided(record, pair, side) for record in outcome.unexpected]
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
                (_cache_folder(pair, task, side) / "prepared").touch()
    side, outcome = next(iter(failed.items()), ("", TaskOutcome("ok")))
    reason = outcome.reason
    if failed and outcome.status in STATUSES:
        reason = f"{side} ({pair.label(side)}): {outcome.reason or outcome.status}"[:1000]
    return dataclasses.replace(
        outcome, reason=reason, seconds=seconds, records=records, unexpected=unexpected
    )


def _cache_folder(pair: Pair, spec: TaskSpec, side: str) -> Path:
    return pair.caches / spec.fingerprint() / side


def _caches(pair: Pair, spec: TaskSpec, side: str) -> dict[str, str]:
    folder = _cache_folder(pair, spec, side)
    for name in ("inductor", "triton"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "RUNNER_CACHES": str(folder),  # a suite that empties its caches otherwise uses these instead
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


def _sided(record: dict[str, Json], pair: Pair, side: str) -> dict[str, Json]:
    """Return the record with its side of the pair (`runner.schema.records`)."""
    of_pair = {"number": pair.number, "side": side, "base": pair.label(BASE), "new": pair.label(NEW)}
    return with_runner_fact(record, "pair", of_pair)
