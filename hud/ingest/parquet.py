"""Export as Parquet. PostgreSQL writes CSV, which pyarrow parses: of a million measurements none becomes a
Python object. What many share, such as experiment and run, is read once."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow.parquet import ParquetWriter

from hud.ingest.export import COLUMNS, FILTERS, FLAT, SERIES, condition_of
from hud.models import STATUS_NAMES
from hud.replica import reading
from hud.sql import fetch_tuples, int_array

_CSV_BYTES = 4 * 2**20  # that are parsed at once: a row group of some 50,000 measurements
_PIECE_BYTES = 2**20
_NAMES = (*FLAT, "reason", "warning", "torch")
_KEYS = ("run_id", "series_id", "environment_id")  # of what measurements share
_TYPES = dict.fromkeys((*_NAMES, *_KEYS), pa.dictionary(pa.int32(), pa.string())) | {
    **dict.fromkeys(("value", "spread", "target"), pa.float64()),
    **dict.fromkeys(("id", "run", "n", "process", "draw", "compilation", *_KEYS), pa.int32()),
    "dynamic": pa.bool_(),
    "at": pa.timestamp("us", "UTC"),
}
_IS_REASON = "m.value IS NULL OR m.status <> 0"
_OWN = {  # columns of a measurement
    **{name: f"m.{name}" for name in _KEYS},
    **{name: COLUMNS[name] for name in FLAT if COLUMNS[name].startswith("m.")},
    "process": COLUMNS["process"],
    "status": "(%(statuses)s::text[])[m.status + 1]",
    "reason": f"CASE WHEN {_IS_REASON} THEN m.note END",
    "warning": f"CASE WHEN NOT ({_IS_REASON}) THEN m.note END",
}
_OF_RUNS = f"""
    SELECT {", ".join(_OWN.values())} FROM hud_measurement m JOIN hud_run r ON r.id = m.run_id
    WHERE m.run_id = ANY(%(runs)s::int[]) AND m.series_id = ANY(%(series)s::int[])
"""  # noqa: S608 — columns of ours  # nosec B608


def export_parquet(filters: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the flat rows of an export. `filters` hold names of `FILTERS`."""
    runs = _shared({"id": "r.id"}, "hud_run r", "r", filters)
    series = _shared({"id": "s.id"}, SERIES, "xkt", filters)
    environments = _shared({"id": "e.id", "torch": "e.facts->>'torch'"}, "hud_environment e", "", filters)
    shared = dict(zip(_KEYS, (runs, series, environments), strict=True))
    params: dict[str, Any] = {
        "runs": int_array(runs["id"].to_pylist()),
        "series": int_array(series["id"].to_pylist()),
    }
    params["statuses"] = [*STATUS_NAMES.values()]
    schema = pa.schema([(name, _TYPES[name]) for name in _NAMES])
    types = {name: _TYPES[name] for name in _OWN}
    with tempfile.TemporaryFile() as file:
        with ParquetWriter(file, schema, write_statistics=False) as writer:
            for batch in fetch_batches(_OF_RUNS, params, types, csv_bytes=_CSV_BYTES):
                columns = {name: batch[name] for name in _OWN}
                for key, table in shared.items():
                    places = pc.index_in(batch[key], table["id"])
                    columns |= {name: values.take(places) for name, values in table.items()}
                writer.write_table(pa.table([columns[name] for name in _NAMES], schema))
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _shared(
    columns: dict[str, str], source: str, tables: str, filters: Mapping[str, Any]
) -> dict[str, pa.Array]:
    """Return columns of what measurements share: these, and all of some tables."""
    columns |= {name: COLUMNS[name] for name in FLAT if COLUMNS[name][0] in tables}
    condition, params = condition_of({name: filters[name] for name in filters if FILTERS[name][0] in tables})
    statement = f"SELECT {', '.join(columns.values())} FROM {source} WHERE {condition}"  # noqa: S608 — constants  # nosec B608
    rows = fetch_tuples(statement, params)
    values = dict(zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True))
    if "knobs" in values:  # as the other formats write them
        values["knobs"] = tuple(orjson.dumps(orjson.loads(text)).decode() for text in values["knobs"])
    return {name: pa.array(values[name], _TYPES[name]) for name in columns}


def fetch_batches(
    statement: str,
    params: Mapping[str, Any] | Sequence[Any],
    types: Mapping[str, pa.DataType],
    *,
    csv_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a statement, whose columns have these names and types, in pieces of so much CSV."""
    with tempfile.TemporaryFile() as file:
        with (
            reading().wrap_database_errors,
            reading().cursor() as cursor,
            cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)", params) as lines,
        ):
            file.writelines(lines)
        if not file.tell():
            return
        file.seek(0)
        convert = csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # PostgreSQL quotes '' and leaves NULL empty
        )
        read = csv.ReadOptions(column_names=[*types], block_size=csv_bytes)
        yield from csv.open_csv(file, read, csv.ParseOptions(newlines_in_values=True), convert)
