"""Choose which results of an earlier command `--resume` keeps: those measured with the same software."""

import functools
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner.launch.jobs import Job, plain_key
from runner.schema.records import Json, runner_facts
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskResult
from runner.suites import suite_of
from runner.system import interpreters, machine
from runner.system.accelerators import Accelerator
from runner.system.interpreters import DEFAULT, Interpreter

_DIGITS = 12
_COMMIT_DIGITS = 9
_VARIABLES = ("TORCHBENCH",)  # beside those that belong to the class of an environment
_OTHER = "another interpreter, variable or file"

Versions = Callable[[str], Mapping[str, str]]  # of an interpreter, by its name


def measured_with(task: TaskSpec, sides: Mapping[str, Interpreter], *, caches: str = "") -> str:
    """Return a digest of what affects a result and is not in the task: named interpreters, environment
    variables, the file behind `inputs=own`, `caches` in words where they are not fresh. Return '' if there is
    none."""
    plain = (DEFAULT, Interpreter(sys.executable))
    pythons = {
        # the program itself is not resolved: those of all virtual environments lead to one Python
        name: [str(Path(side.path).parent.resolve() / Path(side.path).name), dict(side.environment)]
        for name, side in sides.items()
        if (name, side) != plain
    }
    variables = machine.changing_variables()
    variables |= {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    suite = suite_of(task.suite)
    inputs = {
        name: digest
        for name, side in sides.items()
        if (digest := suite.files_digest(task, {**os.environ, **side.environment}))
    }
    parts = [pythons, variables, inputs, *filter(None, [caches])]
    if not any(parts):
        return ""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def kept(
    earlier: Sequence[TaskResult],
    jobs: Sequence[Job],
    pythons: Mapping[str, Interpreter],
    chosen: Accelerator,
) -> tuple[list[TaskResult], str]:
    """Return the earlier results to keep, and a message that counts the jobs to measure again by reason."""

    @functools.cache
    def versions(name: str) -> Mapping[str, str]:
        return versions_of(interpreters.environment_of("cpu", pythons[name]).to_record_fields(""))

    by_key = {job.key: job for job in jobs}
    results, reasons = [], {}
    for result in earlier:
        job = by_key.get(result.name)
        reason = _difference(result, job, chosen, versions) if job else _OTHER
        if reason:
            reasons[plain_key(result.name)] = reason
        else:
            results.append(result)
    done = {result.name for result in results}
    again = [reasons[job.plain_key] for job in jobs if job.key not in done and job.plain_key in reasons]
    if not again:
        return results, ""
    counts = "; ".join(f"{reason} ({count})" for reason, count in Counter(again).most_common())
    return results, f"{len(again)} of {len(jobs)} tasks are measured anew, the file has them with {counts}"


def versions_of(record: Mapping[str, Json]) -> dict[str, str]:
    """Return the versions in a record (v3) by package, torch's with its commit."""
    versions = {"python": runner_facts(record).get("python", "")}
    for name, facts in (record.get("dependencies") or {}).items():
        versions[name] = f"{facts.get('version', '')} {facts.get('sha', '')[:_COMMIT_DIGITS]}".strip()
    return {name: text for name, text in versions.items() if text}


def _difference(done: TaskResult, job: Job, chosen: Accelerator, versions: Versions) -> str:
    """Return the first difference in device or versions between a result and this machine, or ''."""
    for device in ((record.get("runners") or [{}])[0].get("type", "") for record in done.records):
        # nvidia-smi names the whole card; and some tasks for a GPU work on the CPU
        if device and device.partition(" MIG ")[0] not in {chosen.device_name, machine.cpu_name()}:
            return f"{device}, which is {chosen.device_name} now"
    for record in done.records:
        side = runner_facts(record).get("pair", {}).get("side")
        now = versions(job.interpreter(side))
        for name, before in versions_of(record).items():
            if now.get(name, before) != before:
                return f"{name} {before}, which is {now[name]} now"
    return ""
