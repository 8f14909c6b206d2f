"""`python -m runner run`: a matrix of suites, cases, modes, dtypes and backends, on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runner import dry_run, request, resume, tables, terminal
from runner.catalog import SUITES, BadRequest, TaskSpec, inductor_options
from runner.catalog.suites import own_file
from runner.interpreters import DEFAULT, Interpreter, interpreter_of
from runner.launch import Event
from runner.output import FORMATS, Output, records_of
from runner.records import WELL
from runner.summary import LEAST_PAIRS
from runner.task_result import TaskResult, artifacts_in
from runner.terminal import Job, RunContext

_CANCELLED = 130  # as a shell says it for Ctrl-C
_MAX_REPEATS = 100
_NEW_OPT = "inductor's options that --python has in pairs, and its base has not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The whole command line of `python -m runner run`."""
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument(
        "--file", type=Path, metavar="MODEL.PY", help="a case of one's own: its build() → (module, inputs)"
    )
    _add_what(parser.add_argument_group("what to run"))
    _add_how(parser.add_argument_group("how"))
    _add_where(parser.add_argument_group("where"))
    _add_output(parser.add_argument_group("results"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--case",
        action="append",
        default=[],
        metavar="NAME[KNOB=VALUE,…]",
        help="several integers: 1024+4096",
    )
    add("-k", "--filter", default="", metavar="RE", help="only cases whose name it matches")
    add("-x", "--exclude", default="", metavar="RE", help="not the cases whose name it matches")
    add("--exclude-exact", nargs="+", action="extend", default=[], metavar="NAME", help="not these cases")
    add("--partition", default="", metavar="I/N", help="part I of N of the tasks, from 1")
    add("--backend", nargs="+", action="extend", default=[])
    add("--mode", nargs="+", action="extend", default=[])
    add("--dtype", nargs="+", action="extend", default=[])
    add("--dynamic", action="store_true", help="dynamic shapes")


def _add_how(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-n", "--repeat", type=int, metavar="N", help="samples of call time, at least")
    add("--iterations-per-run", type=int, metavar="N", help="calls in one sample")
    add("--batch-size", type=int, metavar="N", help="instead of each model's own")
    add("--verify", action="store_true", help="check results also where a suite does not by itself")
    add("--timeout", type=int, metavar="S", help="seconds that a task may take")
    add("--opt", nargs="+", action="extend", default=[], metavar="KNOB=VALUE", help="a knob for every case")
    add("--repeats", type=int, metavar="N", help="fresh processes, or pairs of them")


def _add_where(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--device", default="", help="cpu, cuda or cuda:N; the first GPU where there is one")
    add("--devices", help=argparse.SUPPRESS)
    add("--python", default="", metavar="NAME=PATH[,ENV=VALUE…]", help="the interpreter that has torch")
    add("--base-python", default="", metavar="NAME=PATH[,ENV=VALUE…]", help="measured in turn with --python")
    add("--new-opt", nargs="+", action="extend", default=[], metavar="OPTION=VALUE", help=_NEW_OPT)


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dry-run", action="store_true", help="print the tasks as commands and stop")
    add("--output", type=Path, metavar="FILE")
    add("--format", choices=FORMATS, default="ours")
    add("--resume", action="store_true", help="skip tasks that succeeded in --output before")
    add("--baseline", type=Path, metavar="FILE", help="compare with an earlier --output")


def main(options: argparse.Namespace) -> int:
    """Exit status: 0 all well, 1 something failed, 130 cancelled. Raises BadRequest, locks.Busy."""
    if options.devices:
        raise BadRequest(
            "--devices: run uses one --device; attach this machine to a hud to use several (attach --devices)"
        )
    if options.file:
        options.suites = [*options.suites, _own_file(options.file)]
    chosen = terminal.accelerator(options.device)
    matrix = request.matrix(_request(options, chosen.device))
    for remark in matrix.remarks:
        print(f"runner: {remark}", file=sys.stderr)
    tasks = matrix.tasks
    if options.partition:
        tasks = request.partition(tasks, options.partition)
    new_options = _new_options(options.new_opt, tasks)
    baseline = _baseline(options.baseline)
    pythons, python, base = _pythons(options)
    base = base or (python if new_options else "")  # against itself
    sides = {name: pythons[name] for name in (base, python) if name}
    jobs = [
        Job(task, process, python, base, new_options, resume.measured_with(task, sides))
        # all tasks once, then all of them again: what drifts in hours hits every task alike
        for process in range(_repeats(options, base))
        for task in tasks
    ]
    output = _output(options, base)
    asked = output.earlier() if output and options.resume else []
    earlier, others = resume.kept(asked, jobs, pythons, chosen)
    done = {one.name for one in earlier}
    waiting = [job for job in jobs if job.key not in done]
    if others:
        print(others, file=sys.stderr)
    placeless = output.check([job.task for job in jobs]) if output else ""
    if placeless:
        print(placeless, file=sys.stderr)
    if options.dry_run:
        for line in dry_run.lines(options, waiting):
            print(line)
        return 0
    print(
        f"{len(waiting)} tasks on {chosen.device_name}; {len(jobs) - len(waiting)} done before",
        file=sys.stderr,
    )
    context = RunContext(pythons, keeps_artifacts=output is not None)
    on_finished = output.add if output else _ignore
    finished = terminal.run_jobs(waiting, chosen, context, on_event=_say, on_finished=on_finished)
    _tell([*earlier, *finished], jobs, baseline)
    _tell_files(output, finished, context)
    return _exit_status({item.outcome.status for item in finished}, output)


def _exit_status(statuses: set[str], output: Output | None) -> int:
    if "cancelled" in statuses:
        return _CANCELLED
    # cells of a matrix that cannot be here are no failure beside others
    well = statuses <= WELL or (statuses <= WELL | {"unsupported"} and statuses & WELL)
    return 0 if well and not (output and output.empty) else 1


def _ignore(_finished: TaskResult) -> None:
    pass


def _own_file(path: Path) -> str:
    """The suite of that file, which this process and its children know from now on."""
    try:
        path.read_bytes()
    except OSError as error:
        raise BadRequest(f"--file {path}: {error.strerror}") from error
    os.environ[own_file.VARIABLE] = str(path.resolve())
    return own_file.NAME


def _request(options: argparse.Namespace, device: str) -> request.Request:
    if not options.suites:
        raise BadRequest(f"say which suite to run: {', '.join(SUITES)}")
    return request.Request(
        suites=options.suites,
        device=device,
        cases=options.case,
        filter=options.filter,
        exclude=options.exclude,
        exclude_exact=options.exclude_exact,
        modes=options.mode,
        dtypes=options.dtype,
        backends=options.backend,
        dynamic=options.dynamic,
        verify=options.verify,
        timeout_s=options.timeout,
        repeat=options.repeat,
        iterations_per_run=options.iterations_per_run,
        batch_size=options.batch_size,
        options=options.opt,
    )


def _pythons(options: argparse.Namespace) -> tuple[dict[str, Interpreter], str, str]:
    """Interpreters by name, the one to use, and the base of a comparison or ''."""
    try:
        given = [interpreter_of(text) for text in (options.python, options.base_python) if text]
    except ValueError as error:
        raise BadRequest(f"--python {error}") from error
    if len({name for name, _interpreter in given}) < len(given):
        raise BadRequest("--python and --base-python need names of their own")
    names = [name for name, _interpreter in given]
    base = names.pop() if options.base_python else ""
    python = names.pop() if options.python else DEFAULT
    return {DEFAULT: Interpreter(sys.executable), **dict(given)}, python, base


def _repeats(options: argparse.Namespace, base: str) -> int:
    repeats: int = (LEAST_PAIRS if base else 1) if options.repeats is None else options.repeats
    if not 1 <= repeats <= _MAX_REPEATS:
        raise BadRequest(f"--repeats is 1 to {_MAX_REPEATS}, not {repeats}")
    return repeats


def _new_options(settings: Sequence[str], tasks: Sequence[TaskSpec]) -> inductor_options.InductorOptions:
    """Of --new-opt, each checked. Raises BadRequest, also where they mean nothing to a task."""
    found = inductor_options.parsed(settings)
    problem = next(filter(None, (inductor_options.problem(found, task) for task in tasks)), "")
    if problem:
        raise BadRequest(f"--new-opt: {problem}")
    return found


def _baseline(path: Path | None) -> list[tables.Json] | None:
    if path is None:
        return None
    try:
        return tables.read_records(records_of(path.read_text()))
    except (OSError, ValueError) as error:
        raise BadRequest(f"--baseline {path}: {error}") from error


def _output(options: argparse.Namespace, base: str) -> Output | None:
    if options.output is None:
        if options.resume or options.format != "ours":
            raise BadRequest("--resume and --format need --output FILE")
        return None
    if base and options.format == "upstream":
        raise BadRequest("--format upstream: no outside system's file can say the two sides of a pair")
    return Output(
        options.output,
        options.format,
        suites=options.suites,
        resume=options.resume,
        dry_run=options.dry_run,
    )


def _say(task: TaskSpec, event: Event) -> None:
    progress = f"{event['done']}/{event['total']}" if event.get("total") else ""
    label = str(event.get("label") or "")
    words = [task.suite, task.case, task.dtype, progress, str(event.get("phase")), label]
    print(" ".join(word for word in words if word), file=sys.stderr)


def _tell(finished: Sequence[TaskResult], jobs: Sequence[Job], baseline: list[tables.Json] | None) -> None:
    """The tables at the end, and where to look for what went wrong."""
    parts = [tables.results(finished)] if finished else []
    if len(jobs) > 1:
        parts.append(tables.overview(finished, [job.task for job in jobs]))
    if any(job.base_python for job in jobs):
        parts.append(tables.pairs(finished))
    if baseline is not None:
        parts.append(tables.against(baseline, finished))
    print("\n\n".join(filter(None, parts)))
    names = tables.names([job.task for job in jobs])
    for item in finished:
        if item.outcome.status != "ok":
            name = names[item.task.fingerprint()]
            print(f"{name}: {item.outcome.status} {item.outcome.reason}\n  log: {item.folder / 'log'}")


def _tell_files(output: Output | None, finished: Sequence[TaskResult], context: RunContext) -> None:
    """Where artifacts are, and what is not in the file."""
    if output:
        folders = sorted(map(str, output.artifacts))
    else:
        folders = (
            [f"{context.folder}/*/artifacts"] if any(artifacts_in(one.folder) for one in finished) else []
        )
    for folder in folders:
        print(f"artifacts: {folder}")
    left_out = output.left_out() if output else ""
    if left_out:
        print(left_out, file=sys.stderr)
