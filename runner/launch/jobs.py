"""Describe what is launched: a process of a task, or a pair of them, with folder and interpreters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.launch.launch import Event, launch
from runner.schema.compilations import InductorValue, inductor_words
from runner.schema.draws import BASE, NEW
from runner.schema.suite import TaskSpec
from runner.schema.tasks import Caches, TaskOutcome
from runner.system.interpreters import DEFAULT, Interpreter

_WITH = "/@"  # in a key, before what a job is measured with


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
    rounds: int = 1  # of pinned processes in a pair at equal choices

    @property
    def plain_key(self) -> str:
        """Return the key without `measured_with`."""
        named = (self.python, self.base_python) != (DEFAULT, "")
        number = f"{self.process}" if self.process else ""
        number = f"compilation-{number}" if self.task.compilation else number
        parts = [self.task.fingerprint(), number]
        sides = f"{self.base_python}:{self.python}" if named else ""
        return "/".join(filter(None, [*parts, sides, inductor_words(self.new_options)]))

    @property
    def key(self) -> str:
        """Return the name of the job in a file; for a plain task in our own interpreter its fingerprint."""
        return f"{self.plain_key}{_WITH}{self.measured_with}" if self.measured_with else self.plain_key

    def interpreter(self, side: str) -> str:
        return self.base_python if side == BASE else self.python

    def label(self, side: str) -> str:
        """Return the name of a side for people."""
        options = inductor_words(self.new_options) if side == NEW else ""
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
    check: Callable[[TaskOutcome], TaskOutcome] = lambda outcome: outcome  # fails where torch was replaced

    def launch(self, python: str, variables: Mapping[str, str], **changes: Any) -> TaskOutcome:
        """Launch the task by an interpreter of `pythons`; `variables` are added to its environment, and
        `changes` are other arguments of `launch`."""
        interpreter = self.pythons[python]
        inherited = [file for file in (self.lock_fd, *changes.pop("inherited", ())) if file is not None]
        given = {"spec": self.job.task, "folder": self.folder, "on_event": self.on_event}
        outcome = launch(
            **{**given, "should_stop": self.should_stop, **changes},
            python=interpreter.path,
            environment={**self.environment, **interpreter.environment, **variables},
            inherited=inherited,
        )
        return self.check(outcome)
