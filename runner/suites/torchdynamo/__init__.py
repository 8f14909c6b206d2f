"""The suites of PyTorch's torchdynamo harness: a model in eager mode and compiled.

One experiment is up to four stages, each a fresh process: accuracy, cold (compile time, then eager and
compiled in turn), warm (compile time from the caches, memory and GPU time of the compiled step alone), and
eager (the same of eager mode). A stage that fails leaves the results of the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
from pathlib import Path

import torch

from runner.catalog import TaskSpec
from runner.failures import TaskFailure
from runner.report import Report
from runner.suites.torchdynamo.models.built import ModelRequest
from runner.suites.torchdynamo.stage_runner import StageRunner

# What compiling imports late: once here, and not in every stage. Not every release has them all.
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
    """Measures one experiment; returns the first failure."""
    _preload(spec)
    caches, fresh = _caches(spec)
    try:
        return StageRunner(spec, report, caches, fresh=fresh).run()
    finally:
        if fresh and caches is not None:
            shutil.rmtree(caches, ignore_errors=True)


def _preload(spec: TaskSpec) -> None:
    """Imports here, once, what every stage needs, and touches neither CUDA nor OpenMP (`measure/stages.py`).

    Building the model without its memory imports all that building it imports.
    """
    torch.set_num_threads(1)  # the pool of threads stays unborn; each stage sets its own number
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process
    for name in _COMPILERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del os.environ["TORCH_WARM_POOL"]
    with contextlib.suppress(Exception):  # what is wrong with a model is said by the stage that loads it
        models = importlib.import_module(f"runner.suites.torchdynamo.models.{spec.suite}")
        tiny = spec.knobs.get("size") == "tiny"
        models.build(spec.case, ModelRequest("meta", batch_size=1, tiny=tiny, dropout=False))


def _caches(spec: TaskSpec) -> tuple[Path | None, bool]:
    """Where compile caches lie, and whether they are fresh. None: where the environment says."""
    kept = os.environ.get("RUNNER_CACHES")
    if kept:
        return Path(kept) / spec.fingerprint(), False
    if spec.setting("caches") == "kept":
        return None, False
    return Path(tempfile.mkdtemp(prefix="c")), True
