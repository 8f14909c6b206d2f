"""The kernels that inductor generated: their number, a hash of all, the bytes that each must move."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

_GENERATED = ("triton_", "cpp_")
_CPP_WRAPPER = "cpp_wrapper_src"  # of a wrapper in C++, which holds the kernels' source
_CPP_KERNEL = re.compile(r'extern "C"[^;{(]*\b(?P<name>cpp_\w+)\([^;{]*\)\s*\{.*?\n\}', re.DOTALL)
_TRITON_IN_CPP = re.compile(r"static \w+ (?P<name>triton_\w+) = nullptr;")
# A C++ wrapper has a Triton kernel's source, or the file of its binary, which is named by a hash.
_TRITON_PART = r'\b{name}(?:_source = R"TRITON\(.*?\)TRITON"| = loadKernel\(.*?\);)'
_FOLDER = re.compile(r'(?<=")/[^"\n]*/(?=[^"/\n]*")')  # in quotes, before a file's name
_HASH_RULE = 2  # rule 1 counted each name once, and hashed whole C++ modules
_MOST_LISTED = 100


class Kernel(NamedTuple):
    """One generated kernel of one graph; `content` is a hash of its binary (Triton) or its source (C++)."""

    name: str
    content: str


def kernels(modules: list[Any]) -> list[Kernel]:
    """Return the kernels of inductor's wrapper modules.

    Each graph, forward or backward, has a module, and the same name in two of them is two kernels.
    """
    sources: dict[str, Mapping[str, str]] = {}
    found = []
    for module in modules:
        path = getattr(module, "__file__", None)
        if not path or not hasattr(module, "call"):
            continue
        if path not in sources:
            sources[path] = kernel_sources(Path(path).read_text())
        for name, source in sources[path].items():
            # an autotuned Triton kernel has one launcher, with the hash of the binary that was chosen
            launchers = getattr(getattr(module, name, None), "launchers", None) or []
            binary = str(getattr(launchers[0], "cache_hash", "")) if len(launchers) == 1 else ""
            found.append(Kernel(name, binary or _digest(source)))
    return found


def kernels_hash(found: Iterable[Kernel]) -> str:
    """Return a hash that is equal in two processes that run the same kernels (measuring rule 21), in any
    order of their graphs. It begins with the number of its rule: hashes of two rules are not comparable."""
    return f"{_HASH_RULE}:{_digest(' '.join(f'{one.name}={one.content}' for one in sorted(found)))}"


def kernel_sources(wrapper: str) -> dict[str, str]:
    """Return each kernel's source in a wrapper module's text, without what differs between two caches."""
    lines = wrapper.split("\n")
    found: dict[str, str] = {}
    for node in ast.parse(wrapper).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, source = node.targets[0].id, "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if name == _CPP_WRAPPER:
            found |= {match["name"]: match[0] for match in _CPP_KERNEL.finditer(source)}
            for triton in (match["name"] for match in _TRITON_IN_CPP.finditer(source)):
                found[triton] = "".join(re.findall(_TRITON_PART.format(name=triton), source, re.DOTALL))
        elif name.startswith(_GENERATED):
            found[name] = source
    return {name: _FOLDER.sub("", source) for name, source in found.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def bytes_counted(by_name: Counter[str]) -> Iterator[None]:
    """Count the least bytes that the Triton kernels of the one step inside this block move.

    Each operand counts once, one that is written in place twice. It costs time: never use it around a clock.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415 - only with Triton

    original = CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # a kernel that cannot be counted still runs
            by_name[str(self.fn.__name__)] += _operand_bytes(self.fn.arg_names, args)
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
    """Kernels by time, longest first. Those with known bytes take the share `covered` of the step's time."""

    rows: list[dict[str, Any]]
    covered: float


def bandwidths(kernels_ms: Mapping[str, float], bytes_by_name: Mapping[str, int]) -> Bandwidths:
    """Return the time and, if its bytes are known, GB/s of each kernel: a model has no single GB/s."""
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
