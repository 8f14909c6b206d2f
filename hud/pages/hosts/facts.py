"""What a host says of itself, in rows for a person. A host may say anything: what is not as expected is left
out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hud.hosts.registration import unavailable_suites
from hud.models import Accelerator

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
class Line:
    name: str
    text: str = ""
    size_bytes: float | None = None  # instead of the text


@dataclass(slots=True)
class Gpu:
    name: str
    uuid: str
    memory_bytes: float | None
    driver: str
    limits: str  # highest clocks, and power


@dataclass(slots=True)
class Python:
    name: str
    torch: str = ""
    cuda: str = ""
    triton: str = ""
    python: str = ""
    error: str = ""


@dataclass(slots=True)
class Facts:
    lines: list[Line] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    pythons: list[Python] = field(default_factory=list)
    ceilings: list[Line] = field(default_factory=list)  # measured, by accelerator
    lacking: dict[str, str] = field(default_factory=dict)  # why a suite is not offered, by its name


def read(facts: Mapping[str, Any]) -> Facts:
    """Read the facts of a host's last heartbeat."""
    pythons = [_python(name, said) for name, said in sorted(_object(facts.get("pythons")).items())]
    lacking = unavailable_suites(facts)
    return Facts(list(_lines(facts)), list(_gpus(facts)), pythons, list(_ceilings(facts)), lacking)


def inductor_options(accelerators: Iterable[Accelerator], python: str) -> dict[str, Any]:
    """Return the options of inductor, with their kinds, that this interpreter of each accelerator's host
    reports alike."""
    reports = [
        _object(_object(_object(one.host.facts.get("pythons")).get(python)).get("inductor_options"))
        for one in accelerators
    ]
    first, *others = reports or [{}]
    return {name: kind for name, kind in first.items() if all(one.get(name) == kind for one in others)}


def _lines(facts: Mapping[str, Any]) -> Iterator[Line]:
    for key, name in _LINES.items():
        value = facts.get(key)
        if key.endswith("_bytes") and _is_number(value):
            yield Line(name, size_bytes=value)
        elif value not in (None, ""):
            yield Line(name, _text(value))


def _gpus(facts: Mapping[str, Any]) -> Iterator[Gpu]:
    limits = {_text(said.get("uuid")): said for said in _objects(facts.get("gpu_limits"))}
    for said in _objects(facts.get("gpus")):
        uuid, memory = _text(said.get("uuid")), said.get("memory_bytes")
        most = limits.get(uuid, {})
        shown = [text.format(_text(most[key])) for key, text in _LIMITS.items() if most.get(key)]
        yield Gpu(
            _text(said.get("name")), uuid, memory if _is_number(memory) else None, _text(said.get("driver")),
            ", ".join(shown),
        )  # fmt: skip


def _python(name: str, said: Any) -> Python:
    said = _object(said)
    return Python(name, *(_text(said.get(key)) for key in ("torch", "cuda", "triton", "python", "error")))


def _ceilings(facts: Mapping[str, Any]) -> Iterator[Line]:
    for accelerator, by_name in sorted(_object(facts.get("ceilings")).items()):
        texts = []
        for name, reading in sorted(_object(by_name).items()):
            what, _, unit = name.rpartition("_")
            value = _object(reading).get("value")
            if what and _is_number(value):
                texts.append(f"{what.replace('_', ' ')} {value:.4g} {_UNITS.get(unit, unit)}")
        if texts:
            yield Line(accelerator, ", ".join(texts))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:300]
