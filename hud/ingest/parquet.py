"""Export as Parquet. Of a million measurements none becomes a Python object: numbers are read as arrays, and
what many share, such as experiment and run, once."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetWriter

from hud.ingest.export import COLUMNS, FILTERS, FLAT, SERIES, condition_of
from hud.models import STATUS_NAMES
from hud.sql import fetch_tuples, int_array, numbers_of, since_epoch_us

_CHUNK_POINTS = 200_000  # of runs that are read at once
_PIECE_BYTES = 2**20
_LOW = 2**32 - 1  # the bits of the second number in one
_TEXTS = ("code", "target_arch", "quality", "note")
_NULLABLE = ("value", "spread", "target", "draw", "compilation", *_TEXTS)
_KINDS = {  # of columns that hold no text
    **dict.fromkeys(("value", "spread", "target"), pa.float64()),
    **dict.fromkeys(("n", "process", "draw", "compilation", "run"), pa.int32()),
    "dynamic": pa.bool_(),
    "at": pa.timestamp("us", "UTC"),
}
_EPOCH_US = -since_epoch_us(datetime(1970, 1, 1, tzinfo=UTC))
_HAS = " + ".join(f"{2**bit} * ({name} IS NOT NULL)::int" for bit, name in enumerate(_NULLABLE))
# several in one number: an array of a million takes as long as reading the rows
_NUMBERS = (
    "(run_id::int8 << 32) + series_id",
    "(environment_id::int8 << 32) + n",
    f"(repeat::int8 << 32) + (side::int << 24) + (status::int << 16) + {_HAS}",
    "order_time",
)
_ARRAYS = ", ".join(
    [f"array_send(array_agg({number}))" for number in _NUMBERS]
    + [
        f"{'' if name in _TEXTS else 'array_send'}(array_agg({name}) FILTER (WHERE {name} IS NOT NULL))"
        for name in _NULLABLE
    ]
)
_Shared = dict[str, Sequence[Any]]  # columns of what measurements share, with its `id` in order


def export_parquet(filters: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the flat rows of an export, by run. `filters` hold names of `FILTERS`."""
    series = _shared("s.id", SERIES, "xkt", filters)
    runs = _shared("r.id, r.points", "hud_run r", "r", filters)
    ends = zip(runs["id"], accumulate(runs["points"]), strict=True)
    with tempfile.TemporaryFile() as file:
        schema = _table(runs, series, []).schema
        with ParquetWriter(file, schema, write_statistics=False) as writer:
            for _number, chunk in groupby(ends, lambda run: run[1] // _CHUNK_POINTS):
                writer.write_table(_table(runs, series, [pk for pk, _end in chunk]))
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _shared(own: str, source: str, tables: str, filters: Mapping[str, Any]) -> _Shared:
    names = [name for name in FLAT if COLUMNS[name][0] in tables]
    condition, params = condition_of({name: filters[name] for name in filters if FILTERS[name][0] in tables})
    columns = ", ".join([own, *(COLUMNS[name] for name in names)])
    statement = f"SELECT {columns} FROM {source} WHERE {condition} ORDER BY 1"  # noqa: S608 — constants  # nosec B608
    titles = [*(name.partition(".")[2] for name in own.split(", ")), *names]
    shared: dict[str, Sequence[Any]] = dict(
        zip(titles, _columns(fetch_tuples(statement, params), len(titles)), strict=True)
    )
    if "knobs" in shared:  # as the other formats write them
        shared["knobs"] = [orjson.dumps(orjson.loads(text)).decode() for text in shared["knobs"]]
    return shared


def _table(runs: _Shared, series: _Shared, ids: Sequence[int]) -> pa.Table:
    """Return the rows of these runs."""
    (arrays,) = fetch_tuples(
        f"SELECT {_ARRAYS} FROM hud_measurement"  # noqa: S608 — columns of ours  # nosec B608
        " WHERE run_id = ANY(%(runs)s::int[]) AND series_id = ANY(%(series)s::int[])",
        {"runs": int_array(ids), "series": int_array(series["id"])},
    )
    count = len(_NUMBERS)
    place, environment, what, time_us = map(numbers_of, arrays[:count])
    run, own, environment, n = place >> 32, place & _LOW, environment >> 32, environment & _LOW
    repeat, side, status = what >> 32, (what >> 24) & 0xFF, (what >> 16) & 0xFF
    columns = {"n": _array("n", n), "at": _array("at", time_us + _EPOCH_US)}
    for bit, (name, values) in enumerate(zip(_NULLABLE, arrays[count:], strict=True)):
        is_there = (what >> bit) & 1
        present = values if name in _TEXTS else numbers_of(values)
        places = pa.array(np.cumsum(is_there) - 1, mask=is_there == 0)
        columns[name] = _taken(name, [] if present is None else present, places)
    for of, shared in ((own, series), (run, runs)):
        places = pa.array(np.searchsorted(shared["id"], of))
        columns |= {name: _taken(name, shared[name], places) for name in FLAT if name in shared}
    is_ab = pc.not_equal(columns["base_environment"], "").to_numpy(zero_copy_only=False)
    columns["process"] = _array("process", np.where(is_ab, 2 * repeat + side, repeat))
    columns["status"] = _taken("status", [*STATUS_NAMES.values()], pa.array(status))
    is_reason = pc.or_(pc.is_null(columns["value"]), pc.not_equal(status, 0))
    note = columns["note"]
    columns["reason"] = pc.if_else(is_reason, note, None)
    columns["warning"] = pc.if_else(is_reason, None, note)
    wanted = [int_array(np.unique(environment).tolist())]
    torch = "SELECT id, facts->>'torch' FROM hud_environment WHERE id = ANY(%s::int[]) ORDER BY id"
    pks, versions = _columns(fetch_tuples(torch, wanted), 2)
    columns["torch"] = _taken("torch", versions, pa.array(np.searchsorted(pks, environment)))
    return pa.table({name: columns[name] for name in (*FLAT, "reason", "warning", "torch")})


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _taken(name: str, values: Any, places: pa.Array) -> pa.Array:
    """Return the values at these places, each text once with a number for each place."""
    own = _array(name, values)
    return (own if name in _KINDS else own.dictionary_encode()).take(places)


def _array(name: str, values: Any) -> pa.Array:
    return pa.array(values, _KINDS.get(name, pa.string()))
