"""Bodies to upload: v3 records of about half a kB, in the shape of torchdynamo's and of a stranger's tool."""

from __future__ import annotations

import json
from typing import Any

RECORDS = 5000  # of one upload, each an experiment of its own
_ARGUMENTS = {"device": "cuda", "arch": "NVIDIA H200", "batch_size": 16, "freezing": False}
_OTHERS_SETTINGS = {"device": "cuda", "arch": "NVIDIA H200", "layout": "channels_last"}
_RUNNERS = [{"name": "h200-17", "type": "NVIDIA H200", "extra_info": {"cuda": "13.0", "driver": "580.65"}}]
_DEPENDENCIES = {"torch": {"version": "2.13.0+cu130", "sha": "9f3c1d2"}}


def body(upload: int, *, records: int = RECORDS, stranger: bool = False, lines: bool = False) -> bytes:
    """The same experiments in every upload, with other values. `lines`: as JSON lines, else a list."""
    made = [json.dumps(_record(number, upload, stranger)) for number in range(records)]
    return ("\n".join(made) if lines else f"[{','.join(made)}]").encode()


def _record(number: int, upload: int, stranger: bool) -> dict[str, Any]:
    latency_ms = 5 + number / 100 + upload / 7
    return {
        "benchmark": {
            "name": "somebody's sweep" if stranger else "TorchInductor",
            "mode": "inference",
            "dtype": "bfloat16",
            "extra_info": _OTHERS_SETTINGS if stranger else _ARGUMENTS,
        },
        "model": {"name": f"model_{number}", "backend": "inductor", "origins": ["torchbench"]},
        "metric": {"name": "abs_latency", "benchmark_values": [latency_ms + k / 1000 for k in range(3)]},
        "runners": _RUNNERS,
        "dependencies": _DEPENDENCIES,
    }
