"""Points and samples of runs as Arrow tables, in the order of their series, and digests of them.

PostgreSQL writes CSV, which pyarrow parses: no value becomes a Python object.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from hud.ingest.parquet import fetch_batches
from hud.models import VERDICT_CODES
from hud.models.archive import POINTS, SAMPLES
from hud.sql import int_array

_CSV_BYTES = 16 * 2**20  # a row group of some 200,000 points
_MOVED = VERDICT_CODES["improved"], VERDICT_CODES["regressed"]
_KEY = ("series_id", "run_id", "environment_id", "repeat", "side")
_NAMES = ("series_id", "order_time", "run_id", "environment_id", "value", "status", "quality", "branch")
_COLUMNS: Mapping[str, Mapping[str, str]] = {  # of each kind, with where they come from
    POINTS: {
        **{name: name for name in (*_NAMES, "rerun", "verdict")},
        "n": "samples",
        "change": f"CASE WHEN verdict IN {_MOVED} THEN change END",  # of all points it were half of the file
    },
    SAMPLES: {**{name: name for name in _KEY}, "samples": "array_to_string(samples, ' ')"},
}
_ROWS = {
    POINTS: "hud_point WHERE run_id = ANY(%s::int[]) ORDER BY series_id, order_time, run_id, environment_id",
    SAMPLES: f"hud_detailedmeasurement WHERE n > 1 AND run_id = ANY(%s::int[]) ORDER BY {', '.join(_KEY)}",
}
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("series_id", "run_id", "environment_id", "n"), pa.int32()),
    **dict.fromkeys(("repeat", "side", "status", "verdict"), pa.int16()),
    **dict.fromkeys(("quality", "branch"), pa.string()),
    "order_time": pa.timestamp("us", "UTC"),
    "value": pa.float64(),
    "change": pa.float32(),
    "rerun": pa.bool_(),
    "samples": pa.list_(pa.float64()),
}


def read(kind: str, run_ids: Sequence[int], archived: Any = None) -> Iterator[pa.Table]:
    """Yield the points or samples of runs. Samples that PostgreSQL has dropped come from the file in which
    they were `archived`."""
    statement = f"SELECT {', '.join(_COLUMNS[kind].values())} FROM {_ROWS[kind]}"  # noqa: S608 — constants  # nosec B608
    types = {name: pa.string() if name == "samples" else _TYPES[name] for name in _COLUMNS[kind]}
    for batch in fetch_batches(statement, [int_array(run_ids)], types, csv_bytes=_CSV_BYTES):
        table = pa.Table.from_batches([batch])
        yield table if kind == POINTS else _with_samples(table, archived)


def _with_samples(table: pa.Table, archived: Any) -> pa.Table:
    texts = pc.split_pattern(table["samples"].combine_chunks(), " ")
    samples = texts.cast(_TYPES["samples"])
    if samples.null_count and archived:
        bounds = pc.field("series_id").isin(pc.unique(table["series_id"]))
        before = parquet.read_table(archived, filters=bounds)
        place = before.select(_KEY).append_column("place", pa.array(np.arange(len(before))))
        own = table.select(_KEY).append_column("own", pa.array(np.arange(len(table))))
        places = own.join(place, list(_KEY)).sort_by("own")["place"]
        samples = pc.coalesce(samples, before["samples"].combine_chunks().take(places.combine_chunks()))
    return table.set_column(len(_KEY), "samples", samples)


class ArchiveContent:
    """Rows of one kind that are counted, digested and, into a `file`, written."""

    def __init__(self, kind: str, file: Any = None) -> None:
        self.rows = 0
        self._hashes: dict[str, Any] = defaultdict(hashlib.sha256)
        schema = pa.schema([(name, _TYPES[name]) for name in _COLUMNS[kind]])
        repeating = [name for name in schema.names if name not in {"value", "change", "samples"}]
        self._file = file and parquet.ParquetWriter(
            file, schema, compression="zstd", compression_level=9, use_dictionary=repeating
        )

    def add(self, table: pa.Table) -> None:
        """Take more rows, as a group of the file."""
        self.rows += len(table)
        for name in table.column_names:
            column = table[name].combine_chunks()
            if pa.types.is_list(column.type):
                self._digest(f"lengths of {name}", pc.list_value_length(column))
                column = column.flatten()
            self._digest(name, column)
        if self._file:
            self._file.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> str:
        """Complete the file; return the digest, which does not depend on the groups that the rows came in."""
        if self._file:
            self._file.close()
        parts = [f"{name} {self._hashes[name].hexdigest()}" for name in sorted(self._hashes)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _digest(self, name: str, column: Any) -> None:
        self._hashes[f"nulls of {name}"].update(column.is_null().to_numpy(zero_copy_only=False).tobytes())
        if pa.types.is_string(column.type):
            values = "".join(f"{text}\0" for text in column.to_pylist()).encode()
        else:
            as_number = column.type in (pa.bool_(), _TYPES["order_time"])
            numbers = column.cast(pa.int64()) if as_number else column
            values = pc.fill_null(numbers, 0).to_numpy().tobytes()
        self._hashes[name].update(values)
