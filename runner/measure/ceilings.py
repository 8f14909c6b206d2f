"""Ceilings of this host, measured: a large copy, read and matrix product. FLOPs of a step, and their peak."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from runner.measure.recorder import Result
from runner.measure.state.device import Device
from runner.measure.timing.call_time import one_call_ms
from runner.schema.devices import arch_key, peaks
from runner.schema.records import Json
from runner.schema.statistics import median
from runner.system import machine

COPY = "copy_gbps"
READ = "read_gbps"
MATMUL = "matmul_bfloat16_tflops"
CLOCKS = {"cuda": "CUDA events around one call", "cpu": "host clock around one call"}
_SAMPLES = 30
_WARM_CALLS = 5
_BLOCK_BYTES = {"cuda": 2**32, "cpu": 2**28}
_MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
# Operators that multiply matrices; one of these without a formula makes the count of operations too small.
_COUNTABLE = ("attention", "mm", "conv", "linear", "matmul", "lstm", "gru")


def ceiling(name: str, device: Device) -> float:
    """Return the median of the host's daily readings, after taking today's if there is none."""
    known = machine.ceilings(machine.ceilings_path()).get(device.key, {}).get(name)
    if known is None or known["day"] != machine.today():
        read(name, device)
        known = machine.ceilings(machine.ceilings_path())[device.key][name]
    return float(known["value"])


def read(name: str, device: Device) -> list[float]:
    """Take today's reading, keep its median in the host's file, and return the samples."""
    samples = {COPY: _copy_gbps, READ: _read_gbps, MATMUL: _matmul_tflops}[name](device)
    machine.add_reading(machine.ceilings_path(), device.key, name, median(samples), torch.__version__)
    return samples


def share_of_ceiling(name: str, reached: Sequence[float], device: Device, clock: str) -> Result:
    """Return the share that samples in the unit of a ceiling reach of it."""
    value = ceiling(name, device)
    unit = "tflops" if name == MATMUL else "gbps"
    facts = {f"ceiling_{unit}": value, "ceiling": f"{name}, median of its daily readings"}
    return Result("share_of_ceiling", [sample / value for sample in reached], clock, facts=facts)


def gbps(moved_bytes: int, times_ms: Sequence[float]) -> list[float]:
    return [moved_bytes / (time_ms * 1e6) for time_ms in times_ms]


def tflops(flops: int, times_ms: Sequence[float]) -> list[float]:
    return [flops / (time_ms * 1e9) for time_ms in times_ms]


def count_flops(step: Callable[[], Any]) -> dict[str, Json]:
    """Run the step once in eager mode and count its floating-point operations. `uncounted` are operators of
    the step that multiply but for which torch has no formula."""
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


class _SeenOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func._overloadpacket)
        return func(*args, **(kwargs or {}))


def _copy_gbps(device: Device) -> list[float]:
    """Return GB/s, of bytes read and written together."""
    source = _block(device)
    target = torch.empty_like(source)
    return gbps(2 * source.nbytes, _times_ms(lambda: target.copy_(source), device))


def _read_gbps(device: Device) -> list[float]:
    """Return GB/s read, on CUDA by a kernel of our own: torch's sum is 5 % slower than the memory."""
    source = _block(device)
    sums = torch.sum
    if device.type == "cuda":
        from runner.measure.compiler.read_kernel import block_sums as sums  # noqa: PLC0415 - needs triton

    return gbps(source.nbytes, _times_ms(lambda: sums(source), device))


def _block(device: Device) -> torch.Tensor:
    """Return random bfloat16, far larger than every cache."""
    size_bytes = min(_BLOCK_BYTES[device.type], device.free_bytes() // 8)
    return torch.empty(size_bytes // 2, dtype=torch.bfloat16, device=device.type).normal_()


def _matmul_tflops(device: Device) -> list[float]:
    """Return TFLOP/s of a product of random matrices: one of zeros runs faster."""
    size = _MATMUL_SIZE[device.type]
    left, right = (torch.randn(size, size, device=device.type).to(torch.bfloat16) for _ in range(2))
    return tflops(2 * size**3, _times_ms(lambda: left @ right, device))


def _times_ms(call: Callable[[], Any], device: Device) -> list[float]:
    """Time single calls: they take milliseconds, so on CUDA the events around one give its device time."""
    for _ in range(_WARM_CALLS):
        call()
    if device.type == "cpu":
        return [one_call_ms(call, device) for _ in range(_SAMPLES)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_SAMPLES + 1)]
    call()  # keeps the device busy until the host has queued the first timed one
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    marks[-1].synchronize()
    return [float(before.elapsed_time(after)) for before, after in itertools.pairwise(marks)]
