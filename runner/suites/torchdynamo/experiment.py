"""The stages of one experiment in their order, and the records that come of them."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from runner import host
from runner.catalog import TaskSpec
from runner.catalog.always import stage_metrics
from runner.catalog.backends import backend_of, identity
from runner.failures import TaskFailure
from runner.measure import busy, flops
from runner.measure.compile_time import cache_variables
from runner.measure.device import Device
from runner.measure.recorder import Recorder, Result
from runner.measure.stages import run_stage
from runner.records import Environment, Json
from runner.report import Report
from runner.suites.torchdynamo.bench import forget_device, noted, untold
from runner.suites.torchdynamo.parts import PARTS
from runner.suites.torchdynamo.started import started
from runner.summary import median, severity

# Of the task's time, so that a stage that hangs is a row and not the end: so many seconds, or that share.
_LEFT_FOR_REST_S, _LEFT_FOR_REST = 20.0, 0.2
_ENDS_ALL = ("unsupported",)
_JUDGED = ("speedup", "device_speedup", "speedup_other_batch")  # worthless where the result is wrong


class Experiment:
    """Runs the stages of a task and records what each gives as soon as it has it.

    `caches` is where compile caches lie (None: where the environment says), `fresh` that they are empty.
    """

    def __init__(self, spec: TaskSpec, report: Report, caches: Path | None, *, fresh: bool) -> None:
        self._spec = spec
        self._report = report
        self._caches = caches
        self._fresh = fresh
        self._ends = time.monotonic() + spec.timeout_s
        self._knobs = identity(spec)
        self._recorder: Recorder | None = None
        self._verdict: TaskFailure | None = None  # why a speedup is withheld or doubted
        self._failures: list[TaskFailure] = []
        self._found: dict[str, Result] = {}
        self._warning = ""
        self._can_fork: bool | None = None

    def run(self) -> TaskFailure | None:
        """The worst failure, None where all stages succeeded."""
        forget_device(self._report.folder)
        test = str(self._spec.setting("test"))
        total = {"both": 4, "accuracy": 1, "performance": 3}[test]
        if test != "performance":
            self._check(total)
        if test != "accuracy":
            self._perform(total - 3, total)
        self._report.event("finished", total, total)
        return max(self._failures, key=lambda failure: severity(failure.status), default=None)

    def _perform(self, done: int, total: int) -> None:
        if self._ended():
            self._record().missing("speedup", self._failures[0], knobs=self._knobs)
            return
        if self._measure("cold", done, total) is not None:
            self._measure("warm", done + 1, total)
        elif not self._ended():
            self._not_run("warm")
        if not self._ended():
            said = self._measure("eager", done + 2, total)
            self._derive((said or {}).get("flops"))

    def _ended(self) -> bool:
        return any(failure.status in _ENDS_ALL for failure in self._failures)

    def _check(self, total: int) -> None:
        """Accuracy, in caches of its own: nothing of it leaks into a compile time."""
        try:
            said = self._stage("accuracy", 0, total, "a")
        except TaskFailure as failure:
            self._failures.append(failure)
            self._verdict = TaskFailure("cannot_tell", failure.code, str(failure))
            self._record().missing("accuracy", failure, knobs=self._knobs)
            return
        record = self._record()
        record.status("accuracy", said["status"], said["code"], said["facts"], knobs=self._knobs)
        for result in map(untold, said["results"]):
            record.add(result, knobs=self._knobs)
        if said["status"] != "ok":
            problem = TaskFailure(said["status"], said["code"], said["facts"].get("reason", said["code"]))
            self._failures.append(problem)
            doubted = TaskFailure("cannot_tell", problem.code, str(problem))
            self._verdict = problem if problem.status == "wrong" else doubted

    def _measure(self, name: str, done: int, total: int) -> Json | None:
        """One stage with its records; None where it failed, which is recorded too."""
        try:
            said = self._stage(name, done, total, "t")
        except TaskFailure as failure:
            self._fail(name, failure)
            return None
        record = self._record()
        record.about.update(said["about"])
        self._warning = said.get("warning") or self._warning
        if said.get("gpu_states"):
            self._report.artifact("gpu_state", "gpu_state.json", json.dumps(said["gpu_states"], indent=1))
        for result in map(untold, said["results"]):
            self._add(result)
        return said

    def _stage(self, name: str, done: int, total: int, caches: str) -> Json:
        self._report.event(name, done, total, self._spec.case)
        limit_s = self._spec.timeout_s
        left_s = self._ends - time.monotonic() - min(_LEFT_FOR_REST_S, limit_s * _LEFT_FOR_REST)
        if left_s <= 0:
            reason = f"no time was left for the stage {name} of the time limit of {limit_s} s"
            raise TaskFailure("timed_out", "no_time", reason)
        variables = cache_variables(self._caches / caches) if self._caches else {}
        if self._forks():
            work = partial(PARTS[name], self._spec, self._report, fresh=self._fresh)
        else:
            work = partial(started, name, self._report, fresh=self._fresh)
        return run_stage(name, work, folder=self._report.folder, variables=variables, timeout_s=left_s)

    def _forks(self) -> bool:
        """Whether CUDA still works in a fork of this process: some import may have touched it."""
        if self._can_fork is None:
            answer = run_stage(
                "fork", lambda: bool(torch.cuda._is_in_bad_fork()), folder=self._report.folder, timeout_s=60.0
            )
            self._can_fork = not answer
        return self._can_fork

    def _add(self, result: Result) -> None:
        self._found[result.metric] = result
        verdict = self._verdict if result.metric in _JUDGED else None
        if verdict is not None and verdict.status == "wrong":
            self._record().missing(result.metric, verdict, knobs=self._knobs)
            return
        if verdict is not None:
            marked = {"status": verdict.status, "code": verdict.code, "reason": str(verdict)}
            result = dataclasses.replace(result, facts={**result.facts, **marked})
        self._record().add(result, knobs=self._knobs, warning=self._warning)

    def _fail(self, stage: str, failure: TaskFailure) -> None:
        self._failures.append(failure)
        for metric in stage_metrics(stage, self._spec.device, fresh=self._fresh):
            self._record().missing(metric, failure, knobs=self._knobs)

    def _not_run(self, stage: str) -> None:
        """The stage that needs what an earlier one failed to make."""
        because = self._failures[-1]
        self._fail(stage, TaskFailure("not_run", because.code, f"after a failure: {because}"))

    def _derive(self, counted: Mapping[str, Json] | None) -> None:
        """What two stages give together."""
        busy_eager, busy_compiled = self._median("eager_gpu_busy_ms"), self._median("gpu_busy_ms")
        eager_bytes, compiled_bytes = (
            self._median("eager_peak_memory_bytes"),
            self._median("compiled_peak_memory_bytes"),
        )
        if busy_eager and busy_compiled:
            self._add(Result("device_speedup", [busy_eager / busy_compiled], busy.CLOCK, n=busy.STEPS))
        if eager_bytes and compiled_bytes:
            facts = {"eager_bytes": eager_bytes, "compiled_bytes": compiled_bytes}
            ratio = eager_bytes / compiled_bytes
            self._add(Result("compression_ratio", [ratio], "allocator, peak allocated", facts=facts))
        if counted and busy_compiled:
            self._add_utilization(counted, busy_compiled)

    def _add_utilization(self, counted: Mapping[str, Json], busy_ms: float) -> None:
        about = self._record().about
        precision = str(about.get("matmul_precision", "highest"))
        peak = flops.peak_tflops(self._device().name, self._spec.dtype, precision)
        if peak is None or not counted["total"]:
            return
        peak_tflops, peak_name = peak
        facts = {"flops": counted["total"], "peak_tflops": peak_tflops, "peak": peak_name}
        if counted["uncounted"]:
            facts["uncounted"] = counted["uncounted"]
        share = counted["total"] / (busy_ms * 1e9) / peak_tflops
        self._add(Result("flops_utilization_of_peak", [share], busy.CLOCK, n=busy.STEPS, facts=facts))

    def _median(self, metric: str) -> float | None:
        return median(self._found[metric].values) if metric in self._found else None

    def _record(self) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(
                self._spec,
                self._report,
                self._device(),
                found=self._environment(),
                backend=backend_of(self._spec).name(self._spec.device),
            )
        return self._recorder

    def _device(self) -> Device:
        """As a stage found it; what nvidia-smi says where none came so far."""
        try:
            return Device(**noted(self._report.folder)["device"])
        except TaskFailure:
            gpu = next(iter(host.gpus()), None) if self._spec.device == "cuda" else None
            name, key = (gpu.name, gpu.uuid) if gpu else (platform.machine(), host.cpu_name())
            return Device(self._spec.device, name, key, 0, host.usable_cpus())

    def _environment(self) -> Environment:
        try:
            return Environment(**noted(self._report.folder)["environment"])
        except TaskFailure:
            return Environment(
                torch=torch.__version__,
                torch_git=torch.version.git_version or "",
                python=platform.python_version(),
                cpu=host.cpu_name(),
                cpu_count=host.usable_cpus(),
                os=host.operating_system(),
            )
