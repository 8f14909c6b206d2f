"""Set up one stage: the device, torch's settings, the model, its eager and compiled step."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from runner.launch.results import FOUND
from runner.measure.state.device import Device, prepare
from runner.measure.state.environment import environment
from runner.measure.timing.call_time import PairedTimes, TimingPlan, interleaved_timings
from runner.measure.timing.compile_time import forget_compiles, warm_toolchain
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.backends import Compiler
from runner.suites.torchdynamo.model.loaded_model import LoadedModel, load
from runner.suites.torchdynamo.model.step import Step


class StageSetup:
    """The device, model and steps of a stage. Made in the stage's own process."""

    def __init__(self, spec: TaskSpec, folder: Path) -> None:
        self.spec = spec
        self.device = prepare_device(spec, folder)
        self.model: LoadedModel = load(spec)
        self.step = Step(self.model, spec)

    def eager(self) -> Any:
        return self.step.function(self.model.inputs)

    def eager_once(self) -> None:
        """Load libraries and fill eager mode's own caches, so that nobody's first call pays for them."""
        self.step.begin()
        self.eager()
        self.step.begin()
        self.device.synchronize()

    def before_pair(self) -> None:
        """Make the inputs of the next pair of calls."""
        if self.spec.knobs.get("randomize_input"):
            self.model.new_values()

    def timings(self, call: Callable[[], Any], **limits: Any) -> PairedTimes:
        """Time eager and compiled in turn, from equal states; `limits` are fields of TimingPlan."""
        plan = TimingPlan(
            before_ten=self.step.restore, before_pair=self.before_pair, before_call=self.step.begin, **limits
        )
        return interleaved_timings(self.eager, call, self.device, plan)

    def compiled(self, compiler: Compiler) -> Callable[[], Any]:
        """Return a call of the compiled step; nothing is compiled yet."""
        compiler.mark_dynamic(self.model)
        step = compiler.step(self.step, self.model)
        return lambda: step(self.model.inputs)

    def about(self) -> dict[str, Json]:
        """Return the facts that stand beside every number."""
        model = self.model
        return {
            "batch_size": model.batch_size,
            "parameters": model.parameters,
            "matmul_precision": torch.get_float32_matmul_precision(),
            "half_attention_sums": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            **({"size_note": model.size_note} if model.size_note else {}),
        }

    def grad_mode(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad() if self.spec.mode == "inference" else torch.enable_grad()


def prepare_device(spec: TaskSpec, folder: Path) -> Device:
    """Set this process up with the task's threads and settings; note its device for the one that records."""
    threads = spec.knobs.get("threads")
    device = prepare(spec.device, threads if isinstance(threads, int) else None)
    apply_settings(spec)
    noted = folder / FOUND
    if not noted.exists():
        found = {"device": dataclasses.asdict(device), "environment": dataclasses.asdict(environment(device))}
        noted.write_text(json.dumps(found))
    return device


def apply_settings(spec: TaskSpec) -> None:
    """Apply the task's settings of torch to this process."""
    knobs = spec.knobs
    precision = knobs.get("matmul_precision", "high" if spec.device == "cuda" else "highest")
    torch.set_float32_matmul_precision(str(precision))
    # As the harness: attention that is spelled out sums in its own type, not in float32.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    if knobs.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    percent = knobs.get("memory_percent", 100)
    if spec.device == "cuda" and isinstance(percent, int) and percent < 100:
        torch.cuda.set_per_process_memory_fraction(percent / 100)


def warm_compiler(setup: StageSetup, compiler: Compiler, *, workers: bool) -> None:
    """Start the compilers, let them compile something small, and set every counter to 0."""
    if compiler.backend.export == "none":
        workers = workers and compiler.backend.is_inductor
        warm_toolchain(setup.device, compiled=compiler.function, workers=workers)
    forget_compiles()
    gc.collect()
