"""Recorded inputs of operators: our shape files, which `tests/support/operator_shapes.py` writes, and the
logs that operatorbench reads. No torch, no eval.

Both have a text for each distinct call, as operatorbench writes it: ``((T([64, 768], f16), 2), {})``, where
T is a tensor of a shape and dtype, ST a sparse one. The text is parsed as Python syntax and never executed.
"""

import ast
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.schema.options import OptionValue
from runner.schema.suite import TaskSpec

OWN = "own"
OWN_INPUTS = "RUNNER_OPERATOR_INPUTS"  # of a host: the file behind `inputs=own`
INPUTS = ("huggingface", "timm", "torchbench", OWN)
DTYPES = {
    "bf16": "bfloat16", "f64": "float64", "f32": "float32", "f16": "float16",
    "c32": "complex32", "c64": "complex64", "c128": "complex128",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "b8": "bool", "u8": "uint8",
}  # fmt: skip
_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format", "strided")
_OF_TORCH = (*_FORMATS, *DTYPES.values())
_RENAMED = {"aten.sum.SymInt": "aten.sum.dim_IntList"}  # as operatorbench has it
_LOGGED = re.compile(r"cnt:\s*(?P<count>[0-9]{1,12})\s*,(?P<call>.*)")
_LABEL = 60  # characters of a shape's name before its digest
_OTHER = re.compile(r"[^\w.()*-]", re.ASCII)
SHAPES = Path(__file__).parent / "shapes"


class BadInputs(ValueError):
    """A file or a call that cannot be read; the text says where."""


@dataclass(frozen=True)
class TensorForm:
    shape: tuple[int, ...]
    dtype: str  # as torch names it
    stride: tuple[int, ...] | None = None  # None: contiguous


@dataclass(frozen=True)
class Word:
    """An argument that is a name of torch: a dtype or a memory format."""

    name: str


_WORDS = {short: Word(name) for short, name in DTYPES.items()}


@dataclass(frozen=True)
class Call:
    """One recorded call of an operator; `count` is how often the models made it."""

    operator: str  # aten.mm.default
    text: str
    count: int

    @property
    def label(self) -> str:
        """Return a short name without brackets or commas, unique by its digest: ``f16(64x768)*2#1a2b3c4d``.

        A call that cannot be read has one too, for its row.
        """
        digest = hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        try:
            args, kwargs = parse(self.text)
        except BadInputs:
            return f"unreadable#{digest}"
        words = "*".join(filter(None, map(_word, [*args, *kwargs.values()])))
        return f"{_OTHER.sub('', words)[:_LABEL]}#{digest}"


def _word(value: Any) -> str:
    if isinstance(value, TensorForm):
        strided = "s" if value.stride else ""
        short = next((key for key, name in DTYPES.items() if name == value.dtype), value.dtype)
        return f"{short}({'x'.join(map(str, value.shape))}{strided})"
    if isinstance(value, Word):
        return value.name
    if isinstance(value, list | tuple):
        return ".".join(filter(None, map(_word, value)))
    return "" if value is None else str(value)


