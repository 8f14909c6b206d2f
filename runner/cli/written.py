"""The commands whose file an interpreter with torch writes.

`python -m runner record` writes the operators that a model calls, as inputs of operatorbench; `reproduce`
writes a task as one file that runs with torch alone.
"""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

from runner.cli import run, terminal
from runner.schema.suite import BadRequest
from runner.suites import file
from runner.system import locks
from runner.system.interpreters import Interpreter, answer_of, interpreter_or_own

_LIMIT_S = 1800


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--file", type=Path, required=True, metavar="MODEL.PY", help="its build() → (module, inputs)")
    add("--mode", choices=("inference", "training"), default="inference")
    add("--python", default="", metavar="NAME=PATH[,ENV=VALUE…]", help="the interpreter that has torch")
    add("--output", type=Path, default=Path("operators.txt"), metavar="FILE")


def record(options: argparse.Namespace) -> int:
    """Write the operators of a step of the file's model; return 0. Raise BadRequest."""
    path, variables = options.output, {file.VARIABLE: str(terminal.regular_file(options.file))}
    _write(path, options.python, variables, "runner.suites.operators.record", options.mode)
    print(f"measure it: RUNNER_OPERATOR_INPUTS={path} python -m runner run operators --opt inputs=own")
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Write the file of the only task of `run`'s options; return 0. Raise BadRequest or locks.Busy."""
    chosen, tasks = run.planned(options)
    if len(tasks) != 1:
        raise BadRequest(f"a file is of one task, not of {len(tasks)}: name case, mode, dtype and backend")
    path, variables = options.output or Path("reproduce.py"), {"CUDA_VISIBLE_DEVICES": chosen.visible}
    lock = locks.acquire(locks.default_folder(), chosen.lock, what="python -m runner reproduce")
    try:
        task = json.dumps(tasks[0].to_json())
        _write(path, options.python, variables, "runner.measure.compiler.reproduce", task)
    finally:
        os.close(lock)
    print(f"run it anywhere with torch: python {path}")
    return 0


def _write(path: Path, python: str, variables: Mapping[str, str], module: str, argument: str) -> None:
    """Write what a module of ours answers by the named interpreter to a new file. Raise BadRequest."""
    chosen = interpreter_or_own(python)[1]
    chosen = Interpreter(chosen.path, {**chosen.environment, **variables})
    try:
        answer = answer_of(chosen, module, argument, limit_s=_LIMIT_S)
        with path.open("x") as written:
            written.write(answer["file"])
    except (RuntimeError, OSError) as error:
        raise BadRequest(str(error)) from error
