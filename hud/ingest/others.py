"""The other systems' conventions inside a record."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from runner.catalog.targets import GPT_FAST_TARGET_ARCH
from runner.formats.measurement_key import About, Said, batch_size

OURS = "Compiler HUD"  # our runner's records are called so, and then the suite
_SLUG = re.compile(r"[^a-z0-9]+")
# Settings that name a place, a moment or a machine, not what was measured.
_NOT_KNOBS = {"device", "arch", "dynamic", "is_dynamic", "knobs", "output", "hud"}
_PASSING = re.compile(
    r"(^|_)(timestamp|date|time|url|uri|path|dir|directory|folder|file|filename|digest|sha|commit|revision"
    r"|version|run_id|job_id|build_id|workflow_id|host|hostname|machine|description|output|log)(_|$)"
)
_MAX_KNOBS_LENGTH = 3000  # more settings than that are kept as their digest
_MAX_KNOB_LENGTH = 100
_CACHEBENCH_DTYPES = {"inference": "bfloat16", "training": "amp"}  # the script gives nothing else
_MICRO = {"layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu"}


def gpt_fast(said: Said) -> About:
    """`benchmarks/gpt_fast/benchmark.py`: means over four sizes; the targets are one GPU's."""
    micro = said.record.model.type == "micro-benchmark" or said.model in _MICRO
    return About(
        suite="micro" if micro else "gpt_fast",
        case=said.model,
        metric=said.metric,
        backend=said.backend or "inductor",
        knobs={"D": "mean"} if micro else {},
        target_arch=GPT_FAST_TARGET_ARCH,
    )


def cachebench(said: Said) -> About:
    """`benchmarks/dynamo/cachebench.py`: its dtype follows from the mode."""
    return About(
        suite="cache",
        case=said.model,
        metric=said.metric,
        dtype=said.dtype or _CACHEBENCH_DTYPES.get(said.mode, ""),
        backend=said.backend or "inductor",
        knobs={"origin": said.origin} if said.origin else {},
        dynamic=bool(said.info.get("is_dynamic")),
    )


_DEVICE_UNSAID = (
    "nothing says the device of operatorbench's mean times (`abs`): they are taken as a GPU's, in ms; a CPU's"
    " are in s, 1000 times that. Give it with the upload: ?device=cuda or ?device=cpu"
)


def operatorbench(said: Said) -> About:
    """`benchmarks/dynamo/microbenchmarks/operatorbench.py`: `abs` is ms on CUDA and s on a CPU."""
    inputs = said.info.get("inputs")
    return About(
        suite="operators",
        case=said.model,
        metric=said.metric,
        backend=said.backend or "inductor",
        knobs={"inputs": inputs} if isinstance(inputs, str) and inputs else {},
        scale=1000.0 if said.metric == "abs" and said.device == "cpu" else 1.0,
        warning=_DEVICE_UNSAID if said.metric == "abs" and not said.device else "",
    )


def xla(said: Said) -> About:
    """PyTorch/XLA's `benchmarks/experiment_runner.py`, as the format writes its axes."""
    knobs = said.info.get("knobs")
    return About(
        suite="xla",
        case=said.model,
        metric=said.metric,
        backend=said.backend,
        knobs=dict(knobs) if isinstance(knobs, dict) else {},
    )


def userbenchmark(said: Said) -> About:
    """torchbench's userbenchmarks, as the format writes them."""
    knobs = said.info.get("knobs")
    return About(
        suite=said.origin or said.given.suite or "userbenchmark",
        case=said.model,
        metric=said.metric,
        backend=said.backend,
        knobs=dict(knobs) if isinstance(knobs, dict) else {},
        zero_means="failed" if said.metric == "latencies" else "",
    )


def pr_time(said: Said) -> About:
    """`pr_time_benchmarks`: its CSV has nothing but the name, so the name alone is the identity."""
    words = said.model.split("_")
    return About(
        suite="pr_time_benchmarks",
        case=said.model,
        metric=said.metric,
        backend=next((word for word in words if word in {"eager", "inductor"}), ""),
        device="cuda" if "gpu" in words else "cpu",
        dynamic="dynamic" in words,
    )


def kernels(said: Said) -> About:
    """Better Benchmark's kernel records: the counts of a sweep are no settings of a kernel."""
    knobs = {
        name: said.info[name]
        for name in ("record_type", "suite", "source_mode", "actual_dtypes", "timing_policy", "shape_hash")
        if isinstance(said.info.get(name), str) and said.info[name]
    }
    return About(
        suite="inductor_kernel_benchmark",
        case=said.model,
        metric=said.metric,
        backend=said.backend,
        knobs={name: _knob(value) for name, value in knobs.items()},
    )


def ours(said: Said) -> About:
    """Our own runner says its knobs apart."""
    knobs = said.info.get("knobs")
    return About(
        suite=said.origin
        or said.given.suite
        or said.record.benchmark.name.removeprefix(OURS).strip()
        or "other",
        case=said.model,
        metric=said.metric,
        backend=said.backend,
        knobs=knobs if isinstance(knobs, dict) else {},
        dynamic=bool(said.info.get("dynamic")),
    )


def unknown(said: Said) -> About:
    """A benchmark nobody here knows: its settings are its identity, so that nothing is merged."""
    settings = {**(said.record.model.extra_info or {}), **said.info}
    if isinstance(said.record.inputs, dict) and said.record.inputs:
        settings["inputs"] = said.record.inputs
    knobs = {
        name: _knob(value)
        for name, value in settings.items()
        if name not in _NOT_KNOBS and not _PASSING.search(name.lower()) and value not in (None, "", [], {})
    }
    size = batch_size(said.given.batch_size)
    if size and "batch_size" not in knobs:
        knobs["batch_size"] = size
    if len(json.dumps(knobs)) > _MAX_KNOBS_LENGTH:
        knobs = {"settings": _knob(knobs)}
    name = _SLUG.sub("_", said.record.benchmark.name.lower()).strip("_")[:60]
    return About(
        suite=said.given.suite or name or "other",
        case=said.model,
        metric=said.metric,
        backend=said.backend,
        knobs=knobs,
        dynamic=bool(said.info.get("is_dynamic") or said.info.get("dynamic")),
    )


def _knob(value: Any) -> Any:
    """A setting as a knob: short ones as they are, what is long or nested as its digest."""
    if isinstance(value, bool | int | float):
        return value
    words = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    if len(words) <= _MAX_KNOB_LENGTH:
        return words
    return "sha256:" + hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16]
