"""Floating-point operations of a step, counted once in eager mode."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from runner.measure.timing.call_time import Call
from runner.schema.devices import arch_key, peaks
from runner.schema.records import Json

# Operators that multiply matrices; one of these without a formula makes the count too small.
_COUNTABLE = ("attention", "mm", "conv", "linear", "matmul", "lstm", "gru")


class _SeenOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func._overloadpacket)
        return func(*args, **(kwargs or {}))


def count(step: Call) -> dict[str, Json]:
    """Run the step once and count its operations. `uncounted` are operators of the step that multiply but for
    which torch has no formula."""
    with FlopCounterMode(display=False) as counter, _SeenOperators() as seen:
        step()
    without = {
        str(operator)
        for operator in seen.operators
        if operator not in flop_registry and any(word in str(operator).lower() for word in _COUNTABLE)
    }
    return {"total": int(counter.get_total_flops()), "uncounted": sorted(without)}


def peak_tflops(device_name: str, dtype: str, matmul_precision: str) -> tuple[float, str] | None:
    """Return the data sheet's dense peak of matrix products in this dtype and its name; None if unknown."""
    sheet = peaks(arch_key(device_name))
    if sheet is None or not sheet.bf16_tflops:
        return None
    if dtype != "float32":
        return float(sheet.bf16_tflops), f"{sheet.key}, data sheet, dense bfloat16 and float16"
    if matmul_precision == "highest":
        return None
    return sheet.bf16_tflops / 2, f"{sheet.key}, data sheet, dense TF32"
