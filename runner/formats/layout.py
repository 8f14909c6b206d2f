"""Declare a format: which column of a table, or key of JSON objects, holds what.

    LAYOUT = Layout("MyBench", case="kernel", quantities={"time (us)": Quantity("my_time", "µs", "down")})
    FORMAT = LAYOUT.of_tables("mybench")

An entry is a row or a JSON object. Each number in it becomes a record with its place, and what is no number a
fault. Where a row or an object is not of one case, `entries` yields what is, with its place within; an entry
of one value, such as a cell whose column's name says backend and metric, has it under the key VALUE. What a
layout does not name is looked for under its own name: `mode`, `backend`, `metric`, …
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault, WrongRecord
from runner.formats.format import Format, Item, LocatedRecord, Preview, Read, Skipped, each, has_keys
from runner.formats.measurement import ParsedMeasurement, knobs_of, origin_of
from runner.formats.parameters import KNOWN, Parameters, parse_time
from runner.formats.scalars import number_in, number_of, numbers_in, shortened, text
from runner.formats.table import Names, pointer, table
from runner.schema.records import Benchmark, Metric, Model, Record

VALUE = "\0"  # the key of an entry's only value, whose place is that of the entry; no file has such a key
Entry = Mapping[str, Any]  # the cells of a row by column, or a JSON object
# a column or key, a path of keys (/context/date), or what works a value out of the entry
Source = str | Callable[[Entry], Any]
Located = tuple[str, Any]  # a place, and an entry or one of `reasons` why there is none
_TEXTS = ("mode", "dtype", "backend", "device", "arch", "commit", "branch", "repo", "host", "kind", "origin")


class Outcome(dict[str, Any]):
    """A cell without a number: `status` and `code` of a metric, and so on."""


Reading = list[float] | Outcome | str  # of a cell; a text is one of `reasons`


@dataclass(frozen=True)
class Quantity:
    """The metric of a column, by default the one that the entry names. `schema/metrics.py` has unit and
    direction of the metrics that it knows. `read` returns what a cell says of a metric, or raises
    WrongRecord."""

    name: str | Callable[[Entry], str] = lambda entry: text(entry.get("metric"))
    unit: str = ""
    direction: str = ""
    target: str = ""  # the column of the value to reach
    read: Callable[[Any, str], Reading] = numbers_in


def of_row(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the cells that a row has."""
    yield "", {column: cell for column, cell in row.items() if cell is not None}
    if None in row.values():
        yield "", reasons.SHORT_ROW


