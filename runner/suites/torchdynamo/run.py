"""The suites of PyTorch's torchdynamo harness: a model in eager mode and compiled.

A task is up to four stages (`stages.py`), each a fresh process, run in order. A stage that fails leaves the
results of the others.
"""

import contextlib
import copy
import dataclasses
import importlib
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from runner.formats.torchdynamo.names import backend_of
from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure import ceilings, turns
from runner.measure.compiler.bisection import explained, minify, with_explanation
from runner.measure.forked import run_stage
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import Device
from runner.measure.timing import gpu_active_time
from runner.measure.timing.compile_time import cache_variables
from runner.schema.compilations import EXPLAINABLE, Explanation
from runner.schema.options import EXPLAIN
from runner.schema.records import NO_WARNING, Environment, Json
from runner.schema.statistics import median, severity
from runner.schema.suite import TaskSpec
from runner.schema.tasks import KEPT_CACHES, NEW_CACHES
from runner.suites import suite_of
from runner.suites.torchdynamo import largest_batch_size, stage_metrics, stages, stages_of
from runner.suites.torchdynamo.model import ModelRequest

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
_PLACE_S = 120.0  # at most, to ask for the device
# Kept of the task's time, the smaller of both, so that a stage that hangs costs a row and not the task.
_LEFT_FOR_REST_S, _LEFT_FOR_REST = 20.0, 0.2
_MINIFIED = {"wrong": "accuracy", "failed": "compile", "crashed": "compile"}  # statuses by the option
_MINIFY_SHARE = 0.8  # of the time that is left after a failure
_JUDGED = ("speedup", "device_speedup", "speedup_other_batch")  # worthless where the result is wrong


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


def compile_all(spec: TaskSpec) -> None:
    """Compile the step, or what the accuracy check compiles, for who watches torch.compile."""
    stage = stages.accuracy if spec.setting("test") == "accuracy" else stages.compiles
    stage(spec)


