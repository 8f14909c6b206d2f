"""`python -m runner record`: write the operators that a model calls, as inputs of operatorbench."""

import argparse
import sys
from pathlib import Path

from runner.schema.suite import BadRequest
from runner.suites import file
from runner.system import interpreters
from runner.system.interpreters import Interpreter, interpreter_of

_LIMIT_S = 1800
_MODULE = "runner.suites.operators.record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the whole command line of `python -m runner record`."""
    add = parser.add_argument
    add("--file", type=Path, required=True, metavar="MODEL.PY", help="its build() → (module, inputs)")
    add("--mode", choices=("inference", "training"), default="inference")
    add("--python", default="", metavar="NAME=PATH[,ENV=VALUE…]", help="the interpreter that has torch")
    add("--output", type=Path, default=Path("operators.txt"), metavar="FILE")


def main(options: argparse.Namespace) -> int:
    """Write the file; return 0. Raise BadRequest."""
    python = interpreter_of(options.python)[1] if options.python else Interpreter(sys.executable)
    variables = {**python.environment, file.VARIABLE: str(options.file.resolve())}
    try:
        answer = interpreters.answer_of(
            Interpreter(python.path, variables), _MODULE, options.mode, limit_s=_LIMIT_S
        )
        with options.output.open("x") as log:
            log.write(answer["log"])
    except (RuntimeError, OSError) as error:
        raise BadRequest(str(error)) from error
    print(
        f"measure it: RUNNER_OPERATOR_INPUTS={options.output} python -m runner run operators --opt inputs=own"
    )
    return 0