@dataclass(frozen=True)
class Layout:
    """The parts of an entry, which is of one case."""

    benchmark: str
    case: Source = "case"
    # by column; one that a file does not have is left out
    quantities: Mapping[str, Quantity] = field(default_factory=lambda: {VALUE: Quantity()})
    suite: str = ""
    mode: Source = "mode"
    dtype: Source = "dtype"
    backend: Source = "backend"
    device: Source = "device"
    arch: Source = "arch"
    commit: Source = "commit"
    branch: Source = "branch"
    repo: Source = "repo"
    host: Source = "host"
    time: Source = ""  # ISO 8601, or seconds or milliseconds since 1970
    parameters: Mapping[str, Source] = field(default_factory=dict)  # of the case, beside the entry's `knobs`
    kind: Source = "type"  # of the model
    origin: Source = "origin"
    more: Callable[[Entry], Mapping[str, Any]] = lambda _entry: {}  # further fields of the record
    margin: Source = ""  # of an entry whose values are expected: a measurement may miss them by that
    # complete a measurement by what its names mean
    complete: Callable[[ParsedMeasurement, Record], None] = lambda _measurement, _record: None
    zero: Mapping[str, str] = field(default_factory=dict)  # by metric, the status that its 0 stands for
    by_name: Callable[[str], Mapping[str, str]] = lambda _filename: {}  # what only it says

    def describe(self, measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
        measurement.suite = self.suite or origin_of(record) or parameters.suite or self.benchmark
        measurement.knobs = knobs_of(record)
        self.complete(measurement, record)
        if measurement.metric in self.zero:
            measurement.zero_is(self.zero[measurement.metric])

    def of_tables(
        self,
        name: str,
        fits: Callable[[list[str]], bool] | None = None,
        *,
        delimiter: str = ",",
        names: Names | None = None,
        entries: Callable[[dict[str, Any]], Iterable[Located]] = of_row,
        whole_rows: bool = False,
        **options: Any,
    ) -> Format:
        """Return the format of CSV files whose header fits, by default one with the case and all quantities.
        `names` returns the columns of a file without header, whose first row fits. A short row has None in
        its last columns, or is refused where `whole_rows`. `options` are other fields of the format."""
        is_header = fits or {*self.quantities, self.case}.issubset

        def read(body: bytes, filename: str) -> Iterator[Item]:
            rules: dict[str, Any] = {"delimiter": delimiter, "names": names, "whole_rows": whole_rows}
            columns, lines = table(body, is_header, f"CSV of {name}", **rules)
            items = self._reader(filename)
            return each(lines, lambda row: items(entries(row.by_column(columns, None)), "", row.line))

        return self._format(name, read, lambda preview: is_header(preview.columns(delimiter)), options)

    def of_json(
        self,
        name: str,
        keys: Mapping[str, type],
        entries: Callable[[Any], Iterable[Located]] = lambda value: [("", value)],
        **options: Any,
    ) -> Format:
        """Return the format of JSON objects with these keys, of these types, near the beginning of a file.
        `options` are other fields of the format."""

        def read(body: bytes, filename: str) -> Iterator[Item]:
            from runner.formats import json_text

            items = self._reader(filename)
            values = json_text.values(body, lambda value: has_keys(value, keys), f"no result of {name}")
            return each(values, lambda item: items(entries(item.value), item.pointer, item.line))

        def matches(preview: Preview) -> bool:
            return preview.names(*keys) and has_keys(preview.first_value, keys)

        return self._format(name, read, matches, options)

    def _format(
        self, name: str, read: Read, matches: Callable[[Preview], bool], options: Mapping[str, Any]
    ) -> Format:
        shared = {"describe": {self.benchmark: self.describe}, "said_by_name": self.by_name}
        return Format(name, read=read, **{"matches": matches, **shared, **options})

    def _reader(self, filename: str) -> Callable[[Iterable[Located], str, int | None], Iterator[Item]]:
        """Return a function that yields the items of entries of this file."""
        named = self.by_name(filename)
        hints = {name: named[name] for name in named.keys() & KNOWN}
        facts = {name: named[name] for name in named.keys() - KNOWN}

        def items(located: Iterable[Located], start: str, line: int | None) -> Iterator[Item]:
            try:
                for at, entry in located:
                    if isinstance(entry, dict):
                        yield from self.records({**facts, **entry}, start + at, line, hints)
                    elif entry is None or entry in reasons.REASONS:
                        yield Skipped(start + at, entry or reasons.NULL_VALUE, line)
                    else:
                        yield Fault(start + at, f"{str(entry)[:60]!r} is no part of such a file", line)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                yield Fault(start, f"{repr(error)[:60]!r} is no part of such a file", line)

        return items

    def records(
        self, entry: Entry, path: str, line: int | None = None, hints: Mapping[str, str] | None = None
    ) -> Iterator[Item]:
        """Yield a record, or why there is none, for each quantity of an entry."""
        if not text(_part(entry, self.case)):
            column = pointer(self.case) if isinstance(self.case, str) and VALUE not in entry else ""
            yield Fault(path + column, "the case has no name", line)
            return
        for column, quantity in self.quantities.items():
            if column not in entry:
                continue
            spot = path if column == VALUE else path + pointer(column)
            try:
                metric = self._metric(entry, quantity, entry[column])
            except WrongRecord as error:
                at = path + error.pointer if error.pointer else spot
                yield Fault(at, error.detail, line, malformed=error.malformed)
                continue
            if isinstance(metric, str):
                yield Skipped(spot, metric, line)
            else:
                yield LocatedRecord(self.record(entry, metric), spot, line, hints)

    def _metric(self, entry: Entry, quantity: Quantity, cell: Any) -> Metric | str:
        """Return the metric of a cell, or the reason why there is none. Raise WrongRecord."""
        if cell is None or cell == "":
            return reasons.NULL_VALUE if cell is None else reasons.EMPTY_CELL
        name = quantity.name if isinstance(quantity.name, str) else quantity.name(entry)
        value = cell if isinstance(cell, Outcome) else quantity.read(cell, name)
        if isinstance(value, str):
            return value
        if not value:
            return reasons.NO_VALUES
        aim = entry.get(quantity.target) if quantity.target else None
        target = number_in(aim, pointer(quantity.target)) if aim else None
        if not name:
            raise WrongRecord("", "the metric has no name")
        parts = {part: getattr(quantity, part) or text(entry.get(part)) for part in ("unit", "direction")}
        meaning = _filled(parts)
        if isinstance(value, Outcome):
            return Metric(name, extra_info={**meaning, **value})
        if self.margin and (margin := _part(entry, self.margin)) is not None:
            path = pointer(self.margin) if isinstance(self.margin, str) else ""
            return Metric(name, None, value[0], {**meaning, "noise_margin": number_in(margin, path)})
        return Metric(name, [*value], target, meaning or None)

    def record(self, entry: Entry, metric: Metric) -> Record:
        texts = {name: text(_part(entry, getattr(self, name))) or None for name in _TEXTS}
        own = entry.get("knobs")
        knobs = {**own} if isinstance(own, dict) else {}
        knobs |= {name: _part(entry, part) for name, part in self.parameters.items()}
        info = {"device": texts["device"], "arch": texts["arch"], "knobs": _filled(knobs)}
        origins = [texts["origin"]] if texts["origin"] else None
        time = _part(entry, self.time)
        at = parse_time(time) if isinstance(time, str) else None
        parts = {
            "benchmark": Benchmark(self.benchmark, texts["mode"], texts["dtype"], _filled(info)),
            "model": Model(shortened(_part(entry, self.case)), texts["kind"], texts["backend"], origins),
            "timestamp": at.timestamp() if at else number_of(time),
            "runners": [{"name": texts["host"]}] if texts["host"] else None,
            "repo": texts["repo"],
            "head_branch": texts["branch"],
            "head_sha": texts["commit"],
        }
        return Record(metric=metric, **{**parts, **self.more(entry)})


def _filled(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value not in (None, "", {})}


def _part(entry: Entry, source: Source) -> Any:
    if not isinstance(source, str):
        return source(entry)
    if source[:1] != "/":
        return entry.get(source)
    part: Any = entry
    for key in source[1:].split("/"):
        part = part.get(key) if isinstance(part, dict) else None
    return part
