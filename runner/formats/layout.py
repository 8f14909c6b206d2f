"""Declare a small format: which column of a table, or key of JSON objects, holds what.

    LAYOUT = Layout("MyBench", case="kernel", quantities={"time (us)": Quantity("my_time", "µs", "down")})
    FORMAT = LAYOUT.of_tables("mybench")

Each number becomes a record with its place, and what is no number a fault. A format whose files say more
calls `read_table`, `read_json` or `records` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import Describe, Format, Item, LocatedRecord, Skipped, each
from runner.formats.measurement import ParsedMeasurement, knobs_of
from runner.formats.parameters import Parameters, parse_time
from runner.formats.scalars import number_of, shortened, text
from runner.formats.table import pointer, table
from runner.schema.records import Benchmark, Metric, Model, Record

Entry = Mapping[str, Any]  # the cells of a row by column, or a JSON object
Source = str | Callable[[Entry], Any]  # a column or key, or what works a value out of the entry; '': unsaid


@dataclass(frozen=True)
class Quantity:
    """What a column measures. `schema/metrics.py` has unit and direction of the metrics that it knows."""

    name: str | Callable[[Entry], str]
    unit: str = ""
    direction: str = ""
    target: str = ""  # the column of the value to reach


@dataclass(frozen=True)
class Layout:
    """The parts of an entry, which is of one case."""

    benchmark: str
    case: Source
    quantities: Mapping[str, Quantity]  # by column; one that a file does not have is left out
    suite: str = ""
    mode: Source = ""
    dtype: Source = ""
    backend: Source = ""
    device: Source = ""
    arch: Source = ""
    commit: Source = ""
    time: Source = ""  # ISO 8601, or seconds since 1970
    parameters: Mapping[str, Source] = field(default_factory=dict)  # of the case, by their names
    model_type: Source = ""
    origin: str = ""

    def of_tables(self, name: str, *, describe: Describe | None = None) -> Format:
        """Return the format of CSV files with these columns."""
        return Format(
            name,
            matches=lambda preview: self.columns.issubset(preview.header),
            read=lambda body, _filename: self.read_table(body, f"CSV of {name}"),
            describe={self.benchmark: describe or self.describe},
        )

    @property
    def columns(self) -> set[str]:
        """Return the columns that a table must have: the case and all quantities."""
        return {*self.quantities, *([self.case] if isinstance(self.case, str) else [])}

    def describe(self, measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
        measurement.suite = self.suite or given.suite or self.benchmark
        measurement.knobs = knobs_of(record)

    def read_table(
        self,
        body: bytes,
        what: str,
        hints: Mapping[str, str] | None = None,
        columns: Iterable[str] = (),
        margin: float | None = None,
    ) -> Iterator[Item]:
        """Yield the items of a CSV. `columns` are those that it must have, by default all of this layout;
        `margin` as in `records`."""
        needed = set(columns) or self.columns
        names, lines = table(body, needed.issubset, what, f"columns {', '.join(sorted(needed))}, …")
        return each(lines, lambda row: self.records(row.by_column(names), "", row.line, hints, margin=margin))

    def read_json(
        self,
        body: bytes,
        fits: Callable[[Any], bool],
        what: str,
        hints: Mapping[str, str] | None = None,
        entries: Callable[[Any], Iterable[tuple[str, Any]]] = lambda value: [("", value)],
    ) -> Iterator[Item]:
        """Yield the items of each JSON value that fits. `entries` yields its objects with their pointers."""
        from runner.formats import json_text

        def read(item: json_text.Value) -> Iterator[Item]:
            for place, entry in entries(item.value):
                if isinstance(entry, dict):
                    yield from self.records(entry, item.pointer + place, item.line, hints)
                elif entry is None:
                    yield Skipped(item.pointer + place, reasons.NULL_VALUE, item.line)
                else:
                    yield Fault(item.pointer + place, "an object was expected", item.line)

        return each(json_text.values(body, fits, what), read)

    def records(
        self,
        entry: Entry,
        place: str,
        line: int | None,
        hints: Mapping[str, str] | None = None,
        *,
        margin: float | None = None,
    ) -> Iterator[Item]:
        """Yield a record, or why there is none, for each quantity of an entry. With a `margin` its values are
        expectations, which a measurement may miss by that much."""
        if not text(_part(entry, self.case)):
            yield Fault(
                place + (pointer(self.case) if isinstance(self.case, str) else ""),
                "the case has no name",
                line,
            )
            return
        for column, quantity in self.quantities.items():
            if column not in entry:
                continue
            value = number_in(entry, column, place, line)
            target = number_in(entry, quantity.target, place, line) if entry.get(quantity.target) else None
            name = quantity.name if isinstance(quantity.name, str) else quantity.name(entry)
            if not isinstance(value, float):
                yield value
            elif isinstance(target, Fault | Skipped):
                yield target
            elif not name:
                yield Fault(place + pointer(column), "the metric has no name", line)
            else:
                extra = _filled({"unit": quantity.unit, "direction": quantity.direction})
                metric = Metric(name, [value], target, extra or None)
                if margin is not None:
                    metric = Metric(name, None, value, {**extra, "noise_margin": margin})
                yield LocatedRecord(self.record(entry, metric), place + pointer(column), line, hints)

    def record(self, entry: Entry, metric: Metric) -> Record:
        """Return the record of one metric of an entry."""
        commit, mode, dtype, backend, kind = (
            text(_part(entry, source)) or None
            for source in (self.commit, self.mode, self.dtype, self.backend, self.model_type)
        )
        knobs = _filled({name: _part(entry, part) for name, part in self.parameters.items()})
        device, arch = text(_part(entry, self.device)), text(_part(entry, self.arch))
        info = _filled({"device": device, "arch": arch, "knobs": knobs})
        time = _part(entry, self.time)
        at = parse_time(time) if isinstance(time, str) else None
        return Record(
            Benchmark(self.benchmark, mode, dtype, info or None),
            Model(shortened(_part(entry, self.case)), kind, backend, [self.origin] if self.origin else None),
            metric,
            timestamp=at.timestamp() if at else number_of(time),
            head_sha=commit,
        )


def _filled(said: Entry) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value not in (None, "", {})}


def _part(entry: Entry, source: Source) -> Any:
    return entry.get(source) if isinstance(source, str) else source(entry)


def number_in(entry: Entry, column: str, place: str, line: int | None) -> float | Skipped | Fault:
    """Return the number in a column, or why there is none."""
    cell, place = entry[column], place + pointer(column)
    if cell is None or cell == "":
        return Skipped(place, reasons.NULL_VALUE if cell is None else reasons.EMPTY_CELL, line)
    value = number_of(cell)
    return Fault(place, f"{str(cell)[:60]!r} is not a number", line) if value is None else value
