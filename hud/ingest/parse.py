"""Turn records into measurements: normalise names, parse values, check limits.

This and the formats' `describe` decide to which series a number belongs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hud.ingest.compilations import METRIC, BadCompilation, read_compiled
from hud.ingest.exported import exported
from hud.ingest.resolve import RunKeys, from_epoch
from hud.models import FIRST_RUN_ONLY
from runner.formats import describe_of, reasons
from runner.formats.errors import Fault, WrongRecord
from runner.formats.format import Item, LocatedRecord, Skipped
from runner.formats.measurement import ParsedMeasurement, device_name_of, device_of, info_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import INVISIBLE, finite, invisible_in, nfc, number, text
from runner.formats.statuses import status_of
from runner.schema.compilations import COMPILATION, COMPILED
from runner.schema.devices import arch_key
from runner.schema.metrics import is_number, metric_info
from runner.schema.records import STATUSES, UNEXPECTED, Environment, Metric, Record
from runner.schema.statistics import value_of
from runner.schema.suite import knobs_key, value_rule

_MAX_IDENTITY_BYTES = 2000  # a row of PostgreSQL's index has about 2,700
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
_ALWAYS_FITS = 40  # characters of every text that are within all limits
_MAX_SAMPLES = 100_000
_MAX_VALUE = 1e300
_MAX_MESSAGE = 300  # characters of a reason or a warning
MAX_SKIPPED = 1000  # entries that a receipt lists; it has the number of all
_MAX_WARNINGS = 100


@dataclass(frozen=True)
class ExpectedValue:
    """A target without a measurement. `margin` is the relative noise by which a value may miss it."""

    metric: str
    case: str
    dtype: str
    arch: str
    value: float
    margin: float

    @property
    def limit(self) -> float:
        """Return the worst value that still reaches the target."""
        slack = abs(self.value) * self.margin
        return self.value - slack if metric_info(self.metric).direction == "up" else self.value + slack


class RecordParser:
    """Parse the records of one upload into measurements, and collect faults and skipped records."""

    def __init__(self, parameters: Parameters, *, any_time: bool = False) -> None:
        """`any_time` accepts all times; the caller checks them."""
        self.parameters = parameters
        self.measurements: list[ParsedMeasurement] = []
        self.kernels = 0  # of these measurements' compilations
        self.skipped: list[dict[str, Any]] = []  # the first ones, for the receipt
        self.skipped_total = 0
        self.faults: list[Fault] = []
        self.warnings: list[str] = []
        self.expected: list[ExpectedValue] = []
        self.unsaid: set[str] = set()  # parts of identities that nothing in the upload gives
        self._environments: dict[str, Environment] = {}  # by fingerprint: measurements share one object
        self._environments_by_facts: dict[tuple[bytes, str, str], Environment] = {}
        self._run_keys = RunKeys(any_time=any_time)

    def flush(self) -> list[ParsedMeasurement]:
        """Return the measurements since the last flush."""
        taken, self.measurements, self.kernels = self.measurements, [], 0
        return taken

    def skip_faults(self) -> None:
        """Turn the faults into skipped records, so that they do not refuse the upload."""
        for fault in self.faults:
            self._skip(Skipped(fault.pointer, fault.detail, fault.line))
        self.faults = []

    def _skip(self, entry: Skipped) -> None:
        self.skipped_total += 1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(entry.to_json())

    def add(self, item: Item) -> None:
        if isinstance(item, Fault):
            self.faults.append(item)
        elif isinstance(item, Skipped):
            self._skip(item)
        elif isinstance(item, LocatedRecord):
            try:
                self._add_record(item, item.record)
            except WrongRecord as error:
                self.faults.append(Fault(item.pointer + error.pointer, error.detail, item.line))
            except (ValueError, OverflowError, RecursionError):
                # text that Python cannot read, such as a number of 5,000 digits or a list 100,000 deep
                self.faults.append(Fault(item.pointer, "a value that cannot be read", item.line))
        else:
            self._warn(item.text)

    def _add_record(self, item: LocatedRecord, record: Record) -> None:
        metric = record.metric
        if metric is None:
            self._skip(Skipped(item.pointer, reasons.NO_METRIC, item.line))
            return
        if (metric.extra_info or {}).get(UNEXPECTED):
            self._skip(Skipped(item.pointer, reasons.UNEXPECTED, item.line))
            return
        numbers, target = _numbers(metric), _target(metric)
        names = {"metric": metric.name, "model": record.model.name, "benchmark": record.benchmark.name}
        if empty := [part for part, name in names.items() if not name.strip()]:
            raise WrongRecord(f"/{empty[0]}/name", "the name is empty")
        extra = metric.extra_info or {}
        status = extra.get("status")
        status = status if isinstance(status, str) and status in STATUSES else ""
        code = _code(extra, status, has_numbers=bool(numbers))
        has_outcome = numbers or _is_outcome(status, code, metric.name)
        if not has_outcome and target is None:
            self._skip(Skipped(item.pointer, reasons.NO_VALUES, item.line))
            return
        given = self._with_hints(item)
        facts = msgspec.json.encode((record.runners, record.dependencies))
        run, repeat, side = self._run_keys.of(record, facts, given)
        device_name = device_name_of(record) or given.arch
        measurement = ParsedMeasurement(
            case=record.model.name,
            metric=metric.name,
            run=run,
            repeat=repeat,
            side=side,
            environment=self._environment(record, facts, device_name, given),
            mode=record.benchmark.mode or given.mode,
            dtype=record.benchmark.dtype or given.dtype,
            backend=record.model.backend or given.backend,
            device=device_of(record) or given.device,
            device_name=device_name,
            dynamic=given.is_dynamic,
            samples=numbers,
            code=code,
            target=target,
            pointer=item.pointer,
            line=item.line,
        )
        if stored := exported(record):
            stored.fill(measurement, from_epoch(record.timestamp))
        else:
            describe_of(record.benchmark.name)(measurement, record, given)
            measurement.arch = arch_key(measurement.device_name)
        if not has_outcome:
            self._expect(measurement, extra)
            return
        self._warn(measurement.warning)
        measurement.status = measurement.status or status or _status_of_code(code, measurement.metric)
        if target is not None:
            measurement.target_arch = text(extra.get("target_arch"))[:60] or measurement.target_arch
        else:
            measurement.target_arch = None
        measurement.message = _message(extra) or _first_run_warning(measurement)
        if not (measurement.mode and measurement.dtype and measurement.arch):
            self.unsaid.update(name for name in ("mode", "dtype", "arch") if not getattr(measurement, name))
        _normalise_names(measurement)
        _check_limits(measurement)
        self._add_compilation(measurement, extra)
        self.measurements.append(measurement)

    def _add_compilation(self, measurement: ParsedMeasurement, extra: dict[str, Any]) -> None:
        number = _compilation(extra)
        is_ab = measurement.run.base_interpreter and number is not None
        measurement.compilation = (
            measurement.repeat if is_ab else number
        )  # each pair compiles both sides anew
        if COMPILED not in extra or measurement.metric != METRIC:
            return
        try:
            measurement.compiled = read_compiled(extra[COMPILED])
        except BadCompilation as error:
            place = f"line {measurement.line}" if measurement.line else measurement.pointer or "the record"
            self._warn(f"{place}: what was compiled is left out: {error}")
        else:
            self.kernels += len(measurement.compiled.kernels)

    def _warn(self, words: str) -> None:
        if words and words not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(words)

    def _with_hints(self, item: LocatedRecord) -> Parameters:
        """Return the upload's parameters, completed by the hints of the file's name."""
        if not item.hints:
            return self.parameters
        missing = {name: value for name, value in item.hints.items() if not getattr(self.parameters, name)}
        return replace(self.parameters, **missing)

    def _expect(self, measurement: ParsedMeasurement, extra: dict[str, Any]) -> None:
        """Keep the target of a record without a value."""
        names = measurement.metric, measurement.case
        if max(map(len, names)) > 200 or len(measurement.dtype) > 40 or len(measurement.arch) > 100:
            raise WrongRecord("", "a name is too long")
        assert measurement.target is not None
        margin = extra.get("noise_margin")
        self.expected.append(
            ExpectedValue(
                metric=nfc(measurement.metric),
                case=nfc(measurement.case),
                dtype=measurement.dtype,
                arch=measurement.arch,
                value=measurement.target,
                margin=float(margin) if isinstance(margin, int | float) and 0 <= margin <= 1 else 0.0,
            )
        )

    def _environment(self, record: Record, facts: bytes, device_name: str, given: Parameters) -> Environment:
        """Return the record's environment, from a cache, since most records of an upload share it."""
        device = text(info_of(record).get("device")) or given.device
        key = (facts, device, device_name)
        found = self._environments_by_facts.get(key)
        if found is None:
            if character := invisible_in(facts.decode()):
                detail = f"a fact of its host holds the invisible character {character}"
                raise WrongRecord("/runners", detail)
            found = Environment.from_record(record)
            found.torch = found.torch or given.torch
            found.cuda = found.cuda or given.cuda
            found.driver = found.driver or given.driver
            if not found.gpu and device not in {"cpu", ""}:
                found.gpu = device_name
            found = self._environments.setdefault(found.fingerprint(), found)
            self._environments_by_facts[key] = found
        return found


