"""Whether something else was at work where we measured: of a GPU or of the processors, told as a warning."""

from __future__ import annotations

from collections.abc import Sequence

from runner.measure import cpu_state, gpu_state
from runner.measure.cpu_state import CpuState
from runner.measure.device import Device
from runner.measure.gpu_state import GpuState

State = GpuState | CpuState

_LEAST_S = 1.0  # processor time is counted in ticks of 10 ms


def device_state(device: Device) -> State | None:
    """Of the device that is measured; None where nobody says anything of it."""
    return gpu_state.gpu_state(device) if device.type == "cuda" else cpu_state.cpu_state(device.threads)


def warning(states: Sequence[State | None]) -> str:
    """'' where nothing disturbed. Of a GPU the first state and the last one tell, of processors the last
    part of the time, which is the work, and no less than a second of it."""
    gpus = [state for state in states if isinstance(state, GpuState)]
    processors = [state for state in states if isinstance(state, CpuState)]
    if len(processors) > 1:
        *earlier, last = processors
        long = [state for state in earlier if last.at_s - state.at_s >= _LEAST_S]
        return cpu_state.warning(long[-1] if long else earlier[0], last)
    return gpu_state.warning(gpus[0], gpus[-1]) if gpus else ""
