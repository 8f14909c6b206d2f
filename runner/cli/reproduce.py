"""`python -m runner reproduce`: write a task as one file that runs with torch alone."""

import argparse
import json
import os
import sys
from pathlib import Path

from runner.cli import run as run_command
from runner.schema.suite import BadRequest
from runner.system import interpreters, locks
from runner.system.interpreters import Interpreter, interpreter_of

_LIMIT_S = 1800
_MODULE = "runner.measure.compiler.reproduce"


def main(options: argparse.Namespace) -> int:
    """Write the file of the only task of `run`'s options; return 0. Raise BadRequest or locks.Busy."""
    chosen, tasks = run_command.planned(options)
    if len(tasks) != 1:
        raise BadRequest(f"a file is of one task, not of {len(tasks)}: name case, mode, dtype and backend")
    python = interpreter_of(options.python)[1] if options.python else Interpreter(sys.executable)
    variables = {**python.environment, "CUDA_VISIBLE_DEVICES": chosen.visible}
    path = options.output or Path("reproduce.py")
    lock = locks.acquire(locks.default_folder(), chosen.lock, what="python -m runner reproduce")
    try:
        task = json.dumps(tasks[0].to_json())
        answer = interpreters.answer_of(Interpreter(python.path, variables), _MODULE, task, limit_s=_LIMIT_S)
        with path.open("x") as file:
            file.write(answer["file"])
    except (RuntimeError, OSError) as error:
        raise BadRequest(str(error)) from error
    finally:
        os.close(lock)
    print(f"run it anywhere with torch: python {path}")
    return 0
