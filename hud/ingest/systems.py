"""The five systems' conventions inside a v3 record: which suite, case, backend and knobs it means.

A sixth system is one more function here and its line in `_SYSTEMS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.catalog.targets import GPT_FAST_TARGET_ARCH
from runner.records import Record

_SUITES = {"timm_models": "timm", "torchbench": "torchbench", "huggingface": "huggingface"}
_SLUG = re.compile(r"[^a-z0-9]+")
# Settings of an unknown benchmark that name a place or a machine, not what was measured.
_NOT_KNOBS = {"device", "arch", "output", "output_directory", "dynamic", "is_dynamic", "knobs"}
_MAX_KNOBS = 64


@dataclass
class About:
    suite: str
    case: str
    metric: str
    backend: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False
    target_arch: str | None = None
    failed_when_zero: bool = False


def describe(record: Record, given_suite: str) -> About:
    """What the record measures, in the words of this project."""
    return _SYSTEMS.get(record.benchmark.name, _other)(record, given_suite)


def _info(record: Record) -> dict[str, Any]:
    return record.benchmark.extra_info or {}


def _origin(record: Record) -> str:
    origin = (record.model.origins or [""])[0]
    return _SUITES.get(origin, origin)


def _metric_name(record: Record) -> str:
    assert record.metric is not None
    return record.metric.name


def _torchdynamo(record: Record, given_suite: str) -> About:
    """`benchmarks/dynamo/common.py`: every command-line argument stands in extra_info."""
    info = _info(record)
    metric = _metric_name(record)
    accuracy_run = bool(info.get("accuracy"))
    if accuracy_run and metric != "accuracy":
        metric = f"accuracy_{metric}"
    knobs = {}
    batch_size = info.get("batch_size")
    if isinstance(batch_size, int) and not isinstance(batch_size, bool) and not accuracy_run:
        knobs["batch_size"] = batch_size
    return About(
        suite=_origin(record) or _SUITES.get(given_suite, given_suite) or "torchdynamo",
        case=record.model.name,
        metric=metric,
        backend=_torchdynamo_backend(record.model.backend or "", info),
        knobs=knobs,
        dynamic=bool(info.get("dynamic_shapes")),
        failed_when_zero=metric in {"speedup", "abs_latency"},
    )


def _torchdynamo_backend(backend: str, info: dict[str, Any]) -> str:
    """CUDA graphs are on unless disabled, and change what a number means."""
    if backend != "inductor" or _info_device(info) != "cuda":
        return backend
    if info.get("export_aot_inductor"):
        return "inductor_aot_inductor"
    name = "inductor_no_cudagraphs" if info.get("disable_cudagraphs") else "inductor_cudagraphs"
    if info.get("freezing"):
        name += "_freezing"
    if info.get("inductor_compile_mode"):
        name += "_" + str(info["inductor_compile_mode"]).replace("-", "_")[:40]
    return name


def _info_device(info: dict[str, Any]) -> str:
    device = info.get("device")
    return device if isinstance(device, str) else ""


def _gpt_fast(record: Record, given_suite: str) -> About:  # noqa: ARG001 — the content says the suite
    """`benchmarks/gpt_fast/benchmark.py`: means over four sizes; the targets are one GPU's."""
    micro = record.model.type == "micro-benchmark"
    return About(
        suite="micro" if micro else "gpt_fast",
        case=record.model.name,
        metric=_metric_name(record),
        backend=record.model.backend or "inductor",
        knobs={"D": "mean"} if micro else {},
        target_arch=GPT_FAST_TARGET_ARCH,
    )


def _cachebench(record: Record, given_suite: str) -> About:  # noqa: ARG001
    origin = _origin(record)
    return About(
        suite="cache",
        case=record.model.name,
        metric=_metric_name(record),
        backend=record.model.backend or "inductor",
        knobs={"origin": origin} if origin else {},
        dynamic=bool(_info(record).get("is_dynamic")),
    )


def _ours(record: Record, given_suite: str) -> About:
    """Our own runner says its knobs apart."""
    info = _info(record)
    knobs = info.get("knobs")
    return About(
        suite=_origin(record) or given_suite,
        case=record.model.name,
        metric=_metric_name(record),
        backend=record.model.backend or "",
        knobs=knobs if isinstance(knobs, dict) else {},
        dynamic=bool(info.get("dynamic")),
    )


def _other(record: Record, given_suite: str) -> About:
    """A benchmark nobody here knows: its short settings are its identity, so that nothing is merged."""
    if record.benchmark.name.startswith("Compiler HUD"):
        return _ours(record, given_suite)
    info = _info(record)
    settings = {**(record.model.extra_info or {}), **info}
    knobs = {
        name: value
        for name, value in sorted(settings.items())[:_MAX_KNOBS]
        if name not in _NOT_KNOBS and isinstance(value, str | int | float | bool) and len(str(value)) <= 100
    }
    return About(
        suite=given_suite or _SLUG.sub("_", record.benchmark.name.lower()).strip("_")[:60] or "other",
        case=record.model.name,
        metric=_metric_name(record),
        backend=record.model.backend or "",
        knobs=knobs,
        dynamic=bool(info.get("is_dynamic") or info.get("dynamic")),
    )


_SYSTEMS: dict[str, Callable[[Record, str], About]] = {
    "TorchInductor": _torchdynamo,
    "PyTorch gpt-fast benchmark": _gpt_fast,
    "TorchCache Benchmark": _cachebench,
}
