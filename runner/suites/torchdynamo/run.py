"""The suites of PyTorch's torchdynamo harness: a model in eager mode and compiled.

A task is up to four stages (`stages.py`), each a fresh process. A stage that fails leaves the results of the
others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
from pathlib import Path

import torch

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.schema.plan import KEPT_CACHES, NEW_CACHES
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.model.built_model import ModelRequest
from runner.suites.torchdynamo.stage_runner import StageRunner

# Imported late by compiling: once here, and not in every stage. Not every release has them all.
_COMPILERS = (
    *("torch._inductor.compile_fx", "torch._inductor.cudagraph_trees", "torch._inductor.freezing"),
    *("torch._inductor.fx_passes.fuse_attention", "torch._inductor.fx_passes.pad_mm"),
    *("torch._inductor.fx_passes.freezing_patterns", "torch._inductor.fx_passes.mkldnn_fusion"),
    *("torch._inductor.codegen.cuda_combined_scheduling", "torch._inductor.codegen.cpp_wrapper_gpu"),
    *("torch._inductor.codegen.triton", "torch._inductor.runtime.triton_heuristics"),
    *("torch._inductor.codegen.memory_planning", "torch._inductor.codegen.wrapper_fxir"),
    *("torch._dynamo.backends.inductor", "torch._dynamo.backends.cudagraphs", "torch.export._trace"),
    *("torch.distributed.tensor.experimental", "torch.fx.experimental.validator", "sympy.physics.units"),
    *("torch.utils.cpp_extension", "torch.utils.flop_counter", "torch.profiler"),
)


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Run one task; return its worst failure, if any."""
    _preload(spec)
    kept, new = os.environ.get(KEPT_CACHES), os.environ.get(NEW_CACHES)
    fresh = not kept and spec.setting("caches") != "kept"
    caches = None  # where the environment says
    if folder := kept or (new if fresh else None):
        caches = Path(folder) / spec.fingerprint()
    elif fresh:
        caches = Path(tempfile.mkdtemp(prefix="c"))
    try:
        return StageRunner(spec, report, caches, fresh=fresh).run()
    finally:
        if fresh and caches and not new:
            shutil.rmtree(caches, ignore_errors=True)


def _preload(spec: TaskSpec) -> None:
    """Import once what every stage needs, without touching CUDA or OpenMP, since the stages are forked.

    Building the model without its memory imports all that building it imports.
    """
    torch.set_num_threads(1)  # the pool of threads stays unborn; each stage sets its own number
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process
    for name in _COMPILERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del os.environ["TORCH_WARM_POOL"]
    with contextlib.suppress(Exception):  # the stage that loads the model will raise it again
        models = importlib.import_module(f"runner.suites.{spec.suite}.models")
        tiny = spec.knobs.get("size") == "tiny"
        models.build(spec.case, ModelRequest("meta", batch_size=1, tiny=tiny, dropout=False))
