"""Time a stored kernel alone, with the configuration that it had in its model: on a GPU by graph replay, on a
CPU by call time."""

import importlib.util
import sys
from pathlib import Path
from typing import Any, cast

import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.ceilings import gbps
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
from runner.suites.kernels import IN_MODEL, METRICS, StoredKernel, stored_kernels

_MODULE = "runner_stored_kernel"
_WARM_CALLS = 5
_CAPTURES = 2  # of graph replay: two allocations of the operands
_WARM_MS = 20.0


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure the kernel, and with `candidates=all` each configuration that its autotuner had."""
    device = prepare(spec.device)
    states = [device_state(device)]
    recorder = Recorder(spec, report, device)
    kernel = stored_kernels()[spec.case]
    report.event("compile", 0, 2, spec.case)
    alone = _Alone(kernel, device, report.folder / "kernel.py", cast("int", spec.setting("repeat")))
    facts = {"moved_bytes": alone.moved_bytes, "config": kernel.config, "in_model_us": kernel.time_us}
    alone.force(kernel.config)
    report.event("measure", 1, 2, spec.case)
    times_ms = alone.times_ms()
    if spec.setting("candidates") == "all":
        report.event("candidates", 1, 2, spec.case)
        facts["candidates"] = {text: alone.candidate(text) for text in kernel.offered if text != SEARCHES_ON}
    states.append(device_state(device))
    latency, bandwidth = METRICS[device.type]
    results = [
        Result(latency, times_ms, alone.clock, facts={**facts, **alone.facts}),
        Result(bandwidth, gbps(alone.moved_bytes, times_ms), alone.clock, facts=facts),
    ]
    if in_model_us := kernel.time_us:
        results.append(Result(IN_MODEL, [time_ms * 1e3 / in_model_us for time_ms in times_ms], alone.clock))
    recorder.add(*results, knobs=spec.identity(), warning=warning(states))
    report.event("finished", 2, 2)
    keep_gpu_states(report, states)
    return None


class _Alone:
    """A kernel with operands as in its model."""

    def __init__(self, kernel: StoredKernel, device: Device, file: Path, repeat: int) -> None:
        self._device, self._repeat = device, repeat
        file.write_text(replay_file(kernel.code))
        self._module = _imported(file)
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
        if self._device.type == "cuda":
            plan = ReplayPlan(self.moved_bytes, _CAPTURES, _WARM_MS)
            times = graph_replay.replay(None, self._call, self._operands, self._device, plan)
            self.facts = dict(times.facts)
            return times.compiled
        for _ in range(_WARM_CALLS):
            self._call(*self._operands)
        return [
            call_time.one_call_ms(lambda: self._call(*self._operands), self._device)
            for _ in range(self._repeat)
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


def _imported(file: Path) -> Any:
    """Import a file of `replay_file`; Triton looks its module up by name."""
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
