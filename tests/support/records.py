"""v3 records for tests, as bytes and as objects."""

from __future__ import annotations

import json
from typing import Any

from runner.schema.compilations import COMPILATION, COMPILED, Compiled
from runner.schema.suite import TaskSpec
from runner.suites import micro


def v3_record(
    metric: str = "memory_bandwidth(GB/s)", values: Any = (2542.4,), *, case: str = "layer_norm", **over: Any
) -> dict[str, Any]:
    """One record as gpt-fast's script writes it; keywords replace whole top-level fields."""
    record: dict[str, Any] = {
        "benchmark": {
            "name": "PyTorch gpt-fast benchmark",
            "mode": "inference",
            "dtype": "bfloat16",
            "extra_info": {"device": "cuda", "arch": "NVIDIA H200"},
        },
        "model": {"name": case, "type": "micro-benchmark", "origins": ["pytorch"]},
        "metric": {"name": metric, "benchmark_values": list(values), "target_value": "950"},
    }
    return {**record, **over}


def task_record(spec: TaskSpec, name: str = "speedup", **over: Any) -> dict[str, Any]:
    """One record as a micro-benchmark of that task writes it, of its first size."""
    sizes: Any = spec.knobs.get("D") or micro.SIZES[spec.device]
    said = {"device": spec.device, "arch": "x86_64", "dynamic": spec.dynamic, "knobs": {"D": sizes[0]}}
    return {
        "benchmark": {
            "name": f"Compiler HUD {spec.suite}",
            "mode": spec.mode,
            "dtype": spec.dtype,
            "extra_info": said,
        },
        "model": {"name": spec.case, "backend": spec.backend, "origins": [spec.suite]},
        "metric": {"name": name, "benchmark_values": [1.5]},
        "runners": [{"name": "here", "extra_info": {"python": "3"}}],
        **over,
    }


def compiled_record(
    found: Compiled | None, number: int | None = None, *, metric: str = "kernel_count", **over: Any
) -> dict[str, Any]:
    """One record of compilation `number` of a run, as our runner writes it."""
    values = over.pop("values", [float(len(found.kernels)) if found else 1.0])
    record = v3_record(metric, values, **over)
    said: dict[str, Any] = {} if found is None else {COMPILED: found.to_json()}
    said |= {} if number is None else {COMPILATION: number}
    record["benchmark"] = {**record["benchmark"], "name": "Compiler HUD micro"}
    record["model"] = {**record["model"], "backend": "inductor", "origins": ["micro"]}
    record["metric"] = {"name": metric, "benchmark_values": values, "extra_info": said}
    facts = {"driver": "580.159.04", **({"process": number} if number else {})}
    return {"runners": [{"name": "h1", "type": "NVIDIA H200", "extra_info": facts}], **record}


def as_list(*records: Any) -> bytes:
    return json.dumps(list(records)).encode()


def as_lines(*records: Any) -> bytes:
    return b"\n".join(json.dumps(record).encode() for record in records) + b"\n"
