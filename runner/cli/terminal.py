"""Run the tasks of a command on one accelerator of this machine, one after the other."""

import contextlib
import os
import platform
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.launch.jobs import Job, LaunchRequest
from runner.launch.launch import Event
from runner.launch.pairs import run_task
from runner.schema.protocol import CHANGED_INTERPRETER
from runner.schema.records import with_runner_fact
from runner.schema.suite import BadRequest, TaskSpec, suite_of
from runner.schema.tasks import TaskResult
from runner.system import locks, machine
from runner.system.accelerators import Accelerator
from runner.system.interpreters import Fingerprints, Interpreter


@dataclass(frozen=True)
class RunContext:
    """The state that all jobs of a command share."""

    pythons: Mapping[str, Interpreter]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="compiler-hud-run-")))
    keeps_artifacts: bool = False  # of all tasks, not only of those that ask for artifacts
    caches: Path | None = None  # those of earlier commands; None: a folder for this command alone
    started: float = field(default_factory=time.time)  # s since 1970: the one time of the run


def regular_file(path: Path) -> Path:
    """Return the absolute path of a file that is read more than once. Raise BadRequest for a pipe, and for a
    file that cannot be read."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            raise BadRequest(f"{path} is a pipe, and is read more than once: give a file with its content")
        path.open("rb").close()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    return path.resolve()


def run_jobs(
    jobs: Sequence[Job],
    chosen: Accelerator,
    context: RunContext,
    *,
    on_event: Callable[[TaskSpec, Event], None],
    on_finished: Callable[[TaskResult], None],
) -> list[TaskResult]:
    """Run the jobs until the last one, or until Ctrl-C or SIGTERM: the running task is then `cancelled`. A
    task in which an interpreter changed is `failed`, without its records, and the last one.

    Raise `locks.Busy` if another process holds the accelerator.
    """
    finished: list[TaskResult] = []
    names = sorted({name for job in jobs for name in (job.python, job.base_python) if name})
    path = machine.cache_folder() / "fingerprints.json"
    interpreters = Fingerprints(path, {name: context.pythons[name] for name in names})
    check = partial(interpreters.checked, names=names, begun=interpreters.look(), place="this run")
    try:
        descriptor = locks.acquire(locks.default_folder(), chosen.lock, what="python -m runner run")
        with os.fdopen(descriptor) as lock, _stop_asked() as stop:
            for number, job in enumerate(jobs):
                request = LaunchRequest(
                    job,
                    context.folder / f"{number}-{job.task.case.replace('/', '-')}",
                    pythons=context.pythons,
                    environment=_variables(job, chosen),
                    lock_fd=lock.fileno(),
                    on_event=partial(on_event, job.task),
                    should_stop=lambda: "cancelled" if stop.is_set() else "",
                    run_folder=context.caches or context.folder / "caches",
                    check=check,
                )
                done = _run_job(request, context)
                finished.append(done)
                on_finished(done)
                if stop.is_set() or done.outcome.code == CHANGED_INTERPRETER:
                    break
    finally:
        shutil.rmtree(context.folder / "caches", ignore_errors=True)
        with contextlib.suppress(OSError):  # a task left something to look at
            context.folder.rmdir()
    return finished


def _variables(job: Job, chosen: Accelerator) -> dict[str, str]:
    # kernels of a task that is never compiled from empty caches are kept from command to command
    own = machine.compile_caches(machine.cache_folder())
    kept = {name: os.environ.get(name) or folder for name, folder in own.items()}
    return {
        **({} if suite_of(job.task.suite).has_compilations(job.task) else kept),
        "CUDA_VISIBLE_DEVICES": chosen.visible,
        "RUNNER_HOST": os.environ.get("RUNNER_HOST") or platform.node(),
        "RUNNER_CEILINGS": str(machine.ceilings_path()),
    }


def _run_job(request: LaunchRequest, context: RunContext) -> TaskResult:
    """Launch one job, in a folder that stays only if the job failed or left artifacts."""
    job, folder, outcome = request.job, request.folder, run_task(request)
    if outcome.code == CHANGED_INTERPRETER:
        outcome = replace(outcome, records=(), unexpected=())
    process = 0 if job.base_python else job.process

    def of_command(record: dict[str, Any]) -> dict[str, Any]:
        """Give the record the time of the command, whose tasks are one run, and its number among repeats."""
        timed = {**record, "timestamp": context.started}
        return with_runner_fact(timed, "process", process) if process else timed

    records, unexpected = (list(map(of_command, group)) for group in (outcome.records, outcome.unexpected))
    result = TaskResult(job.task, outcome, folder, records, job.key, unexpected)
    if outcome.status == "ok":
        keep = result.artifacts() and (context.keeps_artifacts or job.task.asks_for_artifacts())
        for path in [path for path in folder.iterdir() if path.name != "artifacts"] if keep else [folder]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return result


@contextlib.contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; the launch then ends its task in order."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_frame: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
