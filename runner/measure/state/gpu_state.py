"""Is the GPU free of other processes and at its full clock? Read before and after, as a warning."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runner.measure.state.device import Device
from runner.system import machine

_FIELDS = (
    "memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks.max.sm,"
    "clocks_event_reasons.active"
)
_BUSY_MIB = 2048  # contexts (ours too) and a driver's services stay below
_POWER_CAP = 0x4  # also set on a card at its full clock, where it did not change the results
_FULL_CLOCK = 0.99
# Bits of NVML's clock event reasons that cut a benchmark's speed; idle (0x1) and the like do not.
_SLOWED = {
    _POWER_CAP: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True)
class GpuState:
    """Values of nvidia-smi: MiB, %, °C, W, MHz, a hexadecimal mask; and how many MiB are ours."""

    memory_used: str
    utilization: str
    temperature: str
    power: str
    sm_clock: str
    max_sm_clock: str
    clock_event_reasons: str
    own_memory_mib: int = 0

    def slowed_by(self) -> list[str]:
        try:
            mask = int(self.clock_event_reasons, 16)
        except ValueError:
            return []
        clocks = (self.sm_clock, self.max_sm_clock)
        if all(map(str.isdigit, clocks)) and int(clocks[0]) >= _FULL_CLOCK * int(clocks[1]):
            mask &= ~_POWER_CAP
        return [f"{name} ({self.sm_clock} MHz)" for bit, name in _SLOWED.items() if mask & bit]

    def others_mib(self) -> int:
        """Return the memory that other processes hold, including their contexts."""
        return int(self.memory_used) - self.own_memory_mib if self.memory_used.isdigit() else 0


def gpu_state(device: Device) -> GpuState | None:
    """Return the state of the GPU; None on a CPU, or if nvidia-smi gives none."""
    rows = machine.nvidia_smi(_FIELDS, gpu=device.key) if device.type == "cuda" else []
    if not rows:
        return None
    own_bytes = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
    memory, utilization, temperature, power, sm_clock, max_sm_clock, reasons = rows[0]
    return GpuState(
        memory, utilization, temperature, power, sm_clock, max_sm_clock, reasons, own_bytes // 2**20
    )


def warning(first: GpuState, last: GpuState) -> str:
    """Return who else was on the GPU before the start, and what slows it now; '' for neither."""
    told = [f"slowed by {reason}" for reason in last.slowed_by()]
    if first.others_mib() > _BUSY_MIB:
        told.insert(0, f"{first.others_mib()} MiB of GPU memory were in use before the start")
    return "; ".join(told)
