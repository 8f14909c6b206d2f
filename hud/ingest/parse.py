"""Turn records into measurements: normalise names, parse values, check limits.

This and the formats' `describe` decide to which series a number belongs.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec

from hud.ingest.compilations import METRIC, BadCompilation, read_compiled
from hud.ingest.export import exported
from hud.ingest.receipt import Receipt
from hud.ingest.runs import from_epoch, run_of
from hud.ingest.series import Meanings, check_names, rename_by
from hud.models import FIRST_RUN_ONLY, Aliases
from hud.points.targets import ceilings_of
from runner.formats import describe_of, reasons
from runner.formats.errors import Fault, WrongRecord
from runner.formats.format import Item, LocatedRecord, Skipped
from runner.formats.measurement import (
    Identity,
    ParsedMeasurement,
    RunKey,
    device_name_of,
    device_of,
    info_of,
    stored_knobs,
    torch_of,
)
from runner.formats.metric_values import (
    check_values,
    is_outcome,
    meaning_of,
    message_of,
    numbers_of,
    outcome_of,
    status_of_code,
    target_of,
)
from runner.formats.parameters import Parameters
from runner.formats.scalars import INVISIBLE, invisible_in, text
from runner.schema.compilations import COMPILATION, COMPILED
from runner.schema.devices import arch_key, falls_with, impossible_reason, is_named
from runner.schema.metrics import metric_info
from runner.schema.records import (
    CLASS_PACKAGES,
    IMPOSSIBLE,
    PARTIAL,
    QUALITIES,
    SUCCESS,
    UNEXPECTED,
    Environment,
    Record,
)
from runner.schema.statistics import median
from runner.schema.suite import SUITES, value_rule

_Process = tuple[RunKey, Identity, int, int, int | None]  # that measured an experiment, with its place
_REPEATS = (
    "rows of the same model are repeats of one run: each a process of its own, whose compile caches the file"
    " does not tell"
)
_MOST_OF_A_NAME = 4000  # characters, before any part of the name is taken for something else
_GROWN = "the file has grown: what earlier uploads of it stored is counted as duplicates"


class RecordParser:
    """Parse the records of one upload into measurements, and collect faults."""

    def __init__(
        self,
        parameters: Parameters,
        aliases: Aliases | None = None,
        *,
        any_time: bool = False,
        receipt: Receipt | None = None,
    ) -> None:
        """`any_time` accepts all times; the caller checks them."""
        self.parameters = parameters
        self.receipt = receipt or Receipt()
        self._aliases = aliases or Aliases()
        self.measurements: list[ParsedMeasurement] = []
        self.kernels = 0  # of these measurements' compilations
        self.partial = ""  # why the file is not whole
        self.faults: list[Fault] = []
        self.meanings = Meanings()
        self.expected: list[tuple[ParsedMeasurement, float]] = []  # each with its margin
        self._flushed = 0  # of them
        self.unsaid: set[str] = set()  # parts of identities that nothing in the upload gives
        self._environments: dict[str, Environment] = {}  # by fingerprint: measurements share one object
        self._places: dict[tuple[bytes, str, str, str, str, str], tuple[str, str, Environment]] = {}
        self._of_suites: dict[tuple[int, str], Environment] = {}
        self._any_time = any_time
        self._rows: dict[tuple[RunKey, Identity, str], dict[tuple[str, ...], int]] = {}  # of appended tables
        self._impossible: dict[_Process, list[tuple[str, str]]] = {}  # clocks of its times, and why

    def flush(self) -> list[ParsedMeasurement]:
        """Return the measurements since the last flush, in the units of their metrics. Those whose unit or
        direction contradicts the metric's become faults."""
        taken, self.measurements, self.kernels = self.measurements, [], 0
        expected = self.expected[self._flushed :]
        wrong = self.meanings.convert([*taken, *(item for item, _margin in expected)])
        self.faults += [Fault(item.pointer + error.pointer, error.detail, item.line) for item, error in wrong]
        ids = {id(item) for item, _error in wrong}
        self.expected[self._flushed :] = [pair for pair in expected if id(pair[0]) not in ids]
        self._flushed = len(self.expected)
        converted = [item for item in taken if id(item) not in ids]
        for item in converted:
            if why := self._impossible_reason(item):
                self._impossible.setdefault(_process_of(item), []).append((item.clock, why))
        for item in converted if self._impossible else ():
            self._judge_beside(item)
        return converted

    def _impossible_reason(self, item: ParsedMeasurement) -> str:
        """Return why no card of its arch can have measured this, or ''. Such a number stays, and decides
        nothing; nor does a compilation with an impossible kernel."""
        metric, moved = metric_info(item.metric), item.moved_bytes
        if item.samples and (moved or metric.unit == "GB/s"):
            about = metric, median(item.samples), moved
            if why := impossible_reason(item.arch, *about, self._memory_gbps.get(item.arch)):
                item.status = item.quality = IMPOSSIBLE
                item.message = why
                return why
        busy = metric_info("gpu_busy_ms")
        for kernel in item.compiled.kernels if item.compiled else ():
            if kernel.bytes and kernel.time_us is not None:
                calls = kernel.calls or 1.0
                about = busy, kernel.time_us / calls / 1e3, kernel.bytes / calls
                if why := impossible_reason(item.arch, *about, self._memory_gbps.get(item.arch)):
                    item.is_compiled_impossible = True
                    item.message = f"{kernel.name[:100]}: {why}"
                    return item.message
        return ""

    def _judge_beside(self, item: ParsedMeasurement) -> None:
        """Mark what was computed from an impossible time, or may have been."""
        metric = metric_info(item.metric)
        for clock, why in self._impossible.get(_process_of(item), ()) if item.samples else ():
            if item.status in SUCCESS and falls_with(metric, item.unit or metric.unit, (item.clock, clock)):
                item.status = item.quality = IMPOSSIBLE
                item.message = f"beside it {why}"

    @cached_property
    def _memory_gbps(self) -> dict[str, float]:
        """Return the bandwidth that was measured on each arch, by hosts or in this stream: what one team
        uploads says nothing of another's results. 1 statement."""
        bandwidths: dict[str, float] = {}
        trusted = """NOT rerun AND EXISTS (
            SELECT FROM hud_run r JOIN hud_stream own ON own.id = r.stream_id
            WHERE r.id = run_id AND (r.upload_id IS NULL OR own.name = %(stream)s))"""
        for arch, case, _dtype, value in ceilings_of("true", trusted, stream=self.parameters.stream):
            if case in {"copy", "read"}:
                bandwidths[arch] = max(value, bandwidths.get(arch, 0.0))
        return bandwidths

    def skip_faults(self) -> None:
        """Turn the faults into skipped records, so that they do not refuse the upload."""
        for fault in self.faults:
            self.receipt.skip(Skipped(fault.pointer, fault.detail, fault.line))
        self.faults = []

    def add(self, item: Item, *, is_stored: bool = False) -> None:
        """Take an item. `is_stored`: an earlier upload of a growing file brought it."""
        before = len(self.measurements)
        if isinstance(item, LocatedRecord):
            try:
                self._add_record(item, item.record)
            except WrongRecord as error:
                pointer = item.pointer + error.pointer
                self.faults.append(Fault(pointer, error.detail, item.line, malformed=error.malformed))
            except (ValueError, OverflowError, RecursionError):
                # text that Python cannot read, such as a number of 5,000 digits or a list 100,000 deep
                self.faults.append(Fault(item.pointer, "a value that cannot be read", item.line))
        elif isinstance(item, Fault):
            self.faults.append(item)
        elif isinstance(item, Skipped):
            self.receipt.skip(item)
        else:
            self.receipt.warn(item.text)
            self.partial = self.partial or item.is_partial * item.text
        if is_stored and self.measurements[before:]:
            self.receipt.duplicates += len(self.measurements) - before
            self.receipt.warn(_GROWN)
            del self.measurements[before:]

    def _add_record(self, item: LocatedRecord, record: Record) -> None:
        metric = record.metric
        extra = metric.extra_info or {}
        if extra.get(UNEXPECTED):
            self.receipt.skip(Skipped(item.pointer, reasons.UNEXPECTED, item.line))
            return
        numbers, target = numbers_of(metric), target_of(metric)
        _check_said_names(record, metric.name)
        status, code = outcome_of(extra, has_numbers=bool(numbers)) if extra else ("", None)
        has_outcome = numbers or is_outcome(status, code, metric.name)
        if not has_outcome and target is None:
            self.receipt.skip(Skipped(item.pointer, reasons.NO_VALUES, item.line))
            return
        parameters = self.parameters
        if item.hints:  # of the file's name
            hints = {name: text for name, text in item.hints.items() if not getattr(parameters, name)}
            parameters = replace(parameters, **hints)
        facts = msgspec.json.encode((record.runners, record.dependencies))
        run, place = run_of(record, parameters, any_time=self._any_time)
        device, device_name, environment = self._place(record, facts, parameters)
        unit, direction = meaning_of(metric) if extra or metric.unit else ("", "")
        measurement = ParsedMeasurement(
            case=record.model.name,
            metric=metric.name,
            run=run,
            repeat=place.repeat,
            side=place.side,
            draw=place.draw,
            environment=environment,
            mode=record.benchmark.mode or parameters.mode,
            dtype=record.benchmark.dtype or parameters.dtype,
            backend=record.model.backend or parameters.backend,
            device=device,
            device_name=device_name,
            dynamic=parameters.is_dynamic,
            samples=numbers,
            code=code,
            target=target,
            pointer=item.pointer,
            line=item.line,
            unit=unit,
            direction=direction,
        )
        if stored := exported(record):
            stored.fill(measurement, from_epoch(record.timestamp))
        else:
            describe_of(record.benchmark.name)(measurement, record, parameters)
            measurement.arch = arch_key(measurement.device_name)
            self._warn_of_knobs(record, measurement)
        rename_by(self._aliases, measurement)
        self._store_knobs(measurement)
        measurement.status = measurement.status or status or status_of_code(code, measurement.metric)
        if item.is_expected or not has_outcome:
            margin = extra.get("noise_margin")
            margin = float(margin) if isinstance(margin, int | float) and 0 <= margin <= 1 else 0.0
            check_names(measurement)
            self.expected.append((measurement, margin))
            return
        self.receipt.warn(measurement.warning)
        measurement.environment = self._of_suite(environment, measurement.suite)
        self._complete(measurement, extra, is_partial=bool(item.is_cut or self.partial))
        check_names(measurement)
        check_values(measurement.suite, measurement.metric, measurement.samples)
        if item.row:  # a further one of an experiment is a repeat; the same row again is no other one
            rows = self._rows.setdefault((measurement.run, measurement.identity, measurement.metric), {})
            measurement.repeat = rows.setdefault(item.row, len(rows))
            self.receipt.warn(_REPEATS if measurement.repeat else "")
        if extra:
            self._add_compilation(measurement, extra)
        self.measurements.append(measurement)

    def _warn_of_knobs(self, record: Record, measurement: ParsedMeasurement) -> None:
        """Warn of knobs that this benchmark's records do not have, and that tell no experiments apart."""
        knobs = info_of(record).get("knobs")
        if not isinstance(knobs, dict) or "settings" in measurement.knobs:  # the digest of all
            return
        ignored = (name for name in knobs if knobs[name] is not None and name not in measurement.knobs)
        if names := ", ".join(ignored):
            words = f"knobs of {record.benchmark.name[:60]} are ignored: {names[:200]}"
            self.receipt.warn(INVISIBLE.sub("", words))

    def _store_knobs(self, measurement: ParsedMeasurement) -> None:
        """Complete the settings as the suite does, and write them as JSON."""
        if not measurement.knobs:
            return
        if suite := SUITES.get(measurement.suite):
            measurement.knobs = dict(suite.complete_knobs(measurement.knobs, measurement.device))
        measurement.knobs_key = stored_knobs(measurement.knobs)

    def _complete(self, measurement: ParsedMeasurement, extra: dict[str, Any], *, is_partial: bool) -> None:
        """Add what the record says beside its numbers, and note which parameters would tell more."""
        if measurement.status not in SUCCESS and text(extra.get("status")) not in {"", measurement.status}:
            measurement.zero_is(measurement.status)  # another tool's 0 beside its word for a failure
        of_record = text(extra.get("target_arch"))[:60] or measurement.target_arch
        measurement.target_arch = None if measurement.target is None else of_record
        if quality := PARTIAL if is_partial else text(extra.get("quality")):
            if quality not in QUALITIES:
                known = ", ".join(QUALITIES)
                self.receipt.warn(f"the quality {quality[:40]!r} is left out: it is none of {known}")
            elif measurement.samples:
                measurement.quality = quality
        measurement.moved_bytes, measurement.clock = extra.get("moved_bytes"), text(extra.get("clock"))
        if measurement.arch and not is_named(measurement.arch):
            words = "names no device; it is to be named on /rename/, and until then no filter offers it"
            self.receipt.warn(f"{measurement.arch[:100]!r} {words}: ?arch=… says it in an upload")
        measurement.message = (message_of(extra) if extra else None) or _first_run_warning(measurement)
        self.unsaid.update(measurement.unsaid)
        if not (measurement.mode and measurement.dtype and measurement.arch):
            self.unsaid.update(name for name in ("mode", "dtype", "arch") if not getattr(measurement, name))

    def _add_compilation(self, measurement: ParsedMeasurement, extra: dict[str, Any]) -> None:
        number = extra.get(COMPILATION)
        if number is not None:
            # each pair compiles both sides anew
            measurement.compilation = measurement.repeat if measurement.run.base_interpreter else number
        if COMPILED not in extra or measurement.metric != METRIC:
            return
        try:
            measurement.compiled = read_compiled(extra[COMPILED])
        except BadCompilation as error:
            position = f"line {measurement.line}" if measurement.line else measurement.pointer or "the record"
            self.receipt.warn(f"{position}: what was compiled is left out: {error}")
        else:
            self.kernels += len(measurement.compiled.kernels)

    def _place(self, record: Record, facts: bytes, parameters: Parameters) -> tuple[str, str, Environment]:
        """Return the record's device, its name and the environment, from a cache, since most records of an
        upload share them."""
        info = info_of(record)
        said = (text(info.get("device")), text(info.get("arch")), torch_of(record))
        key = (facts, *said, parameters.device, parameters.arch)
        if key not in self._places:
            device, card = device_of(record) or parameters.device, device_name_of(record)
            name = card if is_named(arch_key(card)) else parameters.arch or card
            environment = self._environment(record, facts, said[0] or parameters.device, card or name)
            self._places[key] = device, name, environment
        return self._places[key]

    def _environment(self, record: Record, facts: bytes, device: str, device_name: str) -> Environment:
        if character := invisible_in(facts.decode()):
            raise WrongRecord("/runners", f"a fact of its host holds the invisible character {character}")
        parameters = self.parameters
        environment = Environment.from_record(record)
        environment.torch = environment.torch or torch_of(record) or parameters.torch
        environment.cuda = environment.cuda or parameters.cuda
        environment.driver = environment.driver or parameters.driver
        if not environment.gpu and device not in {"cpu", ""}:
            environment.gpu = device_name
        return self._environments.setdefault(environment.fingerprint(), environment)

    def _of_suite(self, environment: Environment, suite: str) -> Environment:
        """Return the environment without the packages whose versions cannot change this suite's numbers."""
        key = id(environment), suite
        if key not in self._of_suites:
            foreign = set(CLASS_PACKAGES) - set(SUITES[suite].class_packages) if suite in SUITES else set()
            packages = {name: text for name, text in environment.packages.items() if name not in foreign}
            own = replace(environment, packages=packages)
            self._of_suites[key] = self._environments.setdefault(own.fingerprint(), own)
        return self._of_suites[key]


def _process_of(item: ParsedMeasurement) -> _Process:
    return item.run, item.identity, item.repeat, item.side, item.draw


def _first_run_warning(measurement: ParsedMeasurement) -> str | None:
    """Warn that a single sample includes compilation and warm-up, if the metric otherwise excludes it."""
    if measurement.status != "ok" or len(measurement.samples) != 1:
        return None
    if value_rule(measurement.suite, measurement.metric) != "steady":
        return None
    # with pure_wall_time the compiling call is not timed
    return None if measurement.knobs.get("pure_wall_time") else FIRST_RUN_ONLY


def _check_said_names(record: Record, metric: str) -> None:
    """Raise WrongRecord for a name that is empty or longer than any could be."""
    for kind, name in ("metric", metric), ("model", record.model.name), ("benchmark", record.benchmark.name):
        if not name or name.isspace():
            raise WrongRecord(f"/{kind}/name", "the name is empty")
        if len(name) > _MOST_OF_A_NAME:
            raise WrongRecord(f"/{kind}/name", f"the name is longer than {_MOST_OF_A_NAME} characters")
