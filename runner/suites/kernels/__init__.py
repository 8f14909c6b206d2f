"""Kernels that a HUD stored, as benchmarks: each runs alone, called as in the model that it comes from.

They are known only to processes that are given an export (`GET /api/v1/kernels`). A case is named after the
kernel and its binary, so that it stays the same with another Triton. `all` stands for those of a dtype, which
share a process.
"""

import gzip
import json
import logging
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from runner.schema.options import OptionValue
from runner.schema.records import Json
from runner.schema.replay import MOST_KERNELS, device_and_dtype
from runner.schema.suite import BadRequest, Case, Expected, Suite, TaskSpec
from runner.suites.tables import options_of

VARIABLE = "RUNNER_KERNELS"  # the path of the export, in the environment of whoever runs it
IN_MODEL = "replay_ratio"
METRICS = {  # latency and bandwidth
    "cuda": ("device_latency_ms", "device_bandwidth_gbps"),
    "cpu": ("compiled_latency_ms", "call_bandwidth_gbps"),
}
ALL = "all"
_CASE = re.compile(r"\w{1,200}-[0-9a-f]{16}", re.ASCII)
_MOST_BYTES = 64 * 2**20
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredKernel:
    """A kernel of an export. Time and bytes are of one call in the model; None if unknown."""

    code: str
    config: str  # that the autotuner took; '' without
    offered: tuple[str, ...]  # configurations that it had to choose from
    time_us: float | None
    bytes: int | None
    device: str
    case: Case

    @classmethod
    def from_json(cls, row: Mapping[str, Json]) -> "StoredKernel":
        """Raise ValueError or the like where the row is no kernel that can run alone."""
        code, time_us, moved = str(row["code"]), row.get("time_us"), row.get("bytes")
        name, (device, dtype) = f"{row['name']}-{row['binary']}", device_and_dtype(code)
        if not 0 <= float(time_us or 0) < math.inf or not 0 <= int(moved or 0) < 2**63:
            raise ValueError("its time and bytes are no sizes")
        if not _CASE.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no kernel's name and binary")
        return cls(
            code,
            str(row.get("config") or ""),
            tuple(map(str, row.get("offered") or ())),
            None if time_us is None else float(time_us),
            None if moved is None else int(moved),
            device,
            Case(name, "a stored kernel", (dtype,)),
        )


@dataclass(frozen=True)
class KernelSuite(Suite):
    def case(self, name: str) -> Case:
        """Return `all`, or a kernel of the export. Raise BadRequest elsewhere, as on an attached host."""
        stored = stored_kernels()
        if name == ALL and stored:
            dtypes = dict.fromkeys(dtype for kernel in stored.values() for dtype in kernel.case.dtypes)
            return Case(ALL, "every stored kernel of a dtype", tuple(dtypes))
        if (kernel := stored.get(name)) is None:
            raise BadRequest(f"no kernel {name!r} here: run {self.name} --file FILE, of GET /api/v1/kernels")
        return kernel.case

    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        of_device = [kernel.case for kernel in stored_kernels().values() if kernel.device == device]
        dtypes = dict.fromkeys(dtype for case in of_device for dtype in case.dtypes)
        every = [replace(self.case(ALL), dtypes=tuple(dtypes))] if of_device else []
        return [self.case(name) for name in names] or every

    def argument(self) -> str:
        path = os.environ.get(VARIABLE)
        return f"{self.name} --file {shlex.quote(path)}" if path else self.name

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        names = [kernel.case.name for kernel in kernels_of(task)]
        metrics, knobs = METRICS[task.device], task.identity()
        return [Expected(name, task.backend, knobs, metrics) for name in names]


def kernels_of(task: TaskSpec) -> list[StoredKernel]:
    """Return the kernels that a task measures."""
    stored = stored_kernels()
    if task.case != ALL:
        return [stored[task.case]]
    of_device = (kernel for kernel in stored.values() if kernel.device == task.device)
    return [kernel for kernel in of_device if task.dtype in kernel.case.dtypes]


def stored_kernels() -> Mapping[str, StoredKernel]:
    """Return the kernels of the export that this process was given, by case; none without one. Raise
    BadRequest for a file that is none."""
    path = os.environ.get(VARIABLE)
    return _read(Path(path), Path(path).stat().st_mtime_ns) if path else {}


@lru_cache(maxsize=1)
def _read(path: Path, _changed_ns: int) -> Mapping[str, StoredKernel]:
    try:
        with path.open("rb") as file:
            opened = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            data = opened.read(_MOST_BYTES)
        rows = list(json.loads(data)["items"][:MOST_KERNELS])
    except (OSError, EOFError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadRequest(f"{path} is no export of kernels (GET /api/v1/kernels): {error!r:.200}") from error
    kernels = {kernel.case.name: kernel for kernel in filter(None, map(_kernel_or_none, rows))}
    if not kernels:
        raise BadRequest(f"{path} has no kernel that can run, of {len(rows)} items")
    return kernels


def _kernel_or_none(row: Json) -> StoredKernel | None:
    try:
        return StoredKernel.from_json(row)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("an item is no kernel that can run, and is left out: %.200r", error)
        return None


SUITE = KernelSuite(
    name="kernels",
    title="Stored kernels, each alone",
    class_packages=(),
    headline_metrics=("device_latency_ms", "device_bandwidth_gbps", IN_MODEL, "compiled_latency_ms"),
    cases=(),
    backends=("inductor",),
    options=options_of("kernels"),
    file_variable=VARIABLE,
    timeout_s=3600,
)
