"""A record becomes an observation: names normalised to the words of this project, values to numbers.

Everything that decides which series a number belongs to happens here and nowhere else.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import msgspec

from hud.ingest.errors import Fault
from hud.ingest.formats import Placed, reasons
from hud.ingest.parameters import Parameters, parse_time
from hud.ingest.systems import WrongRecord, describe
from hud.ingest.systems.about import About
from hud.ingest.values import MAX_VALUE, said_status, status_of_code, target_of, values_of
from runner.catalog import knobs_key
from runner.catalog.metrics import metric_info
from runner.records import Environment, Record

_MAX_PAIRS = 10_000
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


@dataclass(frozen=True)
class RunKey:
    """One upload makes one run for each of these."""

    source: str
    external_id: str | None
    host: str
    commit: str
    branch: str
    repo: str
    at: datetime | None
    at_source: str
    uid: str | None = None  # of the run that an export of ours names
    environment: str = ""  # of a run in pairs: the names of both
    base_environment: str = ""


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
    warning: str | None = None
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


@dataclass(frozen=True)
class _Origin:
    """What `runners` says of a record's run: the host, both environments of a run in pairs, its process."""

    host: str
    base: str
    new: str
    process: int

    @classmethod
    def of(cls, record: Record) -> _Origin:
        pair = _pair(record)
        # of a pair: twice its number, and one more for the new side
        process = 2 * pair["number"] + (pair["side"] == "new") if pair else 0
        return cls(_runner_name(record), _text(pair.get("base"))[:60], _text(pair.get("new"))[:60], process)


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
        self._run_keys: dict[tuple[Any, ...], RunKey] = {}
        self._origins: dict[bytes, _Origin] = {}  # by runners and dependencies, as JSON

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
        if placed.warning and placed.warning not in self.warnings:
            self.warnings.append(placed.warning)
        if placed.fault:
            self.faults.append(placed.fault)
            return
        if record is None or placed.skip or record.metric is None:
            if placed.skip or not placed.warning:
                self.skipped.append(skipped(placed, placed.skip or reasons.NO_METRIC))
            return
        numbers, code, fault = values_of(record)
        fault = fault or _nameless(record)
        if fault:
            self.faults.append(Fault(placed.pointer + fault.pointer, fault.detail, placed.line))
            return
        if not numbers and code is None and said_status(record) in {"", "ok"}:
            self._take_expected(record, placed)
            return
        observation = self._observe(record, numbers, code, placed)
        if fault := _too_long(observation):
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
                metric=_composed(about.metric),
                case=_composed(about.case),
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
        extra = record.metric.extra_info or {}
        status = said_status(record) or (status_of_code(code, about.metric) if code else "ok")
        if about.zero_means and numbers and not any(numbers):
            numbers, status, code = [], about.zero_means, code or "value 0 written for a failure"
        target = target_of(record)
        facts = msgspec.json.encode((record.runners, record.dependencies))
        origin = self._origins.get(facts)
        if origin is None:
            origin = self._origins[facts] = _Origin.of(record)
        if not (about.mode and about.dtype and about.arch):
            self.unsaid.update(name for name in ("mode", "dtype", "arch") if not getattr(about, name))
        return Observation(
            identity=_identity(about),
            metric=_composed(about.metric),
            run=_exported_run(about) or self._run_key(record, origin, given),
            environment=self._environment(record, facts, about.device_name, given),
            samples=[number * about.scale for number in numbers] if about.scale != 1 else numbers,
            status=status,
            code=code,
            target=target,
            target_arch=(_text(extra.get("target_arch"))[:60] or about.target_arch)
            if target is not None
            else None,
            warning=_text(extra.get("warning"))[:300] or None,
            process=about.exported.process if about.exported else origin.process,
            pointer=placed.pointer,
            line=placed.line,
        )

    def _given(self, placed: Placed) -> Parameters:
        """Parameters of the upload, and where they are silent what the file's name suggests."""
        if not placed.hints:
            return self.parameters
        silent = {name: value for name, value in placed.hints.items() if not getattr(self.parameters, name)}
        return replace(self.parameters, **silent)

    def _run_key(self, record: Record, origin: _Origin, given: Parameters) -> RunKey:
        """Of a record that says the same as one before it, that one's."""
        said = (
            record.benchmark.name,
            origin.base,
            origin.new,
            origin.host,
            record.timestamp,
            record.repo,
            record.head_branch,
            record.head_sha,
            record.workflow_id,
            record.job_id,
            record.run_attempt,
        )
        found = self._run_keys.get(said)
        if found is None:
            found = self._run_keys[said] = self._new_run_key(record, origin, given)
        return found

    def _new_run_key(self, record: Record, origin: _Origin, given: Parameters) -> RunKey:
        external_id = None
        if record.workflow_id not in (None, 0, "0", ""):
            external_id = f"{record.workflow_id}/{record.job_id or 0}/{record.run_attempt or 1}"[:200]
        commit_time = parse_time(given.commit_date) if given.commit_date else None
        run_time = _from_epoch(record.timestamp) or (parse_time(given.run_time) if given.run_time else None)
        at_source = "commit" if commit_time else "run" if run_time else "upload"
        return RunKey(
            source=_composed(given.source or record.benchmark.name)[:100],
            external_id=external_id or given.run_id or None,
            host=_composed(origin.host or given.host)[:200],
            commit=(record.head_sha or given.commit)[:64],
            branch=_composed(record.head_branch or given.branch)[:200],
            repo=_composed(record.repo or given.repo)[:200],
            at=commit_time or run_time,
            at_source=at_source,
            environment=origin.new,
            base_environment=origin.base,
        )

    def _environment(self, record: Record, facts: bytes, device_name: str, given: Parameters) -> Environment:
        """Records of one upload mostly say the same here; only what is new is read."""
        device = _text((record.benchmark.extra_info or {}).get("device")) or given.device
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


