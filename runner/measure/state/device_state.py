"""Was the device disturbed while we measured? State of the GPU or of the processors, as a warning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from runner.launch.report import Report
from runner.measure.state import cpu_state, gpu_state
from runner.measure.state.cpu_state import CpuState
from runner.measure.state.device import Device
from runner.measure.state.gpu_state import GpuState

State = GpuState | CpuState

_LEAST_S = 1.0  # processor time is counted in ticks of 10 ms


def device_state(device: Device) -> State | None:
    """Return the state of the measured device, or None if it is not known."""
    return gpu_state.gpu_state(device) if device.type == "cuda" else cpu_state.cpu_state(device.threads)


def warning(states: Sequence[State | None]) -> str:
    """Return what disturbed the measurement between these states, or ''.

    A GPU is judged by the first and the last state; processors by the last interval, which is the work, or
    by as many intervals as make a second.
    """
    gpus = [state for state in states if isinstance(state, GpuState)]
    processors = [state for state in states if isinstance(state, CpuState)]
    if len(processors) > 1:
        *earlier, last = processors
        long = [state for state in earlier if last.at_s - state.at_s >= _LEAST_S]
        return cpu_state.warning(long[-1] if long else earlier[0], last)
    return gpu_state.warning(gpus[0], gpus[-1]) if gpus else ""


def keep_gpu_states(report: Report, states: Sequence[State | None]) -> None:
    """Write the states of a GPU as an artifact; a CPU has none."""
    gpus = [asdict(state) for state in states if isinstance(state, GpuState)]
    if gpus:
        report.artifact("gpu_state", "gpu_state.json", json.dumps(gpus, indent=1))
