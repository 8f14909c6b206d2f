"""Accelerator architectures: the short key of a device name, and data-sheet peaks.

Peaks are dense figures of the vendors' data sheets, for orientation; share of ceiling always uses what
the host itself measured.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from runner.schema.metrics import MetricInfo, is_of_running, quantity_of
from runner.schema.tables import rows


@dataclass(frozen=True)
class Arch:
    key: str
    pattern: str  # searched, ignoring case, in the device's name
    bf16_tflops: float | None  # dense, no sparsity; None where the chip has no bf16
    bandwidth_gbps: float
    l2_bytes: float  # 0 where unknown, as `l2_gbps`: more than its L2 cache was ever seen to give
    l2_gbps: float

    def least_ms(self, moved_bytes: float, memory_gbps: float | None = None) -> float:
        """Return the time below which it cannot move these bytes: all through its L2 cache, and what does not
        fit there from memory, at 5 % above its readings or at the data sheet's peak."""
        memory_gbps = min(_ABOVE_READINGS * (memory_gbps or self.bandwidth_gbps), self.bandwidth_gbps)
        return max(moved_bytes / self.l2_gbps, (moved_bytes - self.l2_bytes) / memory_gbps) / 1e6


ARCHES = [  # of which the first that matches counts: the narrower name stands first
    Arch(
        row["key"],
        row["pattern"],
        float(row["tflops"]) if row["tflops"] else None,
        float(row["gbps"]),
        1e6 * float(row["l2_mb"] or 0),
        float(row["l2_gbps"] or 0),
    )
    for row in rows(__file__, "arches.csv")
]
_ABOVE_READINGS = 1.05
_DEVICE_TIMES = ("device_latency_ms", "gpu_busy_ms")
_MOVING = (*_DEVICE_TIMES, "compiled_latency_ms", "back_to_back_latency_ms")
DEVICE_KINDS = frozenset({"cuda", "cpu", "rocm", "xpu", "mps", "hpu", "tpu", "mtia"})
_BY_KEY = {arch.key: arch for arch in ARCHES}
_MACHINES = {"x86_64": "cpu-x86_64", "amd64": "cpu-x86_64", "aarch64": "cpu-aarch64", "arm64": "cpu-aarch64"}
_KEYS = {key: key for key in (*_BY_KEY, *_MACHINES.values())} | _MACHINES
_UNSAFE = re.compile(r"[^a-z0-9]+")
# A label of PyTorch's CI says where a job runs, not on what chip: linux.idc.xpu, linux.google.tpuv7x.1
_NOTHING_SAID = re.compile(r"(linux|windows|macos)[.-]\S*|unknown", re.IGNORECASE)
_ONE_OF = "one of "  # before the cards of a machine, as PyTorch/XLA names them
# Engineering samples, and AMD's compiler names (gfx942), which stand for several cards; also as slugs
_NO_DEVICE = re.compile(
    r"^one[ -]of[ -]|\bPG\d{3}\b|\bgfx\d|\bGraphics[ -]Device\b|\bAMD[ -]Radeon[ -]Graphics\b", re.IGNORECASE
)
# of device, by what its name holds; the first that matches counts
_KINDS = [
    (row["kind"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows(__file__, "device_kinds.csv")
]


@lru_cache(maxsize=1024)  # every record of an upload asks for the same few
def arch_key(device_name: str) -> str:
    """Return the short key of a device name: "NVIDIA H200" → "h200", "x86_64" → "cpu-x86_64".

    A key stays as it is. An unknown name becomes its own slug, so that two devices never share a series; a
    text that names no device stays as it is until an operator names it (`is_named`); "unknown" is
    none, nor is the label of a CI runner that names no known chip.
    """
    name = device_name.strip()
    if known := _KEYS.get(name.lower()):
        return known
    if name.lower().startswith(_ONE_OF):
        keys = {arch_key(card) for card in name[len(_ONE_OF) :].split(",") if card.strip()}
        return keys.pop() if len(keys) == 1 else name
    for arch in ARCHES:
        if re.search(arch.pattern, name, re.IGNORECASE):
            return arch.key
    if not is_named(name):
        return name
    if _NOTHING_SAID.fullmatch(name):
        return ""
    return _UNSAFE.sub("-", name.lower()).strip("-")


def is_named(arch: str) -> bool:
    """Return whether an arch key names a device. '' does not, nor a text such as "One of Quadro P1000, NVIDIA
    RTX A6000"."""
    return bool(arch) and not _NO_DEVICE.search(arch)


@lru_cache(maxsize=1024)
def device_kind(name: str) -> str:
    """Return the kind of device that a name means: "cuda:0" → "cuda", "NVIDIA B200" → "cuda". A name that
    is not known here stays as it is."""
    kind = name.strip().lower().partition(":")[0]
    if kind in DEVICE_KINDS or not kind:
        return kind
    kind = next((kind for kind, pattern in _KINDS if pattern.search(name)), "")
    return kind or ("cuda" if arch_key(name) in _BY_KEY else name)


def device_family(device: str, arch: str) -> str:
    """Return cuda, rocm, cpu, xpu, …: torch calls AMD's GPUs cuda as well. '' where neither tells it."""
    kind = device_kind(arch)
    if device == "cuda" and kind == "rocm":
        return kind
    return device or (kind if kind in DEVICE_KINDS else "")


def peaks(key: str) -> Arch | None:
    """Return the data-sheet peaks of an arch key, or None if it is not in the table."""
    return _BY_KEY.get(key)


def impossible_reason(
    arch: str, metric: MetricInfo, value: float, moved_bytes: object, memory_gbps: float | None = None
) -> str:
    """Return why no card of an arch can have measured this value, '' if it can or nothing says it.

    `moved_bytes` are those that each call must move, `memory_gbps` what such cards were measured to reach.
    """
    card = peaks(arch)
    moved = moved_bytes if isinstance(moved_bytes, int | float) and moved_bytes > 0 else 0
    if card is None or not card.l2_gbps:
        return ""
    least_ms = card.least_ms(moved, memory_gbps)
    if metric.unit == "GB/s" and value > (most := moved / least_ms / 1e6 if moved else card.l2_gbps):
        return f"{value:.6g} GB/s is more than the {most:.6g} GB/s that {arch} can move"
    if metric.name in _MOVING and value < least_ms:
        return f"{value:.4g} ms is less than the {least_ms:.4g} ms in which {arch} moves {moved:.6g} bytes"
    return ""


def falls_with(metric: MetricInfo, unit: str, clocks: tuple[str, str] | None) -> bool:
    """Return whether a number decides nothing beside an impossible time of its row.

    `clocks` are its own and that of the time, '' where no record says it. Speedups, rates and device times
    fall unless these are known to differ; other times are judged by their own bytes. None: all times are of
    one call, which may have skipped its work, so that all of them fall.
    """
    quantity = quantity_of(unit)
    if metric.kind != "timing" or quantity == "bytes" or not is_of_running(metric.name):
        return False
    if clocks is None:
        return True
    is_computed = quantity != "time" or metric.name in _DEVICE_TIMES
    return is_computed and ("" in clocks or clocks[0] == clocks[1])
