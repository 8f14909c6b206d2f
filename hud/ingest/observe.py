"""A record becomes an observation: names normalised to the words of this project, values to numbers.

Everything that decides which series a number belongs to happens here and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hud.ingest.errors import Fault
from hud.ingest.formats import Placed, reasons
from hud.ingest.parameters import Parameters
from hud.ingest.run_keys import Origin, RunKey, RunKeys, exported_run
from hud.ingest.systems import WrongRecord, describe
from hud.ingest.systems.about import About
from hud.ingest.texts import composed, text
from hud.ingest.values import (
    MAX_VALUE,
    has_outcome,
    said_status,
    said_words,
    status_of_code,
    target_of,
    values_of,
)
from hud.models import FIRST_RUN_ONLY
from runner.catalog import knobs_key
from runner.catalog.metrics import metric_info, value_rule
from runner.records import UNEXPECTED, Environment, Record
from runner.summary import value_of

_MAX_IDENTITY_BYTES = 2000  # PostgreSQL's index takes some 2,700 a row
_SUITE = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,60}")
_LIMITS = {  # characters, in the order of an identity
    "suite": 60,
    "case": 200,
    "settings": 4000,
    "mode": 40,
    "dtype": 40,
    "backend": 100,
    "device": 40,
    "arch": 100,
}
_ALWAYS_FITS = 40  # characters in each text: within all limits, also together
_MAX_SAMPLES = 100_000
_EMPTY = "the name is empty"


Identity = tuple[str, str, str, str, str, str, str, str, bool]  # an Experiment's columns in their order


@dataclass(slots=True)
class Observation:
    """One measurement to be."""

    identity: Identity
    metric: str
    run: RunKey
    environment: Environment
    samples: list[float] = field(default_factory=list)
    status: str = "ok"
    code: str | None = None
    target: float | None = None
    target_arch: str | None = None
    words: str | None = None  # beside it: a warning, or the reason of its status
    process: int = 0  # which of the run's repeated fresh processes
    pointer: str = ""  # where the record stood: the record itself is not kept
    line: int | None = None


@dataclass(frozen=True)
class Expected:
    """`margin` is the relative noise the writer allows on the bad side before the target counts as missed."""

    metric: str
    case: str
    dtype: str
    arch: str
    value: float
    margin: float
    direction: str

    @property
    def limit(self) -> float:
        """The last value that still counts as reached."""
        slack = abs(self.value) * self.margin
        return self.value - slack if self.direction == "up" else self.value + slack


class Observer:
    """Turns the records of one upload into observations; collects what cannot be one."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.observations: list[Observation] = []
        self.skipped: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self.warnings: list[str] = []
        self.expected: list[Expected] = []
        self.unsaid: set[str] = set()  # parts of an identity that neither content, parameter nor name says
        self._environments: dict[str, Environment] = {}  # by fingerprint: records share one object
        self._environments_said: dict[tuple[bytes, str, str], Environment] = {}
        self._run_keys = RunKeys()
        self._origins: dict[bytes, Origin] = {}  # by runners and dependencies, as JSON

    def hand_over(self) -> list[Observation]:
        """The observations so far; the next ones start anew."""
        taken, self.observations = self.observations, []
        return taken

    def skip_faults(self) -> None:
        """What is wrong becomes what is left out, with its reason."""
        self.skipped += [{**fault.to_json(), "reason": fault.detail} for fault in self.faults]
        for entry in self.skipped[-len(self.faults) :]:
            entry.pop("detail", None)
        self.faults = []

    def take(self, placed: Placed) -> None:
        try:
            self._take(placed)
        except WrongRecord as error:
            self.faults.append(Fault(placed.pointer + error.fault.pointer, error.fault.detail, placed.line))
        except (ValueError, OverflowError, RecursionError):
            # a text beyond what Python reads, such as a number of 5,000 digits or a list 100,000 deep
            self.faults.append(Fault(placed.pointer, "a value that cannot be read", placed.line))

    def _take(self, placed: Placed) -> None:
        record = placed.record
        self._warn(placed.warning)
        if placed.fault:
            self.faults.append(placed.fault)
            return
        if record is None or placed.skip or record.metric is None:
            if placed.skip or not placed.warning:
                self.skipped.append(skipped(placed, placed.skip or reasons.NO_METRIC))
            return
        if (record.metric.extra_info or {}).get(UNEXPECTED):
            self.skipped.append(skipped(placed, reasons.UNEXPECTED))
            return
        numbers, code, fault = values_of(record)
        fault = fault or _nameless(record)
        if fault:
            self.faults.append(Fault(placed.pointer + fault.pointer, fault.detail, placed.line))
            return
        if not numbers and not has_outcome(record, code):
            self._take_expected(record, placed)
            return
        observation = self._observe(record, numbers, code, placed)
        if fault := _too_long(observation) or _below_zero(observation):
            self.faults.append(Fault(placed.pointer + fault.pointer, fault.detail, placed.line))
            return
        self.observations.append(observation)

    def _take_expected(self, record: Record, placed: Placed) -> None:
        """A record without values may still say what the value should be."""
        assert record.metric is not None
        target = target_of(record)
        if target is None:
            self.skipped.append(skipped(placed, reasons.NO_VALUES))
            return
        about = describe(record, self._given(placed))
        if max(map(len, (about.metric, about.case))) > 200 or len(about.dtype) > 40 or len(about.arch) > 100:
            self.faults.append(Fault(placed.pointer, "a name is too long", placed.line))
            return
        margin = (record.metric.extra_info or {}).get("noise_margin")
        self.expected.append(
            Expected(
                metric=composed(about.metric),
                case=composed(about.case),
                dtype=about.dtype,
                arch=about.arch,
                value=target,
                margin=float(margin) if isinstance(margin, int | float) and 0 <= margin <= 1 else 0.0,
                direction=metric_info(about.metric).direction,
            )
        )

    def _observe(self, record: Record, numbers: list[float], code: str | None, placed: Placed) -> Observation:
        assert record.metric is not None
        given = self._given(placed)
        about = describe(record, given)
        self._warn(about.warning)
        extra = record.metric.extra_info or {}
        status = said_status(record) or (status_of_code(code, about.metric) if code else "ok")
        if about.zero_means and numbers and not any(numbers):
            numbers, status, code = [], about.zero_means, code or "value 0 written for a failure"
        target = target_of(record)
        facts = msgspec.json.encode((record.runners, record.dependencies))
        origin = self._origins.get(facts)
        if origin is None:
            origin = self._origins[facts] = Origin.of(record)
        if not (about.mode and about.dtype and about.arch):
            self.unsaid.update(name for name in ("mode", "dtype", "arch") if not getattr(about, name))
        return Observation(
            identity=_identity(about),
            metric=composed(about.metric),
            run=exported_run(about) or self._run_keys.of(record, origin, given),
            environment=self._environment(record, facts, about.device_name, given),
            samples=[number * about.scale for number in numbers] if about.scale != 1 else numbers,
            status=status,
            code=code,
            target=target,
            target_arch=(text(extra.get("target_arch"))[:60] or about.target_arch)
            if target is not None
            else None,
            words=said_words(extra) or (_doubt(about, numbers) if status == "ok" else None),
            process=about.exported.process if about.exported else origin.process,
            pointer=placed.pointer,
            line=placed.line,
        )

    def _warn(self, words: str) -> None:
        if words and words not in self.warnings:
            self.warnings.append(words)

    def _given(self, placed: Placed) -> Parameters:
        """Parameters of the upload, and where they are silent what the file's name suggests."""
        if not placed.hints:
            return self.parameters
        silent = {name: value for name, value in placed.hints.items() if not getattr(self.parameters, name)}
        return replace(self.parameters, **silent)

    def _environment(self, record: Record, facts: bytes, device_name: str, given: Parameters) -> Environment:
        """Records of one upload mostly say the same here; only what is new is read."""
        device = text((record.benchmark.extra_info or {}).get("device")) or given.device
        said = (facts, device, device_name)
        found = self._environments_said.get(said)
        if found is None:
            found = _environment_of(record, device, device_name, given)
            found = self._environments_said[said] = self._environments.setdefault(found.fingerprint(), found)
        return found


