"""`--pinned FILE`: the choices of an earlier compilation, by task and slot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.cli.output import read_records
from runner.launch.results import identity
from runner.schema.compilations import COMPILATION, COMPILED, digest, pinned
from runner.schema.records import Json
from runner.schema.suite import BadRequest, TaskSpec, suite_of


def read(path: Path, tasks: Sequence[TaskSpec]) -> dict[str, dict[str, str]]:
    """Return the choices of each task by its fingerprint, of its first compilation in the file.

    Raise BadRequest for a file without results, or without choices for one of the tasks.
    """
    compiled = [record for record in read_records(path, "--pinned") if COMPILED in _info(record)]
    compiled.sort(key=lambda record: _info(record).get(COMPILATION) or 0)
    found = {}
    for task in tasks:
        suite = suite_of(task.suite)
        expected = suite.expected_in_full(task, os.environ)
        own = [record for record in compiled if not suite.problem_of(identity(record), task, expected)]
        kernels = [kernel for record in own for kernel in _info(record)[COMPILED].get("kernels", [])]
        choices = pinned((str(kernel.get("slot", "")), str(kernel.get("config", ""))) for kernel in kernels)
        found[task.fingerprint()] = choices
        if not choices:
            raise BadRequest(f"--pinned {path} has no choices of {task.suite}/{task.case} ({task.backend})")
    return found


def digest_of(choices: Mapping[str, Mapping[str, str]], task: TaskSpec) -> str:
    """Return what tells a pinned task from others, '' where nothing is pinned."""
    own = choices.get(task.fingerprint())
    return f"pinned {digest(*map(' '.join, sorted(own.items())))}" if own else ""


def _info(record: Mapping[str, Json]) -> dict[str, Json]:
    metric = record.get("metric") or {}
    info: dict[str, Json] = metric.get("extra_info") or {}
    return info
