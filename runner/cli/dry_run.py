"""`--dry-run`: print a command for each task of a request."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from runner.launch.pairs import BASE, NEW, Job
from runner.schema.suite import suite_of


def lines(options: argparse.Namespace, jobs: Sequence[Job]) -> list[str]:
    """Return a command for each task of these jobs, below remarks in shell comments."""
    remarks = []
    processes = 1 + max((job.process for job in jobs), default=0)
    if jobs and jobs[0].base_python:
        job = jobs[0]
        sides = f"{BASE} ({job.label(BASE)}) and {NEW} ({job.label(NEW)})"
        remarks.append(f"# each command measures in {processes} pairs of fresh processes, {sides} in turn")
    if processes > 1 and len(jobs) > processes:
        remarks.append("# the whole request takes turns: every task once, then every task again")
    ours = options.output is not None and options.format == "ours"
    if options.output is not None and not ours:
        remarks.append(f"# --format {options.format} is a file of one command: give each its own --output")
    rest = [
        _option("--timeout", options.timeout_s),
        _option("--base-python", options.base_python),
        _option("--python", options.python),
        _option("--new-opt", *options.new_opt),
        _option("--repeats", options.repeats),
        _option("--caches", options.caches if options.caches != "fresh" else ""),
        _option("--pinned", options.pinned),
        # the commands go on with one file, which only one of --format ours can be
        *([_option("--output", options.output), "--resume"] if ours else []),
    ]
    where = _option("--device", options.device)
    tasks = {job.task.fingerprint(): job.task for job in jobs}.values()
    compilations = (
        1 if options.compilations is None and options.format == "upstream" else options.compilations
    )
    several = _option("--compilations", compilations)
    commands = [
        " ".join(
            filter(
                None,
                [task.command(where=where), several * suite_of(task.suite).has_compilations(task), *rest],
            )
        )
        for task in tasks
    ]
    return [*remarks, *commands]


def _option(name: str, *values: object) -> str:
    return shlex.join([name, *map(str, values)]) if values and values[0] not in {None, ""} else ""
