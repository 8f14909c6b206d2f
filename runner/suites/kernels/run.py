"""Time a stored kernel alone, with the configuration that it had in its model: on a GPU by graph replay, on a
CPU by call time."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.ceilings import gbps
from runner.measure.forked import run_stage
from runner.measure.kernels import pinning
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import Device, device_state, keep_gpu_states, prepare, warning
from runner.measure.timing import call_time, graph_replay
from runner.measure.timing.graph_replay import ReplayPlan
from runner.schema.compilations import SEARCHES_ON
from runner.schema.records import Json
from runner.schema.replay import replay_file
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec
from runner.suites.file import imported
from runner.suites.kernels import IN_MODEL, METRICS, StoredKernel, kernels_of

_MODULE = "runner_stored_kernel"
_ENDS = ("crashed",)  # after these the device cannot be trusted
_WARM_CALLS = 5
_CAPTURES = 2  # of graph replay: two allocations of the operands
_WARM_MS = 20.0


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure the kernels, and with `candidates=all` each configuration that its autotuner had. Several share
    a process; after one that takes it down, those that follow get a new one. Return the first failure."""
    waiting, begun = kernels_of(spec), report.folder / "begun"
    if len(waiting) == 1:
        return next(iter(_measure(spec, report, waiting, (), begun)), None)
    importlib.import_module("torch._inductor.compile_fx")  # once
    failed: list[TaskFailure] = []
    while waiting:
        begun.write_text("0")
        try:
            work = partial(_measure, spec, report, waiting, failed[-1:], begun)
            failed += run_stage("kernels", work, folder=report.folder, timeout_s=spec.timeout_s)
            waiting = []
        except TaskFailure as failure:
            count = int(begun.read_text())
            if not count:
                raise
            waiting = waiting[count - 1 :]
            failed.append(failure)
    return next(iter(failed), None)


def _measure(
    spec: TaskSpec, report: Report, waiting: Sequence[StoredKernel], lost: Sequence[TaskFailure], begun: Path
) -> list[TaskFailure]:
    """Record the kernels, and of the first why it took an earlier process down, if it did. Return the
    failures of the others; raise what ends this process."""
    device = prepare(spec.device)
    states = [device_state(device)]
    failures: list[TaskFailure] = []
    for place, kernel in enumerate(waiting):
        begun.write_text(str(place + 1))
        report.event("measure", place, len(waiting), kernel.case.name)
        recorder = Recorder(replace(spec, case=kernel.case.name), report, device)
        if lost and not place:
            recorder.missing(METRICS[device.type], lost[0], knobs=spec.identity())
            continue
        try:
            results = _results(_Alone(kernel, device, report.folder / f"kernel_{place}.py", spec), kernel)
        except Exception as error:  # the others can still be measured
            failures.append(failure_of(error))
            if failures[-1].status in _ENDS:
                raise
            recorder.missing(METRICS[device.type], failures[-1], knobs=spec.identity())
        else:
            states.append(device_state(device))
            recorder.add(*results, knobs=spec.identity(), warning=warning(states[-2:]))
        device.release()
    report.event("finished", len(waiting), len(waiting))
    keep_gpu_states(report, states)
    return failures


def _results(alone: "_Alone", kernel: StoredKernel) -> list[Result]:
    facts = {"moved_bytes": alone.moved_bytes, "config": kernel.config, "in_model_us": kernel.time_us}
    alone.force(kernel.config)
    times_ms = alone.times_ms()
    if alone.spec.setting("candidates") == "all":
        facts["candidates"] = {text: alone.candidate(text) for text in kernel.offered if text != SEARCHES_ON}
    latency, bandwidth = METRICS[alone.device.type]
    results = [
        Result(latency, times_ms, alone.clock, facts={**facts, **alone.facts}),
        Result(bandwidth, gbps(alone.moved_bytes, times_ms), alone.clock, facts=facts),
    ]
    if in_model_us := kernel.time_us:
        results.append(Result(IN_MODEL, [time_ms * 1e3 / in_model_us for time_ms in times_ms], alone.clock))
    return results


class _Alone:
    """A kernel with operands as in its model."""

    def __init__(self, kernel: StoredKernel, device: Device, file: Path, spec: TaskSpec) -> None:
        self.device, self.spec = device, spec
        file.write_text(replay_file(kernel.code))
        self._module: Any = imported(file, _MODULE)
        self._operands = tuple(self._module.get_args())
        tuned = (value for value in vars(self._module).values() if hasattr(value, "launchers"))
        self._autotuner = next(tuned, None)  # none on a CPU
        stored = [one.untyped_storage().nbytes() for one in self._operands if torch.is_tensor(one)]
        self.moved_bytes = kernel.bytes or sum(stored)
        self.clock = graph_replay.CLOCK if device.type == "cuda" else call_time.CLOCK
        self.facts: dict[str, Json] = {}

    def force(self, config: str) -> None:
        """Take a configuration; what has no autotuner or names none stays as it is."""
        if self._autotuner is not None and config:
            pinning.take(self._autotuner, pinning.launcher_of(self._autotuner, config))

    def times_ms(self) -> list[float]:
        if self.device.type == "cuda":
            plan = ReplayPlan(self.moved_bytes, _CAPTURES, _WARM_MS)
            times = graph_replay.replay(None, self._call, self._operands, self.device, plan)
            self.facts = dict(times.facts)
            return times.compiled
        for _ in range(_WARM_CALLS):
            self._call(*self._operands)
        return [
            call_time.one_call_ms(lambda: self._call(*self._operands), self.device)
            for _ in range(self.spec.number("repeat"))
        ]

    def candidate(self, config: str) -> float | str:
        """Return the µs of a configuration, or why it cannot be."""
        try:
            self.force(config)
            return median(self.times_ms()) * 1e3
        except Exception as error:  # noqa: BLE001 - the others can still be measured
            return failure_of(error).reason

    def _call(self, *operands: Any) -> None:
        self._module.call(list(operands))
