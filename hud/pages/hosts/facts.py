"""A host's facts as rows for a person. A host may report anything: unexpected values are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hud.hosts.registration import unavailable_suites

_LINES = {
    "cpu": "CPU",
    "cpu_count": "processors",
    "memory_bytes": "memory",
    "os": "OS",
    "compiler": "C++ compiler",
    "python": "agent Python",
}
_LIMITS = {"max_sm_mhz": "{} MHz", "max_memory_mhz": "memory {} MHz", "power_limit_w": "{} W"}
_UNITS = {"gbps": "GB/s", "tflops": "TFLOP/s"}


@dataclass(slots=True)
class Facts:
    """Rows by the names that the template shows; a size in bytes is a number, all else is text."""

    lines: dict[str, str | float]
    gpus: list[dict[str, Any]]
    pythons: list[dict[str, str]]
    ceilings: dict[str, str]  # measured, by accelerator
    lacking: dict[str, str]  # suite → why it is not offered


def read(facts: Mapping[str, Any]) -> Facts:
    """Read the facts of a host's last heartbeat."""
    lines = {
        name: facts[key] if key == "memory_bytes" else _text(facts[key])
        for key, name in _LINES.items()
        if (_is_number(facts.get(key)) if key == "memory_bytes" else facts.get(key) not in (None, ""))
    }
    limits = {_text(one.get("uuid")): one for one in _objects(facts.get("gpu_limits"))}
    gpus = []
    for one in _objects(facts.get("gpus")):
        highest = limits.get(_text(one.get("uuid")), {})
        gpus.append({
            **{key: _text(one.get(key)) for key in ("name", "uuid", "driver")},
            "memory_bytes": one["memory_bytes"] if _is_number(one.get("memory_bytes")) else None,
            "limits": ", ".join(
                text.format(_text(highest[key])) for key, text in _LIMITS.items() if highest.get(key)
            ),
        })  # fmt: skip
    keys = ("torch", "cuda", "triton", "python", "error")
    pythons = [
        {"name": name, **{key: _text(_object(one).get(key)) for key in keys}}
        for name, one in sorted(_object(facts.get("pythons")).items())
    ]
    ceilings = {}
    for accelerator, by_name in sorted(_object(facts.get("ceilings")).items()):
        texts = []
        for key, measured in sorted(_object(by_name).items()):
            name, _, unit = key.rpartition("_")
            value = _object(measured).get("value")
            if name and _is_number(value):
                texts.append(f"{name.replace('_', ' ')} {value:.4g} {_UNITS.get(unit, unit)}")
        if texts:
            ceilings[accelerator] = ", ".join(texts)
    return Facts(lines, gpus, pythons, ceilings, unavailable_suites(facts))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:300]
