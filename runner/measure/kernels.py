"""The kernels that inductor generated: their number, a hash of all, the bytes that each has to move."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_GENERATED = ("triton_", "cpp_")
_MOST_LISTED = 100


@dataclass
class KernelBytes:
    """Bytes that one step's Triton kernels move at least: each operand once, those written in place twice."""

    by_name: dict[str, int] = field(default_factory=dict)


def kernels(modules: list[Any]) -> dict[str, str]:
    """Name → hash of the binary (Triton) or the source (C++), of inductor's wrapper modules."""
    found: dict[str, str] = {}
    for module in modules:
        if not hasattr(module, "call") or not getattr(module, "__file__", None):
            continue
        source = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()[:16]
        for name, kernel in vars(module).items():
            if name.startswith(_GENERATED) and name not in found:
                found[name] = _binary_hash(kernel) or source
    return found


def kernels_hash(found: Mapping[str, str]) -> str:
    """Equal in two processes that run the same kernels (measuring rule 21)."""
    text = " ".join(f"{name}={value}" for name, value in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _binary_hash(kernel: Any) -> str:
    """Hash of the binary that autotuning chose, '' for a kernel that is no autotuned Triton kernel."""
    launchers = getattr(kernel, "launchers", None) or []
    return str(getattr(launchers[0], "cache_hash", "")) if len(launchers) == 1 else ""


@contextlib.contextmanager
def bytes_counted(counted: KernelBytes) -> Iterator[None]:
    """Counts while it is open, which shall be one step. Costs time: never around a clock."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415 - only with Triton

    original = CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # a kernel that this cannot count runs all the same
            name = str(self.fn.__name__)
            counted.by_name[name] = counted.by_name.get(name, 0) + _operand_bytes(self.fn.arg_names, args)
        return original(self, *args, **kwargs)

    CachingAutotuner.run = run
    try:
        yield
    finally:
        CachingAutotuner.run = original


def _operand_bytes(names: list[str], operands: tuple[Any, ...]) -> int:
    total = 0
    for name, operand in zip(names, operands, strict=False):
        if isinstance(operand, torch.Tensor):
            total += operand.numel() * operand.element_size() * (2 if name.startswith("in_out") else 1)
    return total


@dataclass(frozen=True)
class Bandwidths:
    """Rows of kernels, longest time first. Those with known bytes are `covered` of the step's time."""

    rows: list[dict[str, Any]]
    covered: float


def bandwidths(kernels_ms: Mapping[str, float], bytes_by_name: Mapping[str, int]) -> Bandwidths:
    """Time in a step and, where its bytes are known, GB/s of each kernel: a model has no single GB/s."""
    rows: list[dict[str, Any]] = []
    known_ms = 0.0
    for name, time_ms in sorted(kernels_ms.items(), key=lambda row: -row[1]):
        row: dict[str, Any] = {"kernel": name[:200], "time_ms": round(time_ms, 6)}
        moved = bytes_by_name.get(name)
        if moved and time_ms > 0:
            row |= {"bytes": moved, "gbps": round(moved / (time_ms * 1e6), 1)}
            known_ms += time_ms
        rows.append(row)
    total_ms = sum(kernels_ms.values())
    return Bandwidths(rows[:_MOST_LISTED], known_ms / total_ms if total_ms else 0.0)