class StageRunner:
    """Runs the stages of a task and records the results of each as soon as it ends.

    `caches` is where compile caches lie (None: where the environment says), `fresh` that they are empty.
    """

    def __init__(self, spec: TaskSpec, report: Report, caches: Path | None, *, fresh: bool) -> None:
        self._spec = spec
        self._report = report
        self._caches = caches
        self._fresh = fresh
        self._ends = turns.clock_s() + spec.timeout_s
        self._knobs = suite_of(spec.suite).canonical(spec).identity()
        self._verdict: TaskFailure | None = None  # why a speedup is withheld or doubted
        self._failures: list[TaskFailure] = []
        self._found: dict[str, Result] = {}
        self._warning = NO_WARNING

    def run(self) -> TaskFailure | None:
        """Run the stages that the knob `test` asks for, or that of a further compilation. Return the worst
        failure, if any."""
        names = stages_of(self._spec)
        total = len(names)
        compiled = None
        for done, name in enumerate(names):
            if name == "accuracy":
                self._check(total)
            elif name == "batch_size":
                self._find_batch_size()
            elif any(failure.status == "unsupported" for failure in self._failures):
                if name == "cold":
                    self._recorder.missing(["speedup"], self._failures[0], knobs=self._knobs)
                break
            elif name == "cold":
                compiled = self._measure(name, done, total)
            elif name == "warm" and compiled is None:  # it needs what `cold` compiles
                because = self._failures[-1]
                self._fail(name, TaskFailure("not_run", because.code, f"after a failure: {because}"))
            else:
                answer = self._measure(name, done, total)
                if answer and name == "eager":
                    self._derive(answer["flops"])
        self._report.event("finished", total, total)
        return max(self._failures, key=lambda failure: severity(failure.status), default=None)

    def _check(self, total: int) -> None:
        """Run the accuracy stage, in caches of its own: nothing of it leaks into a compile time."""
        try:
            answer = self._stage("accuracy", 0, total, "a")
        except TaskFailure as failure:
            facts = {"reason": failure.reason}
            answer = {"status": failure.status, "code": failure.code, "facts": facts, "results": []}
        status, code, facts = answer["status"], answer["code"], answer["facts"]
        problem = TaskFailure(status, code, facts.get("reason", code))
        if status != "ok":
            problem, more = self._explained("accuracy", problem)
            facts |= {"reason": problem.reason, **more}
        self._recorder.status("accuracy", status, code, facts, knobs=self._knobs)
        self._recorder.add(*answer["results"], knobs=self._knobs)
        if status == "ok":
            return
        self._failures.append(problem)
        doubted = TaskFailure("cannot_tell", problem.code, str(problem))
        self._verdict = problem if problem.status == "wrong" else doubted

    def _find_batch_size(self) -> None:
        """Record the largest batch whose step fits into the GPU's memory, each tried in its own process."""

        def fits(size: int) -> bool:
            tried = copy.copy(self)
            tried._spec = dataclasses.replace(self._spec, knobs={**self._spec.knobs, "batch_size": size})
            try:
                tried._stage("one_step", 0, 0, "t")
            except TaskFailure as failure:
                if failure.status != "oom" or size == 1:
                    raise
                return False
            return True

        if self._spec.device == "cpu":
            reason = "the search would take the memory of the whole machine"
            self._fail("batch_size", TaskFailure("unsupported", "no_gpu", reason))
            return
        try:
            self._add(Result("largest_batch_size", [float(largest_batch_size(fits))]))
        except TaskFailure as failure:
            self._fail("batch_size", failure)

    def _measure(self, name: str, done: int, total: int) -> Json | None:
        """Run one stage and record its results, or its failure; None where it failed."""
        try:
            answer = self._stage(name, done, total, "t")
        except TaskFailure as failure:
            self._fail(name, *(self._explained("compiles", failure) if name == "cold" else (failure, {})))
            return None
        self._recorder.about.update(answer["about"])
        self._warning = answer.get("warning", self._warning)
        self._recorder.warning = answer.get("warning_of_all", self._recorder.warning)
        for result in answer["results"]:
            self._add(result)
        return answer

    def _explained(self, stage: str, failure: TaskFailure) -> tuple[TaskFailure, dict[str, Json]]:
        """Return the failure with the part of the compiler that is at fault, and that part as a fact, where
        the option `explain` asks for it. `stage` is repeated for it, and fails in the same way."""
        self._minify(stage, failure)
        limit_s = self._spec.number(EXPLAIN)
        of_model = failure.status == "failed" and stage == "accuracy" and failure.code != "fail_to_run"
        if not limit_s or of_model or failure.status not in EXPLAINABLE:
            return failure, {}
        backend = backend_of(self._spec)
        if not backend.is_inductor or backend.export != "none":
            problem = "unsupported, only what torch.compile compiles by inductor can be"
            return with_explanation(failure, Explanation(problem=problem))

        def again(left_s: float) -> str:
            answer = self._stage(stage, 0, 0, "x", limit_s=left_s)
            return str(answer["status"]) if answer else "ok"

        return explained(failure, again, limit_s)

    def _minify(self, stage: str, failure: TaskFailure) -> None:
        """Leave the smallest graph that fails as an artifact, where the option `minify` asks for it."""
        folder = self._report.folder / "artifacts" / "minifier"
        kind = _MINIFIED.get(failure.status)
        if kind is None or kind != self._spec.setting("minify") or folder.exists():
            return
        limit_s = _MINIFY_SHARE * (self._ends - turns.clock_s())
        work = partial(
            minify,
            partial(getattr(stages, stage), self._spec),
            folder,
            wrong=kind == "accuracy",
            after="aot" if backend_of(self._spec).is_inductor else "dynamo",
            limit_s=_MINIFY_SHARE * limit_s,
        )
        variables = cache_variables(self._caches / "m") if self._caches else {}
        self._report.event("minify", label=self._spec.case)
        with contextlib.suppress(TaskFailure):
            run_stage("minify", work, folder=self._report.folder, variables=variables, timeout_s=limit_s)

    def _stage(self, name: str, done: int, total: int, caches: str, *, limit_s: float = math.inf) -> Json:
        """Return a stage's answer. Raise TaskFailure as the stage does, or where no time is left for it."""
        self._report.event(name, done, total, self._spec.case)
        of_task_s = self._spec.timeout_s
        left_s = self._ends - turns.clock_s() - min(_LEFT_FOR_REST_S, of_task_s * _LEFT_FOR_REST)
        if left_s <= 0:
            reason = f"no time was left for the stage {name} of the time limit of {of_task_s} s"
            raise TaskFailure("timed_out", "no_time", reason)
        variables = cache_variables(self._caches / caches) if self._caches else {}
        given: dict[str, Any] = {"report": self._report} if name in ("cold", "warm") else {}
        given |= {"fresh": self._fresh} if name == "cold" else {}
        work = partial(getattr(stages, name), self._spec, **given)
        return run_stage(
            name, work, folder=self._report.folder, variables=variables, timeout_s=min(left_s, limit_s)
        )

    def _add(self, result: Result) -> None:
        self._found[result.metric] = result
        verdict = self._verdict if result.metric in _JUDGED else None
        if verdict is not None and verdict.status == "wrong":
            self._recorder.missing([result.metric], verdict, knobs=self._knobs)
            return
        if verdict is not None:
            marked = {"status": verdict.status, "code": verdict.code, "reason": str(verdict)}
            result = dataclasses.replace(result, facts={**result.facts, **marked})
        self._recorder.add(result, knobs=self._knobs, warning=self._warning)

    def _fail(
        self, stage: str, failure: TaskFailure, facts: Mapping[str, Json] = MappingProxyType({})
    ) -> None:
        self._failures.append(failure)
        metrics = stage_metrics(stage, self._spec.device, fresh=self._fresh)
        self._recorder.missing(metrics, failure, facts, knobs=self._knobs)

    def _derive(self, counted: Mapping[str, Json] | None) -> None:
        """Add the metrics that need the results of two stages. `counted` are eager mode's FLOPs."""
        clock = gpu_active_time.CLOCK
        samples = len(self._found["gpu_busy_ms"].values) if "gpu_busy_ms" in self._found else 0
        medians = {metric: median(result.values) for metric, result in self._found.items() if result.values}
        busy_eager, busy_compiled = medians.get("eager_gpu_busy_ms"), medians.get("gpu_busy_ms")
        eager_bytes = medians.get("eager_peak_memory_bytes")
        compiled_bytes = medians.get("compiled_peak_memory_bytes")
        if busy_eager and busy_compiled:
            self._add(Result("device_speedup", [busy_eager / busy_compiled], clock, n=samples))
        if eager_bytes and compiled_bytes:
            facts: dict[str, Json] = {"eager_bytes": eager_bytes, "compiled_bytes": compiled_bytes}
            ratio = eager_bytes / compiled_bytes
            self._add(Result("compression_ratio", [ratio], "allocator, peak allocated", facts=facts))
        if not counted or not counted["total"] or not busy_compiled:
            return
        precision = str(self._recorder.about.get("matmul_precision", "highest"))
        peak = ceilings.peak_tflops(self._place[0].name, self._spec.dtype, precision)
        if peak is None:
            return
        peak_tflops, peak_name = peak
        facts = {"flops": counted["total"], "peak_tflops": peak_tflops, "peak": peak_name}
        if counted["uncounted"]:
            facts["uncounted"] = counted["uncounted"]
        share = counted["total"] / (busy_compiled * 1e9) / peak_tflops
        self._add(Result("flops_utilization_of_peak", [share], clock, n=samples, facts=facts))

    @cached_property
    def _recorder(self) -> Recorder:
        device, found = self._place
        backend = backend_of(self._spec).name(self._spec.device)
        return Recorder(self._spec, self._report, device, known_environment=found, backend=backend)

    @cached_property
    def _place(self) -> tuple[Device, Environment]:
        """Return the device and the environment as a process of its own finds them."""
        work = partial(stages.place, self._spec)
        return run_stage("place", work, folder=self._report.folder, timeout_s=_PLACE_S)