def _environment_of(record: Record, device: str, device_name: str, given: Parameters) -> Environment:
    environment = Environment.from_record(record)
    environment.torch = environment.torch or given.torch
    environment.cuda = environment.cuda or given.cuda
    environment.driver = environment.driver or given.driver
    if not environment.gpu and device not in {"cpu", ""}:
        environment.gpu = device_name
    return environment


def _bounded(value: Any) -> Any:
    """A setting as it is; a number beyond 64 bits as text, since JSON's readers disagree about those."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and abs(value) >= 2**63 else value


def skipped(placed: Placed | Observation, reason: str) -> dict[str, Any]:
    """An entry of the receipt's `skipped`."""
    entry: dict[str, Any] = {"pointer": placed.pointer, "reason": reason}
    return entry if placed.line is None else {**entry, "line": placed.line}


def _identity(about: About) -> Identity:
    knobs = knobs_key({name: _bounded(value) for name, value in about.knobs.items()}) if about.knobs else "{}"
    texts = about.suite, about.case, knobs, about.mode, about.dtype, about.backend, about.device, about.arch
    if not "".join(texts).isascii():
        texts = tuple(map(composed, texts))  # type: ignore[assignment]  # as many
    return (*texts, about.dynamic)


def _nameless(record: Record) -> Fault | None:
    """What has no name is nobody's series."""
    assert record.metric is not None
    if not record.metric.name.strip():
        return Fault("/metric/name", _EMPTY)
    if not record.model.name.strip():
        return Fault("/model/name", _EMPTY)
    return None if record.benchmark.name.strip() else Fault("/benchmark/name", _EMPTY)


