"""Is the GPU ours, and at its full clock? Asked before and after, and told as a warning."""

from __future__ import annotations

from dataclasses import dataclass

from runner import host
from runner.measure.device import Device

_FIELDS = "memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks_event_reasons.active"
_BUSY_MIB = 2048  # contexts of a driver's own services stay below
# Bits of NVML's clock event reasons that cut a benchmark's speed; idle (0x1) and the like do not.
_SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True)
class GpuState:
    """As nvidia-smi says it: MiB, %, °C, W, MHz, and a hexadecimal mask."""

    memory_used: str
    utilization: str
    temperature: str
    power: str
    sm_clock: str
    clock_event_reasons: str

    def slowed_by(self) -> list[str]:
        try:
            mask = int(self.clock_event_reasons, 16)
        except ValueError:
            return []
        return [name for bit, name in _SLOWED.items() if mask & bit]


def gpu_state(device: Device) -> GpuState | None:
    """None on a CPU, or where nvidia-smi says nothing."""
    rows = host.nvidia_smi(_FIELDS, gpu=device.key) if device.type == "cuda" else []
    return GpuState(*rows[0]) if rows else None


def warning(states: list[GpuState | None]) -> str:
    """Who else was on the GPU before the start, and what slows it now; '' where nothing did."""
    first, last = states[0], states[-1]
    told = [f"slowed by {reason}" for reason in (last.slowed_by() if last else [])]
    if first and first.memory_used.isdigit() and int(first.memory_used) > _BUSY_MIB:
        told.insert(0, f"{first.memory_used} MiB of GPU memory were in use before the start")
    return "; ".join(told)
