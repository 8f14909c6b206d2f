"""What `--resume` takes from earlier sittings: not what is called the same, but what was measured with it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner import host
from runner.accelerators import Accelerator
from runner.catalog import TaskSpec
from runner.catalog.suites import operators
from runner.installed import versions_of
from runner.interpreters import DEFAULT, Interpreter
from runner.pairs import BASE
from runner.task_result import TaskResult
from runner.terminal import Job, plain_key

_DIGITS = 12
_VARIABLES = ("TORCHBENCH",)  # beside those that belong to the class of an environment
_OTHER = "another interpreter, variable or file"

Versions = Callable[[str], Mapping[str, str]]  # of an interpreter, by its name


def measured_with(task: TaskSpec, sides: Mapping[str, Interpreter]) -> str:
    """A digest of what decides what is measured and does not stand in the task: named interpreters, variables
    of this shell, the file behind `inputs=own`. '' where there is nothing of it."""
    plain = (DEFAULT, Interpreter(sys.executable))
    pythons = {
        name: [_place(one), dict(one.environment)] for name, one in sides.items() if (name, one) != plain
    }
    variables = host.changing_variables()
    variables |= {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    inputs = {name: found for name, one in sides.items() if (found := _inputs(task, one))}
    if not (pythons or variables or inputs):
        return ""
    text = json.dumps([pythons, variables, inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _place(interpreter: Interpreter) -> str:
    """Where it lies. The program itself may be a link and is not followed: those of all virtual environments
    lead to the one Python that they were made of."""
    path = Path(interpreter.path)
    return str(path.parent.resolve() / path.name)


def _inputs(task: TaskSpec, interpreter: Interpreter) -> str:
    """Which file stands behind `inputs=own`, '' for any other task."""
    if (task.suite, task.knobs.get("inputs")) != (operators.SUITE.name, operators.OWN):
        return ""
    return operators.digest_of_own({**os.environ, **interpreter.environment})


def taken(
    earlier: Sequence[TaskResult],
    jobs: Sequence[Job],
    pythons: Mapping[str, Interpreter],
    chosen: Accelerator,
) -> tuple[list[TaskResult], str]:
    """What of the earlier need not be measured again for these jobs on such accelerators; and in words how
    many of them were measured with something else, '' where none was."""
    versions = functools.cache(lambda name: _versions(pythons[name]))
    by_key = {job.key: job for job in jobs}
    found, others = [], {}
    for one in earlier:
        job = by_key.get(one.name)
        difference = _other_device(one, chosen) or _difference(one, job, versions) if job else _OTHER
        if difference:
            others[plain_key(one.name)] = difference
        else:
            found.append(one)
    done = {one.name for one in found}
    anew = [others[job.plain_key] for job in jobs if job.key not in done and job.plain_key in others]
    reasons = "; ".join(f"{reason} ({count})" for reason, count in Counter(anew).most_common())
    if not anew:
        return found, ""
    return found, f"{len(anew)} of {len(jobs)} tasks are measured anew, the file has them with {reasons}"


def _versions(interpreter: Interpreter) -> Mapping[str, str]:
    """Nothing where it cannot say it: its tasks will."""
    try:
        return host.asked("runner.installed", python=interpreter.path, variables=interpreter.environment)
    except (RuntimeError, ValueError, IndexError):
        return {}


def _other_device(one: TaskResult, chosen: Accelerator) -> str:
    """Where this is not of the kind that it was measured on."""
    for record in one.records:
        before = record["runners"][0].get("type", "") if record.get("runners") else ""
        # nvidia-smi names the whole card; and some tasks for a GPU work on the CPU
        if before and before.partition(" MIG ")[0] not in {chosen.device_name, host.cpu_name()}:
            return f"{before}, which is {chosen.device_name} now"
    return ""


def _difference(one: TaskResult, job: Job, versions: Versions) -> str:
    """The first of what both records and interpreter have, in another version; '' where there is none."""
    for record in one.records:
        pair = record["runners"][0].get("extra_info", {}).get("pair", {}) if record.get("runners") else {}
        now = versions(job.base_python if pair.get("side") == BASE else job.python)
        for name, before in versions_of(record).items():
            if now.get(name, before) != before:
                return f"{name} {before}, which is {now[name]} now"
    return ""