def _too_long(observation: Observation) -> Fault | None:
    identity = observation.identity
    texts: tuple[str, ...] = identity[:8]
    if max(map(len, texts)) > _ALWAYS_FITS:
        for (name, limit), value in zip(_LIMITS.items(), texts, strict=True):
            if len(value) > limit:
                return Fault("", f"the {name} is longer than {limit} characters")
        if len("".join(texts).encode("utf-8", "surrogatepass")) > _MAX_IDENTITY_BYTES:
            return Fault("", f"names and settings together are longer than {_MAX_IDENTITY_BYTES} bytes")
    if not _SUITE.fullmatch(identity[0]):
        return Fault("", "a suite's name has 1 to 60 characters, no slash and no control character")
    if len(observation.metric) > 200:
        return Fault("/metric/name", "the metric's name is longer than 200 characters")
    return _too_many(observation)


def _below_zero(observation: Observation) -> Fault | None:
    """A bandwidth, a time or an amount of memory is never negative; a difference may be."""
    samples = observation.samples
    if not samples or min(samples) >= 0 or metric_info(observation.metric).signed:
        return None
    index = next(index for index, sample in enumerate(samples) if sample < 0)
    detail = f"{samples[index]:g} is below zero, which {observation.metric} cannot be"
    return Fault(f"/metric/benchmark_values/{index}", detail)


def _too_many(observation: Observation) -> Fault | None:
    samples = observation.samples
    if len(samples) > _MAX_SAMPLES:
        return Fault("/metric/benchmark_values", f"more than {_MAX_SAMPLES} values")
    summed = value_rule(observation.identity[0], observation.metric) == "sum"
    for sample in [*samples, value_of(samples, "sum")] if summed else samples:
        if abs(sample) > MAX_VALUE:
            return Fault("/metric/benchmark_values", f"a value beyond {MAX_VALUE:g} in the metric's unit")
    return None


def _doubt(about: About, numbers: list[float]) -> str | None:
    """What to know of a value whose first sample is its only one, and holds what others leave out."""
    alone = len(numbers) == 1 and value_rule(about.suite, about.metric) == "steady"
    alone = alone and not about.knobs.get("pure_wall_time")  # then the compiling call is off the clock
    return FIRST_RUN_ONLY if alone else None
