"""Bodies to upload: the v3 records of PyTorch's harness, of 3.4 kB, and small ones of half a kB."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

from runner.schema.compilations import Compiled, Kernel, digest
from tests.support.records import compiled_record

KERNELS = 200  # of a compilation
RECORDS = 5000  # of one upload, each an experiment of its own
_SAMPLE = Path(__file__).resolve().parent.parent.parent / "hud/samples/pytorch-h200/hf_infer_perf.json"
_METRICS = 14  # of each model in the sample
Shape = Literal["harness", "small", "stranger"]
_ARGUMENTS = {"device": "cuda", "arch": "NVIDIA H200", "batch_size": 16, "freezing": False}
_OTHERS_SETTINGS = {"device": "cuda", "arch": "NVIDIA H200", "layout": "channels_last"}
_RUNNERS = [{"name": "h200-17", "type": "NVIDIA H200", "extra_info": {"cuda": "13.0", "driver": "580.65"}}]
_DEPENDENCIES = {"torch": {"version": "2.13.0+cu130", "sha": "9f3c1d2"}}


def body(upload: int, *, records: int = RECORDS, shape: Shape = "small", lines: bool = False) -> bytes:
    """The same experiments in every upload, with other values. `lines`: as JSON lines, else a list."""
    if shape == "harness":
        templates = [json.loads(line) for line in _SAMPLE.read_text().splitlines()[:_METRICS]]
        made = [json.dumps(_of_harness(templates, number, upload)) for number in range(records)]
    else:
        made = [json.dumps(_record(number, upload, shape == "stranger")) for number in range(records)]
    return ("\n".join(made) if lines else f"[{','.join(made)}]").encode()


def value_of(number: int, upload: int) -> float:
    """The value of a series in an upload, with noise of 1 % that two runs of this program share."""
    return (5 + number / 100) * (1 + (number * 7919 + upload * 104_729) % 1000 / 100_000)


def _of_harness(templates: list[dict[str, Any]], number: int, upload: int) -> dict[str, Any]:
    """A record of the sample, of another model and with another value."""
    record, model = templates[number % _METRICS], f"model_{number // _METRICS}"
    record["benchmark"]["extra_info"]["only"] = record["model"]["name"] = model
    metric = record["metric"] | {"benchmark_values": [value_of(number, upload)]}
    return {**record, "metric": metric, "runners": _RUNNERS, "dependencies": _DEPENDENCIES}


def _record(number: int, upload: int, stranger: bool) -> dict[str, Any]:
    latency_ms = value_of(number, upload)
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


def compilations(upload: int, *, cases: int, new_binaries: bool) -> bytes:
    """A compilation of each case, with choices that the number of the upload draws."""
    binaries = upload if new_binaries else 0
    made = [
        compiled_record(compiled(case, upload, binaries=binaries), 0, case=f"case_{case}")
        for case in range(cases)
    ]
    return json.dumps(made).encode()


def without_compilations(*, cases: int) -> bytes:
    """The same records without what was compiled."""
    return json.dumps([compiled_record(None, 0, case=f"case_{case}") for case in range(cases)]).encode()


def compiled(case: int, draw: int, *, binaries: int) -> Compiled:
    """One compilation of a case: each kernel has one of two configurations, as `draw` has it."""
    chance = random.Random(draw)
    kernels = []
    for place in range(KERNELS):
        name = f"triton_poi_fused__native_batch_norm_legit_no_training_hardtanh_{place}"
        config = f"XBLOCK={chance.choice((256, 1024))} num_warps=4 num_stages=1"
        slot = digest(str(case), str(place))
        choice = digest(slot, config)
        kernel = Kernel(
            slot,
            choice,
            digest(choice, str(binaries)),
            name,
            "pointwise",
            config,
            ("aten._native_batch_norm_legit_no_training", "aten.hardtanh"),
            time_us=chance.uniform(2, 700),
            bytes=2**20 + place,
            candidates=7,
        )
        kernels.append(kernel)
    phases = {f"phase_{place}": place / 10 for place in range(20)}
    return Compiled(tuple(kernels), busy_us=2950.1, gaps_us=3.2, phases_s=phases, caches={"fxgraph": (0, 3)})
