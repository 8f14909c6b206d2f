"""Writes a file of `runner/suites/operators/shapes/`: the operators that models call, by shape, how often.

``python -m tests.support.operator_shapes huggingface --output shapes.json`` traces a training step of each
model on the meta device, where nothing is computed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from runner.formats.torchdynamo.batch_sizes import default_batch_size
from runner.suites import SUITES
from runner.suites.operators.inputs import DTYPES, Counts, calls_of
from runner.suites.torchdynamo.model import ModelRequest

_SHORT = {getattr(torch, name): short for short, name in DTYPES.items()}
_MOST_CALLS = 40  # distinct calls of an operator that a file keeps, the most frequent
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


class Recording(TorchDispatchMode):  # type: ignore[misc]
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


def trace_model(suite: str, case: str, batch_size: int | None) -> Counts:
    """Return the calls of one training step in float16 on the meta device."""
    models = importlib.import_module(f"runner.suites.{suite}.models")
    built = models.build(case, ModelRequest("meta", batch_size, training=True))
    module = built.module.half().train()
    if hasattr(module, "set_attn_implementation"):  # fused implementations hide the operators
        module.set_attn_implementation("eager")
    inputs = pytree.tree_map(
        lambda value: value.half() if torch.is_tensor(value) and value.is_floating_point() else value,
        built.inputs,
    )
    with Recording() as recording:
        output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
        built.loss(output).backward()
    return {name: dict(calls) for name, calls in recording.counts.items()}


def trace_suite(suite: str, cases: Sequence[str]) -> tuple[Counts, list[str]]:
    """Trace the suite's models, or those named; return the calls and the names of the traced models."""
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    traced = []
    for case in cases or [case.name for case in SUITES[suite].cases]:
        try:
            counts = trace_model(suite, case, default_batch_size(suite, case, "training"))
        except Exception as error:  # noqa: BLE001 - a model that needs values cannot be traced without
            sys.stderr.write(f"{case}: {type(error).__name__}: {str(error)[:100]}\n")
            continue
        traced.append(case)
        for operator, calls in counts.items():
            total[operator].update(calls)
    return {operator: dict(calls) for operator, calls in total.items()}, traced


def shape_file(counts: Counts, about: dict[str, Any]) -> str:
    """Return a file of each operator's most frequent calls, operators by frequency, one call a line."""
    totals = {name: sum(calls.values()) for name, calls in counts.items()}
    kept = {
        name: {call.text: call.count for call in calls_of(counts, name)[:_MOST_CALLS]}
        for name in sorted(counts, key=lambda name: (-totals[name], name))
    }
    return json.dumps({"traced": about, "operators": kept}, indent=0) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.operator_shapes", description=__doc__)
    parser.add_argument("suite", choices=("huggingface", "timm", "torchbench"))
    parser.add_argument("--case", nargs="+", default=[], help="models; default: all of the suite")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    counts, traced = trace_suite(options.suite, options.case)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "timm")}
    about = {"torch": torch.__version__, "models": traced, **versions}
    options.output.write_text(shape_file(counts, about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
