"""The Pythons of a machine that have torch."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NEXT_VARIABLE = re.compile(r",(?=[A-Za-z_]\w*=)")
DEFAULT = "default"  # name of the one that runs the runner itself


@dataclass(frozen=True)
class Interpreter:
    """A Python that has torch, and what its environment has besides ours."""

    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def interpreter_of(text: str) -> tuple[str, Interpreter]:
    """Read ``NAME=PATH[,ENV=VALUE…]``, NAME first; a PATH without a slash is looked for where a shell looks.

    A comma that no ``ENV=`` follows is part of the value, such as one of JSON. Raise ValueError.
    """
    first, *variables = _NEXT_VARIABLE.split(text)
    name, separator, path = first.partition("=")
    program = shutil.which(path)
    if separator and name and not program:
        raise ValueError(f"{text}: {path} is no program that can be run here")
    if not separator or not name or not program:
        raise ValueError(f"{text}: it is NAME=PATH of a program, then ENV=VALUE after commas")
    pairs = [variable.partition("=") for variable in variables]
    absolute = str(Path(program).absolute())  # a task's process starts in a folder of its own
    return name, Interpreter(absolute, {key: value for key, _equals, value in pairs})