def _numbers(metric: Metric) -> list[float]:
    numbers = []
    for index, value in enumerate(metric.benchmark_values or []):
        found = _number(value)
        if found is None:
            raise WrongRecord(f"/metric/benchmark_values/{index}", f"{str(value)[:60]!r} is not a number")
        numbers.append(found)
    return numbers


def _target(metric: Metric) -> float | None:
    """Return the record's target. PyTorch's scripts write 0 for none."""
    if metric.target_value is None:
        return None
    found = _number(metric.target_value)
    if found is None:
        raise WrongRecord("/metric/target_value", f"{str(metric.target_value)[:60]!r} is not a number")
    return found or None


def _number(value: float | str) -> float | None:
    found = number(value) if isinstance(value, str) else finite(value)
    return found if found is not None and abs(found) <= _MAX_VALUE else None


def _compilation(extra: dict[str, Any]) -> int | None:
    said = extra.get(COMPILATION)
    return said if type(said) is int and 0 <= said < 2**15 else None


def _code(extra: dict[str, Any], status: str, *, has_numbers: bool) -> str | None:
    """Return the code of an outcome: the one that our runner or export wrote beside the status, or, without
    numbers, the texts in place of values, as a list or JSON."""
    code = extra.get("code")
    if status and isinstance(code, str) and code:
        return INVISIBLE.sub("", code)[:200]
    values = extra.get("benchmark_values")
    if has_numbers or not values:
        return None
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except ValueError:
            values = [values]
    if not isinstance(values, list) or not values or not all(isinstance(item, str) for item in values):
        return None
    return INVISIBLE.sub("", ", ".join(values))[:200].strip() or None