def parse(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's positional and keyword arguments: TensorForm, Word, lists and plain values. Raise
    BadInputs for anything but tensors T(…), dtypes and literals."""
    try:
        found = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInputs(f"{text[:80]!r}: {str(error) or 'nested too deep'}") from error
    if isinstance(found, tuple) and len(found) == 2:
        args, kwargs = found
        if isinstance(args, tuple) and isinstance(kwargs, dict):
            return args, kwargs
    raise BadInputs(f"{text[:80]!r} is not (arguments, keywords)")


def _value(node: ast.expr) -> Any:  # noqa: C901, PLR0911 - a case for each kind of argument
    match node:
        case ast.Constant(value=str(text)):
            return _WORDS.get(text, text)
        case ast.Constant(value=None | bool() | int() | float() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() | ast.Name(id="inf") as operand):
            value = _value(operand)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id=short) if short in _WORDS:
            return _WORDS[short]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _OF_TORCH:
            return Word(name)
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [key.value for key in keys if isinstance(key, ast.Constant)]
            if len(names) == len(keys) and all(isinstance(name, str) for name in names):
                return dict(zip(names, map(_value, values), strict=True))
        case ast.Call(func=ast.Name(id="T")):
            return _tensor(node)
    raise _bad(node, "is no tensor, dtype or literal")


def _tensor(node: ast.Call) -> TensorForm:
    if len(node.args) != 2 or any(keyword.arg != "stride" for keyword in node.keywords):
        raise _bad(node, "is not T(shape, dtype, stride=…)")
    dtype = _value(node.args[1])
    if not isinstance(dtype, Word):
        raise _bad(node, "has no dtype")
    stride = _sizes(_value(node.keywords[0].value)) if node.keywords else None
    shape = _sizes(_value(node.args[0]))
    if stride is not None and len(stride) != len(shape):
        raise _bad(node, "needs as many strides as sizes")
    return TensorForm(shape, dtype.name, stride)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or any(type(item) is not int or item < 0 for item in value):
        raise BadInputs(f"{value!r} is no shape")
    return tuple(value)


def _bad(node: ast.expr, problem: str) -> BadInputs:
    return BadInputs(f"{ast.unparse(node)[:80]!r} {problem}")


Counts = dict[str, dict[str, int]]  # operator → text of a call → how often


def read_log(text: str) -> Counts:
    """Read operatorbench's log: ``Operator: NAME``, then lines ``cnt: N, (arguments, keywords)``.

    Raise BadInputs with the line. Calls with sparse tensors are left out, since their inputs cannot be made.
    """
    found: Counts = {}
    operator = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("Operator: "):
            name = line.removeprefix("Operator: ").strip()
            operator = _RENAMED.get(name, name)
        elif line.strip():
            logged = _LOGGED.match(line)
            if not operator or not logged:
                raise BadInputs(f"line {number}: {line[:60]!r} is neither 'Operator: NAME' nor 'cnt: N, …'")
            call = logged["call"].strip().strip("'\"")
            if "ST(" not in call:
                calls = found.setdefault(operator, {})
                calls[call] = calls.get(call, 0) + int(logged["count"])
    return found


def calls_of_task(task: TaskSpec, variables: Mapping[str, str]) -> list[Call]:
    """Return the recorded calls that a task with these variables measures. Raise BadInputs, OSError."""
    calls = calls_of(read_shapes(_path_of(str(task.setting("inputs")), variables)), task.case)
    if shape := task.setting("shape"):
        return [call for call in calls if call.label == shape]
    first, most = task.number("start_idx"), task.number("max_samples")
    return calls[first : first + most]


def recorded(inputs: OptionValue | None) -> Sequence[str]:
    """Return the operators with recorded calls, the most frequent first. Only a host knows those of its own
    log: elsewhere, as for inputs that do not exist, there are none."""
    if inputs != OWN:
        return _shipped(str(inputs)) if inputs in INPUTS else ()
    try:
        counts = read_shapes(_path_of(OWN, os.environ))
    except (BadInputs, OSError):
        return ()
    return sorted(counts, key=lambda operator: -sum(counts[operator].values()))


@functools.cache
def _shipped(inputs: str) -> Sequence[str]:
    return tuple(read_shapes(_path_of(inputs, {})))


def _path_of(name: str, variables: Mapping[str, str]) -> Path:
    """Return the file of recorded calls. Raise BadInputs."""
    if name != OWN:
        return SHAPES / f"{name}.json"
    if not variables.get(OWN_INPUTS):
        raise BadInputs(f"{OWN_INPUTS} names no file of recorded inputs here")
    return Path(variables[OWN_INPUTS])


def read_shapes(path: Path) -> Counts:
    """Read a shape file of ours, or a log. Raise BadInputs, OSError."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise BadInputs(f"{path.name} is no text: byte {error.start}") from error
    if not text.lstrip().startswith("{"):
        return read_log(text)
    try:
        operators = json.loads(text)["operators"]
        return {
            name: {call: int(count) for call, count in calls.items()} for name, calls in operators.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInputs(f"{path.name} is no shape file: {error}") from error


def calls_of(counts: Counts, operator: str) -> list[Call]:
    """Return the calls of an operator, the most frequent first."""
    ordered = sorted(counts.get(operator, {}).items(), key=lambda item: (-item[1], item[0]))
    return [Call(operator, text, count) for text, count in ordered]
