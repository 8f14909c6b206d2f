"""Compile one small function: only that shows whether all the tools are there, and which notes can be taken.

`python -m runner.measure.canary DEVICE` prints JSON: how long it took (`compiled_s`), the kinds of notes that
were taken (`noted`) and why others were not (`blind`); or why nothing can be compiled (`error`).
"""

from __future__ import annotations

import json
import sys
import time

import torch

from runner.launch.failures import failure_of
from runner.measure import notes
from runner.measure.compiler.counters import modules
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import produced, profiled_steps
from runner.measure.state.device import prepare
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.records import Json

_NO_CACHES = {"fx_graph_cache": False, "autotune_local_cache": False}
_EMPTY = "torch has none of a function that has some"


def _small(x: torch.Tensor) -> torch.Tensor:
    result = torch.sin(x) + 1
    torch._dynamo.graph_break()
    return result


def compile_small(device_name: str) -> dict[str, Json]:
    """Return `compiled_s`, `noted` and `blind` of a compilation that no cache shortens."""
    device = prepare(device_name)
    x = torch.randn(4096, device=device.type)
    started = time.perf_counter()
    tuning.watch()
    forget_compiles()
    call = torch.compile(_small, dynamic=False, options=_NO_CACHES)
    call(x)
    compiled_s = time.perf_counter() - started
    found = produced(modules(), profiled_steps(lambda: call(x), device)).compiled
    kernels = [one for one in found.kernels if one.origins or one.kind == "cpp"]
    taken: dict[str, object] = {"kernels": kernels, "phases": found.phases_s}
    taken["graph breaks"] = found.graph_breaks
    if device.type == "cuda":  # with a time of each configuration, where there were several
        taken["choices"] = [
            one for one in kernels if one.config and (one.candidates or len(one.offered) == 1)
        ]
    blind = {name: _EMPTY for name, facts in taken.items() if not facts} | notes.blind()
    return {"compiled_s": compiled_s, "noted": [name for name in taken if name not in blind], "blind": blind}


if __name__ == "__main__":
    try:
        answer = compile_small(sys.argv[1])
    except Exception as error:  # noqa: BLE001 - the printed answer
        failure = failure_of(error)
        answer = {"error": f"{failure.code}: {failure}"}
    sys.stdout.write(json.dumps(answer) + "\n")
