"""Record the operators that a model calls, with their inputs as operatorbench writes them.

`python -m runner.suites.operators.record MODE` prints the log of a step of the model in RUNNER_FILE, in JSON.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner.suites.file import NAME, models
from runner.suites.operators.inputs import DTYPES, Counts
from runner.suites.torchdynamo.model import ModelRequest, call

_SHORT = {getattr(torch, name): short for short, name in DTYPES.items()}
_ASKED = "aten._local_scalar_dense.default"  # .item(), or a tensor in an `if`
_WITHOUT = (  # compute nothing
    *("aten._unsafe_view.default", "aten.detach.default", _ASKED),
    *("aten.new_empty.default", "aten.new_empty_strided.default"),
)
# A conversion is a new tensor and a copy into it; autograd shows only the conversion.
_CONVERSION, _COPY = "aten._to_copy.default", "aten.copy_.default"
# Places of statistics, which a GPU keeps in float32 although the rest is in float16.
_STATISTICS = {
    "aten.native_layer_norm_backward.default": (3, 4),
    "aten.native_group_norm_backward.default": (2, 3),
    "aten.native_batch_norm_backward.default": (5, 6),
}


class Recording(TorchDispatchMode):
    """Counts the calls of every operator that computes something.

    Tensors on the meta device have no values. A model that asks for a boolean gets True: models ask whether
    their inputs are plain (nothing padded, nothing packed), which they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(func), kwargs or {}
        if name == _ASKED and args[0].is_meta and args[0].dtype == torch.bool:
            return True
        if _computes(func) and name not in _WITHOUT:
            text = _text(name, args, kwargs)
            if text:
                self.counts[name][text] += 1
            if text and name == _CONVERSION and "dtype" in kwargs:
                target = args[0].to(kwargs["dtype"])
                self.counts[_COPY][_text(_COPY, (target, args[0]), {})] += 1
        return func(*args, **kwargs)

    def calls(self) -> Counts:
        return {name: dict(calls) for name, calls in self.counts.items()}


@cache
def _computes(operator: Any) -> bool:
    """Return False for constructors and views."""
    schema = operator._schema
    tensors = [argument for argument in schema.arguments if "Tensor" in str(argument.type)]
    if not tensors or "_like" in operator.name() or not operator.name().startswith("aten::"):
        return False
    if schema.is_mutable:
        return True
    return not any(value.alias_info for value in schema.returns)


def _text(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Return the call as operatorbench writes it, or '' if it cannot be written."""
    statistics = _STATISTICS.get(name, ())
    try:
        parts = [_argument(value, full=place in statistics) for place, value in enumerate(args)]
        named = ", ".join(f"{key!r}: {_argument(value)}" for key, value in kwargs.items())
    except TypeError:
        return ""
    return f"(({', '.join(parts)}{',' if len(parts) == 1 else ''}), {{{named}}})"


def _argument(value: Any, *, full: bool = False) -> str:
    if isinstance(value, torch.Tensor):
        dtype = "f32" if full and value.dtype == torch.float16 else _SHORT[value.dtype]
        stride = "" if value.is_contiguous() else f", stride={tuple(value.stride())}"
        return f"T({list(value.shape)}, {dtype}{stride})"
    if isinstance(value, torch.dtype):
        return _SHORT[value]
    if isinstance(value, torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return repr("cuda")
    if isinstance(value, list | tuple):
        parts = [_argument(item) for item in value]
        return f"[{', '.join(parts)}]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise TypeError(type(value))


def recorded_file(mode: str) -> Counts:
    """Return the calls of one step of the user's own file on the CPU; of a training step with its backward.
    Raise TaskFailure (failed, bad_file)."""
    training = mode == "training"
    built = models.build(NAME, ModelRequest("cpu", None, training=training))
    built.module.train(training)
    with torch.set_grad_enabled(training), Recording() as recording:
        output = call(built.module, built.inputs)
        if training:
            built.loss(output).backward()
    return recording.calls()


def log_of(counts: Counts) -> str:
    """Return a log as operatorbench's `log_to_file` writes it: operators by name."""
    lines = []
    for operator, calls in sorted(counts.items()):
        lines += [f"Operator: {operator}", *(f"cnt: {count}, {text}" for text, count in calls.items())]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps({'file': log_of(recorded_file(sys.argv[1]))})}\n")
