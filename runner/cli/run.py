"""`python -m runner run`: measure a matrix of suites, cases, modes, dtypes and backends on this machine."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner.cli import resume, tables, terminal
from runner.cli.output import FORMATS, Output, read_records
from runner.cli.terminal import RunContext
from runner.formats import writer_of
from runner.launch import ledger
from runner.launch.jobs import Job
from runner.launch.launch import Event
from runner.launch.results import identity
from runner.schema import compilations
from runner.schema.draws import BASE, NEW, ChoiceNoise, comparison_processes, power_words
from runner.schema.records import SUCCESS, Json
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import CACHES, Caches, Replication, TaskResult
from runner.suites import PRESETS, SUITES, file, request, suite_of
from runner.system import interpreters, machine
from runner.system.accelerators import Accelerator, accelerators
from runner.system.interpreters import Interpreter, interpreter_of, interpreter_or_own

_CANCELLED = 130  # as a shell says it for Ctrl-C
_MAX_REPEATS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    about = "a case of one's own: its build() → (module, inputs); of the suite kernels, what GET kernels gave"
    add("--file", type=Path, metavar="FILE", help=about)

    add = parser.add_argument_group("what to run").add_argument
    add("--preset", choices=PRESETS, help="what this system's own script measures; other options go first")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    case = "NAME[OPTION=VALUE,…]"
    add("--case", dest="cases", action="append", default=[], metavar=case, help="several integers: 1024+4096")
    only = "only cases whose name it matches, or another that is given"
    add("-k", "--filter", action="append", default=[], metavar="RE", help=only)
    add("-x", "--exclude", default="", metavar="RE", help="not the cases whose name it matches")
    add("--exclude-exact", **several, metavar="NAME", help="not these cases")
    add("--partition", default="", metavar="I/N", help="part I of N of the tasks, from 1")
    add("--backend", **several, dest="backends", metavar="BACKEND")
    add("--mode", **several, dest="modes", metavar="MODE")
    add("--dtype", **several, dest="dtypes", metavar="DTYPE")
    add("--dynamic", action="store_true", help="dynamic shapes")

    add = parser.add_argument_group("how").add_argument
    add("-n", "--repeat", type=int, metavar="N", help="samples of call time, at least")
    add("--iterations-per-run", type=int, metavar="N", help="calls in one sample")
    add("--batch-size", type=int, metavar="N", help="instead of each model's own")
    add("--verify", action="store_true", help="check results also where a suite does not by itself")
    add("--timeout", dest="timeout_s", type=int, metavar="S", help="seconds that a task may take")
    add("--opt", **several, dest="options", metavar="NAME=VALUE", help="an option for every case")
    add("--compilations", type=int, metavar="N", help="processes that compile with empty caches")
    add("--draws", type=int, metavar="K", help="A/B at equal choices: compilations drawn on each side")
    add("--repeats", type=int, metavar="N", help="processes over the first one's caches, or at each A/B draw")
    add("--caches", choices=CACHES, help="kept: of earlier commands; ledger: proven choices; A/B: no draws")
    add(
        "--pinned", type=Path, metavar="FILE", help="force the kernels' configurations of an earlier --output"
    )

    add = parser.add_argument_group("where").add_argument
    python = "NAME=PATH[,ENV=VALUE…]"
    add("--device", default="", help="cpu, cuda or cuda:N; the first GPU where there is one")
    add("--python", default="", metavar=python, help="the interpreter that has torch")
    add("--base-python", default="", metavar=python, help="measured in turn with --python")
    add("--new-opt", **several, metavar="OPTION=VALUE", help="inductor options of --python in pairs")

    add = parser.add_argument_group("results").add_argument
    add("--dry-run", action="store_true", help="print the tasks as commands and stop")
    add("--output", type=Path, metavar="FILE")
    add("--format", choices=FORMATS, default="ours")
    add("--resume", action="store_true", help="skip tasks that succeeded in --output before")
    add("--baseline", type=Path, metavar="FILE", help="compare with an earlier --output")


def main(options: argparse.Namespace) -> int:
    """Run the command; return 0 for success, 1 if something failed and 130 if cancelled. Raise BadRequest
    or locks.Busy."""
    chosen, tasks = planned(options)
    baseline = read_records(options.baseline, "--baseline") if options.baseline else None
    pythons, python, base = _pythons(options)
    tasks, left_out = (tasks, "") if options.backends else _runnable(tasks, pythons[python])
    new_options = _new_options(options.new_opt, tasks, pythons[python])
    base = base or (python if new_options else "")  # against itself
    sides = {name: pythons[name] for name in (base, python) if name}
    replication = _replication(options, tasks, is_ab=bool(base))
    choices = _pinned(options.pinned, tasks) if options.pinned else {}
    replicated = partial(Job, python=python, base_python=base, new_options=new_options)
    jobs = [
        replicated(
            process.task,
            process.number,
            caches=process.caches,
            pinned=choices.get(process.task.fingerprint(), {}),
            measured_with=resume.measured_with(
                process.task, sides, caches=_pinned_digest(choices, process.task) or replication.words
            ),
            rounds=replication.rounds,
        )
        for process in replication.processes(tasks)
    ]
    once = "; ".join(f"{name} is measured in one compilation" for name in replication.compiled_once(tasks))
    output = _output(options, base)
    in_file = output.earlier() if output and options.resume else []
    earlier, others = resume.kept(in_file, jobs, pythons, chosen)
    done = {result.name for result in earlier}
    waiting = [job for job in jobs if job.key not in done]
    placeless = output.check([job.task for job in jobs]) if output else ""
    for text in filter(None, (left_out, once, others, placeless)):
        print(text, file=sys.stderr)
    if options.dry_run:
        print("".join(f"{line}\n" for line in _commands(options, waiting, replication)), end="")
        return 0
    print(
        f"{len(waiting)} tasks on {chosen.device_name}; {len(jobs) - len(waiting)} done before",
        *_power(replication),
        sep="; ",
        file=sys.stderr,
    )
    caches = machine.cache_folder() / "kept" if options.caches == "kept" and not base else None
    context = RunContext(pythons, keeps_artifacts=output is not None, caches=caches)
    on_finished = output.add if output else lambda _finished: None
    finished = terminal.run_jobs(waiting, chosen, context, on_event=_print_event, on_finished=on_finished)
    _print_tables([*earlier, *finished], jobs, baseline)
    _print_files(output, finished, context)
    statuses = {result.outcome.status for result in finished}
    if "cancelled" in statuses:
        return _CANCELLED
    # cells of a matrix that cannot be here are no failure beside others
    succeeded = statuses <= SUCCESS or (statuses <= SUCCESS | {"unsupported"} and statuses & SUCCESS)
    return 0 if succeeded and not (output and output.empty) else 1


def planned(options: argparse.Namespace) -> tuple[Accelerator, list[TaskSpec]]:
    """Return the device and the tasks of a command. Raise BadRequest."""
    for name, value in PRESETS.get(options.preset, {}).items():
        setattr(options, name, getattr(options, name) or value)
    if options.file:
        path = terminal.regular_file(options.file)
        if not any(suite_of(name).file_variable for name in options.suites):
            options.suites = [*options.suites, file.NAME]
        for variable in filter(None, (suite_of(name).file_variable for name in options.suites)):
            os.environ[variable] = str(path)  # also for the processes of its tasks
    if not options.suites:
        raise BadRequest(f"say which suite to run: {', '.join(SUITES)}")
    chosen = _accelerator(options.device, dry_run=options.dry_run)
    tasks = request.tasks(options, chosen.device)
    if options.partition:
        tasks = request.partition(tasks, options.partition)
    return chosen, tasks


def _accelerator(name: str, *, dry_run: bool) -> Accelerator:
    """Return the named device, or the default. What a GPU would run can be asked without one."""
    if dry_run and name.startswith("cuda") and not machine.gpus():
        return Accelerator("cuda:0", "cuda", "any GPU", "")
    return accelerators([name] if name else [])[0]


def _runnable(tasks: list[TaskSpec], python: Interpreter) -> tuple[list[TaskSpec], str]:
    """Leave out the cells of a matrix that need a package which the interpreter lacks. Also return a message
    that counts them, or ''."""

    def needs(task: TaskSpec) -> set[str]:
        suite = suite_of(task.suite)
        return {*suite.packages_of(task)} if suite.matrix else set()

    lacking = {name for task in tasks for name in needs(task)}
    if lacking:
        lacking -= interpreters.environment_of("cpu", python).packages.keys()
    able = [task for task in tasks if not needs(task) & lacking]
    if not able or not lacking:
        return tasks, ""
    names = ", ".join(sorted(lacking))
    return able, f"{len(tasks) - len(able)} of {len(tasks)} cells need {names}, which the interpreter lacks"


def _replication(options: argparse.Namespace, tasks: Sequence[TaskSpec], *, is_ab: bool) -> Replication:
    if options.repeats is not None and not 1 <= options.repeats <= _MAX_REPEATS:
        raise BadRequest(f"--repeats is 1 to {_MAX_REPEATS}, not {options.repeats}")
    if options.caches == "ledger":
        proven = ledger.applied()
        if not any(proven.of(task).all for task in tasks):
            raise BadRequest(f"--caches ledger: the choices applied here ({proven.arch}) are of other tasks")
    if options.pinned and is_ab:
        raise BadRequest("--pinned FILE is of one environment; an A/B comparison pins its own draws")
    if bool(options.pinned) != (options.caches == "pinned") and options.caches not in {None, "fresh"}:
        raise BadRequest("--caches pinned takes --pinned FILE, and no other caches do")
    caches: Caches | None = "pinned" if options.pinned else options.caches
    return Replication(_compilations(options), options.repeats, caches, is_ab=is_ab, draws=options.draws)


def _compilations(options: argparse.Namespace) -> int | None:
    """Return --compilations. A file of an outside system has one place for each case."""
    return 1 if options.compilations is None and options.format == "upstream" else options.compilations


def _pythons(options: argparse.Namespace) -> tuple[dict[str, Interpreter], str, str]:
    """Return interpreters by name, the one to use, and the base of a comparison or ''."""
    python, own = interpreter_or_own(options.python)
    pythons, base = {python: own}, ""
    if options.base_python:
        base, pythons[base] = interpreter_of(options.base_python)
    if options.python and python == base:
        raise BadRequest("--python and --base-python need names of their own")
    return pythons, python, base


def _new_options(
    settings: Sequence[str], tasks: Sequence[TaskSpec], python: Interpreter
) -> compilations.InductorOptions:
    """Return the options of --new-opt, checked; the interpreter is asked for one that is not listed. Raise
    BadRequest, also for a task that takes none."""
    options = compilations.parsed_inductor_options(settings)
    if options.keys() - compilations.INDUCTOR_OPTIONS.keys():
        try:
            facts = interpreters.torch_facts("cpu", python)
        except RuntimeError as error:
            raise BadRequest(f"--new-opt: {error}") from error
        options = compilations.checked_inductor_options(options, facts["inductor_options"])
    for task in tasks:
        if options and not suite_of(task.suite).takes_inductor_options(task):
            name = f"{task.suite}/{task.case} ({task.backend})"
            raise BadRequest(f"--new-opt: {name} takes no options of inductor")
    return options


def _output(options: argparse.Namespace, base: str) -> Output | None:
    path, is_upstream = options.output, options.format == "upstream"
    if path is None and is_upstream and (name := writer_of(options.suites).default_file):
        path = Path(name)
    if path is None:
        if options.resume or options.format != "ours":
            raise BadRequest("--resume and --format need --output FILE")
        return None
    if base and is_upstream:
        raise BadRequest("--format upstream: no outside system's file can say the two sides of a pair")
    return Output(path, options.format, suites=options.suites, resume=options.resume, dry_run=options.dry_run)


def _commands(options: argparse.Namespace, jobs: Sequence[Job], replication: Replication) -> list[str]:
    """Return a command for each task of these jobs, below remarks in shell comments."""
    remarks = []
    processes = 1 + max((job.process for job in jobs), default=0)
    if jobs and jobs[0].base_python:
        job = jobs[0]
        sides = f"{BASE} ({job.label(BASE)}) and {NEW} ({job.label(NEW)})"
        text = f"{processes} pairs of fresh processes, {sides} in turn"
        if replication.at_equal_choices:
            text += f"; both are pinned to the choices of each, {4 * replication.rounds} processes a pair"
        repeats = replication.rounds if replication.at_equal_choices else 0
        text += f": {comparison_processes(2 * processes, repeats)} processes with the two that warm up"
        remarks.append("; ".join([f"# each command measures in {text}", *_power(replication)]))
    if processes > 1 and len(jobs) > processes:
        remarks.append("# the whole request takes turns: every task once, then every task again")
    ours = options.output is not None and options.format == "ours"
    if options.format != "ours":
        remarks.append(f"# --format {options.format} is a file of one command: give each its own --output")
    rest = [
        _option("--timeout", options.timeout_s),
        _option("--new-opt", *options.new_opt),
        *(
            _option(f"--{name.replace('_', '-')}", getattr(options, name))
            for name in ("base_python", "python", "draws", "repeats", "caches", "pinned")
        ),
        # the commands go on with one file, which only one of --format ours can be
        *([_option("--output", options.output), "--resume"] if ours else []),
    ]
    where = _option("--device", options.device)
    tasks = {job.task.fingerprint(): job.task for job in jobs}.values()
    several = _option("--compilations", _compilations(options))
    commands = [
        [task.command(where=where), several * suite_of(task.suite).has_compilations(task), *rest]
        for task in tasks
    ]
    return [*remarks, *(" ".join(filter(None, command)) for command in commands)]


def _power(replication: Replication) -> list[str]:
    """Return what a comparison at equal choices finds, before it starts; no others have draws."""
    draws = 2 * replication.pairs_planned
    return [power_words(ChoiceNoise(), draws, replication.rounds)] if replication.at_equal_choices else []


def _option(name: str, *values: object) -> str:
    return shlex.join([name, *map(str, values)]) if values and values[0] not in {None, ""} else ""


def _pinned(path: Path, tasks: Sequence[TaskSpec]) -> dict[str, dict[str, str]]:
    """Return the choices (by slot) of each task (by its fingerprint), of its first compilation in the file.

    Raise BadRequest for a file without results, or without choices for one of the tasks.
    """
    compiled = [record for record in read_records(path, "--pinned") if compilations.COMPILED in _info(record)]
    compiled.sort(key=lambda record: _info(record).get(compilations.COMPILATION) or 0)
    by_task = {}
    for task in tasks:
        suite = suite_of(task.suite)
        expected = suite.expected_in_full(task, os.environ)
        own = [record for record in compiled if not suite.problem_of(identity(record), task, expected)]
        choices = compilations.choices_of(own)
        if not choices:
            raise BadRequest(f"--pinned {path} has no choices of {task.suite}/{task.case} ({task.backend})")
        by_task[task.fingerprint()] = choices
    return by_task


def _pinned_digest(choices: Mapping[str, Mapping[str, str]], task: TaskSpec) -> str:
    """Return what tells a pinned task from others, '' where nothing is pinned."""
    own = choices.get(task.fingerprint())
    return f"pinned {compilations.digest(*map(' '.join, sorted(own.items())))}" if own else ""


def _info(record: Mapping[str, Json]) -> dict[str, Json]:
    metric = record.get("metric") or {}
    info: dict[str, Json] = metric.get("extra_info") or {}
    return info


def _print_event(task: TaskSpec, event: Event) -> None:
    progress = f"{event['done']}/{event['total']}" if event.get("total") else ""
    label = str(event.get("label") or "")
    parts = [task.suite, task.case, task.dtype, progress, str(event.get("phase")), label]
    print(" ".join(filter(None, parts)), file=sys.stderr)


def _print_tables(finished: Sequence[TaskResult], jobs: Sequence[Job], baseline: list[Json] | None) -> None:
    """Print the tables, and where to look for what went wrong."""
    free = tables.without_pinned(finished)
    parts = [tables.results(free)] if finished else []
    if len(jobs) > 1:
        parts.append(tables.overview(free, [job.task for job in jobs]))
    if any(job.base_python for job in jobs):
        parts += [tables.draws(finished), tables.pairs(finished)]
    if baseline is not None:
        parts.append(tables.against(baseline, finished))
    print("\n\n".join(filter(None, parts)))
    for item in finished:
        if item.outcome.status != "ok":
            print(f"{item.task.command()}: {item.outcome.status} {item.outcome.reason}")
            print(f"  log: {item.folder / 'log'}")


def _print_files(output: Output | None, finished: Sequence[TaskResult], context: RunContext) -> None:
    """Print where artifacts are, and what is not in the file."""
    folders = [f"{context.folder}/*/artifacts"] if any(result.artifacts() for result in finished) else []
    for folder in sorted(map(str, output.artifacts)) if output else folders:
        print(f"artifacts: {folder}")
    left_out = output.left_out() if output else ""
    if left_out:
        print(left_out, file=sys.stderr)