def _exported_run(about: About) -> RunKey | None:
    """The run that an export of ours names."""
    run = about.exported.run if about.exported else None
    if run is None:
        return None
    return RunKey(
        source=run.source[:100],
        external_id=run.external_id,
        host=run.host,
        commit=run.commit[:64],
        branch=run.branch,
        repo=run.repo,
        at=parse_time(run.at),
        at_source=run.at_source,
        uid=str(run.uid),
        environment=run.environment[:60],
        base_environment=run.base_environment[:60],
    )


def _bounded(value: Any) -> Any:
    """A setting as it is; a number beyond 64 bits as text, since JSON's readers disagree about those."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and abs(value) >= 2**63 else value


def skipped(placed: Placed | Observation, reason: str) -> dict[str, Any]:
    """An entry of the receipt's `skipped`."""
    entry: dict[str, Any] = {"pointer": placed.pointer, "reason": reason}
    return entry if placed.line is None else {**entry, "line": placed.line}


def _composed(name: str) -> str:
    """The same name in the one way it is kept: é is one character, however its writer spelt it."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _identity(about: About) -> Identity:
    knobs = knobs_key({name: _bounded(value) for name, value in about.knobs.items()}) if about.knobs else "{}"
    texts = about.suite, about.case, knobs, about.mode, about.dtype, about.backend, about.device, about.arch
    if not "".join(texts).isascii():
        texts = tuple(map(_composed, texts))  # type: ignore[assignment]  # as many
    return (*texts, about.dynamic)


def _nameless(record: Record) -> Fault | None:
    """What has no name is nobody's series."""
    assert record.metric is not None
    if not record.metric.name.strip():
        return Fault("/metric/name", _EMPTY)
    if not record.model.name.strip():
        return Fault("/model/name", _EMPTY)
    return None if record.benchmark.name.strip() else Fault("/benchmark/name", _EMPTY)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _pair(record: Record) -> dict[str, Any]:
    """Its place among process pairs, {} for a record of no pair or of a pair that is not whole."""
    facts = _first_runner(record).get("extra_info")
    said = facts.get("pair") if isinstance(facts, dict) else None
    if not isinstance(said, dict) or said.get("side") not in {"base", "new"}:
        return {}
    number = said.get("number")
    numbered = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _MAX_PAIRS
    return said if numbered and _text(said.get("base")) and _text(said.get("new")) else {}


def _first_runner(record: Record) -> dict[str, Any]:
    runners = record.runners if isinstance(record.runners, list) else []
    return next((entry for entry in runners if isinstance(entry, dict)), {})


def _runner_name(record: Record) -> str:
    """A host's name. Upstream's convention writes the kind of device there, which names no host."""
    name = _text(_first_runner(record).get("name"))
    return "" if name in {"cuda", "cpu", "rocm", "xpu", "mps", "hpu"} else name


def _from_epoch(moment: float | None) -> datetime | None:
    """Seconds since 1970, or the milliseconds that some uploaders write; None for what is no moment."""
    seconds = moment / 1000 if moment and moment > 1e11 else moment
    if not seconds or not 0 < seconds < 7e9:
        return None
    return datetime.fromtimestamp(seconds, tz=timezone.utc)


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
    return _too_many(observation.samples)


def _too_many(samples: list[float]) -> Fault | None:
    if len(samples) > _MAX_SAMPLES:
        return Fault("/metric/benchmark_values", f"more than {_MAX_SAMPLES} values")
    for sample in samples:
        if abs(sample) > MAX_VALUE:
            return Fault("/metric/benchmark_values", f"a value beyond {MAX_VALUE:g} in the metric's unit")
    return None