def _is_outcome(status: str, code: str | None, metric: str) -> bool:
    """Return whether a record without numbers has an outcome. For a numeric metric `ok` is none: it has no
    value."""
    if status not in {"", "ok"}:
        return True
    if code is None:
        return False
    return not is_number(metric) or (not status and _status_of_code(code, metric) != "ok")


def _status_of_code(code: str | None, metric: str) -> str:
    """Return the status of a code. An unknown code is an outcome only for a status metric."""
    if not code:
        return "ok"
    return status_of(code) or ("cannot_tell" if metric_info(metric).kind == "status" else "ok")


def _message(extra: dict[str, Any]) -> str | None:
    """Return the reason of a status and the warning of a value as one text."""
    words = (" ".join(text(extra.get(name)).split()) for name in ("reason", "warning"))
    return INVISIBLE.sub("", "; ".join(filter(None, words)))[:_MAX_MESSAGE].strip() or None


def _first_run_warning(measurement: ParsedMeasurement) -> str | None:
    """Warn that a single sample includes compilation and warm-up, if the metric otherwise excludes it."""
    if measurement.status != "ok" or len(measurement.samples) != 1:
        return None
    if value_rule(measurement.suite, measurement.metric) != "steady":
        return None
    # with pure_wall_time the compiling call is not timed
    return None if measurement.knobs.get("pure_wall_time") else FIRST_RUN_ONLY


def _normalise_names(measurement: ParsedMeasurement) -> None:
    if measurement.knobs:
        knobs = {name: _bounded(value) for name, value in measurement.knobs.items()}
        measurement.knobs_key = knobs_key(knobs)
    measurement.metric = nfc(measurement.metric)
    texts = measurement.identity[:8]
    names = "".join((*texts, measurement.metric))
    if "\\u" in measurement.knobs_key:  # JSON, which escapes them
        names += json.dumps(measurement.knobs, ensure_ascii=False)
    if found := invisible_in(names):
        raise WrongRecord("", f"a name or a setting holds the invisible character {found}")
    if not "".join(texts).isascii():
        columns = ("suite", "case", "knobs_key", "mode", "dtype", "backend", "device", "arch")
        for name, value in zip(columns, texts, strict=True):
            setattr(measurement, name, nfc(value))


def _bounded(value: Any) -> Any:
    """Return a number beyond 64 bits as text, since JSON readers disagree about it."""
    is_a_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_a_number and abs(value) >= 2**63 else value


def _check_limits(measurement: ParsedMeasurement) -> None:
    texts: tuple[str, ...] = measurement.identity[:8]
    if max(map(len, texts)) > _ALWAYS_FITS:
        for (name, limit), value in zip(_LIMITS.items(), texts, strict=True):
            if len(value) > limit:
                raise WrongRecord("", f"the {name} is longer than {limit} characters")
        if len("".join(texts).encode("utf-8", "surrogatepass")) > _MAX_IDENTITY_BYTES:
            raise WrongRecord("", f"names and settings together are longer than {_MAX_IDENTITY_BYTES} bytes")
    if not _SUITE.fullmatch(measurement.suite):
        raise WrongRecord("", "a suite's name has 1 to 60 characters, no slash and no control character")
    if len(measurement.metric) > 200:
        raise WrongRecord("/metric/name", "the metric's name is longer than 200 characters")
    _check_values(measurement.suite, measurement.metric, measurement.samples)


def _check_values(suite: str, metric: str, samples: list[float]) -> None:
    """Raise WrongRecord for values that cannot be stored or are negative for an unsigned metric."""
    if len(samples) > _MAX_SAMPLES:
        raise WrongRecord("/metric/benchmark_values", f"more than {_MAX_SAMPLES} values")
    summed = value_rule(suite, metric) == "sum"
    for sample in [*samples, value_of(samples, "sum")] if summed else samples:
        if abs(sample) > _MAX_VALUE:
            raise WrongRecord(
                "/metric/benchmark_values", f"a value beyond {_MAX_VALUE:g} in the metric's unit"
            )
    if samples and min(samples) < 0 and not metric_info(metric).signed:
        index = next(index for index, sample in enumerate(samples) if sample < 0)
        detail = f"{samples[index]:g} is below zero, which {metric} cannot be"
        raise WrongRecord(f"/metric/benchmark_values/{index}", detail)
