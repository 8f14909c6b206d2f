"""Compilations: what a record says of one, checked, → a row, and rows for kernels that are new.

A compilation belongs to the measurement whose record brought it: it is stored, replaced and left out with it.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
import orjson
from django.db import connection

from hud.ingest.resolve import RowKey, ids_of
from hud.sql import fetch_tuples
from runner.formats.scalars import INVISIBLE
from runner.schema.compilations import Compiled, Kernel, Note

METRIC = "kernel_count"  # whose records say what was compiled
MAX_KERNELS = 2000
_MAX_ENTRIES = 200  # that are kept of the reasons of a kind, a kernel's origins, phases and so on
_MAX_NAME, _MAX_TEXT = 300, 500
KEY = re.compile(r"[0-9a-f]{16}")
_KEYS = re.compile(rf"(?:{KEY.pattern} )*")
_LOOK_BACK, _FULL_LIST = 20, 4000  # compilations of an experiment, and binaries: see `_places_of_binaries`
_MIN_REAL, _MAX_REAL, _MAX_BIGINT, _MAX_COUNT = 1e-30, 1e30, 2**63 - 1, 2**31 - 1  # what the columns hold


class BadCompilation(ValueError):
    """A record's compilation cannot be stored; its measurement can."""


def read_compiled(value: Any) -> Compiled:
    """Return what `Compiled.to_json` wrote. Raise BadCompilation."""
    try:
        found = msgspec.convert(value, Compiled)
    except msgspec.ValidationError as error:
        raise BadCompilation(str(error)[:200]) from error
    if len(found.kernels) > MAX_KERNELS:
        raise BadCompilation(f"{len(found.kernels)} kernels are more than {MAX_KERNELS}")
    keys = "".join(f"{kernel.slot} {kernel.choice} {kernel.binary} " for kernel in found.kernels)
    if not _KEYS.fullmatch(keys):
        raise BadCompilation("a key of a kernel is not 16 hex digits")
    if not all(map(KEY.fullmatch, found.unpinned)) or len(found.unpinned) > MAX_KERNELS:
        raise BadCompilation("a slot that was left to the autotuner is none")
    if not all(map(_fits, found.kernels)):
        raise BadCompilation("a number of a kernel is below 0 or too large")
    times = found.busy_us, found.gaps_us, found.overlap_us, *found.phases_s.values()
    if not all(0 <= (time or 0) <= _MAX_REAL for time in times):
        raise BadCompilation("a time of a step or a phase is below 0 or too large")
    counts = [note.count for note in (*found.graph_breaks, *found.recompiles, *found.cudagraph_skips)]
    counts += [count for cache in found.caches.values() for count in cache]
    if not all(0 <= count <= _MAX_COUNT for count in counts):
        raise BadCompilation(f"a count is not 0 to {_MAX_COUNT}")
    return found


def _fits(kernel: Kernel) -> bool:
    return (
        all(not value or _MIN_REAL <= value <= _MAX_REAL for value in (kernel.calls, kernel.time_us))
        and 0 <= (kernel.bytes or 0) <= _MAX_BIGINT
        and 0 <= (kernel.flops or 0) <= _MAX_BIGINT
        and 0 <= kernel.candidates <= _MAX_COUNT
    )


@dataclass(frozen=True)
class NewCompilation:
    """A compilation for the row of its measurement, with its number, its draw and the time of its run."""

    compiled: Compiled
    number: int | None
    draw: int | None
    order_time: datetime


def store_compilations(
    found: Mapping[RowKey, NewCompilation], *, replace: bool, upload_id: int | None
) -> None:
    """Write compilations by the keys of their measurements; `replace` lets a task's later attempt supersede
    an earlier one."""
    if not found:
        return
    digests = {key: [_digest(kernel) for kernel in new.compiled.kernels] for key, new in found.items()}
    described = {
        digest: kernel
        for key, new in found.items()
        for digest, kernel in zip(digests[key], new.compiled.kernels, strict=True)
    }
    known = sorted(described)  # the order keeps two concurrent uploads from waiting for each other
    rows = ids_of(
        "hud_kernel",
        _KERNEL,
        {"digest": known},
        lambda place: _kernel_row(known[place], described[known[place]]),
    )
    ids = dict(zip(known, rows, strict=True))
    binaries = _places_of_binaries(found)
    conflict = _REPLACE if replace else "DO NOTHING"
    with connection.cursor() as cursor:
        cursor.executemany(
            f"""
            INSERT INTO hud_compilation (experiment_id, uncounted, {", ".join(_COLUMNS)})
            SELECT experiment_id, %s, {", ".join(f"%s::{kind}" for kind in _COLUMNS.values())}
            FROM hud_series WHERE id = %s ON CONFLICT {conflict}
            """,  # noqa: S608 — only constants of this module are put into the text  # nosec B608
            [
                (
                    new.draw is None,  # what is counted draws its own choices
                    *_row(key, new, [ids[digest] for digest in digests[key]], binaries[key], upload_id),
                    key[1],
                )
                for key, new in found.items()
            ],
        )


_COLUMNS = {
    "run_id": "int4", "environment_id": "int4", "repeat": "int2", "side": "int2", "draw": "int2",
    "number": "int2",
    "order_time": "timestamptz", "variant": "text", "busy_us": "float8", "gaps_us": "float8",
    "overlap_us": "float8", "kernels": "int4[]", "times_us": "real[]", "binary_list_id": "int4",
    "binary_places": "int2[]", "graph_breaks": "jsonb", "recompiles": "jsonb", "cudagraph_skips": "jsonb",
    "phases_s": "jsonb", "caches": "jsonb", "unpinned": "text[]", "blind": "jsonb",
    "upload_id": "int4",
}  # fmt: skip
_KERNEL = {
    "digest": "uuid", "slot": "text", "choice": "text", "name": "text", "kind": "text", "config": "text",
    "origins": "jsonb", "calls": "real", "bytes": "int8", "flops": "int8", "candidates": "int4",
    "default_config": "text", "ranked": "jsonb", "offered": "text[]",
}  # fmt: skip
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS, "uncounted"))
_REPLACE = f"(run_id, experiment_id, environment_id, repeat, side) DO UPDATE SET {_REPLACED}"  # nosec B608: constants


@dataclass(frozen=True)
class _Listed:
    """A list of binaries, and where each is in it; without an id there is none."""

    pk: int | None = None
    places: Mapping[int, int] = field(default_factory=dict)


def _places_of_binaries(found: Mapping[RowKey, NewCompilation]) -> dict[RowKey, tuple[int | None, list[int]]]:
    """Return each compilation's list of binaries, and the places of its own in that.

    A compilation shares the list of the newest one of its experiment, environment and side, which is extended
    by what it lacks. Where that is more than half, as after a change of the compiler, it gets a list of its
    own. The order keeps two concurrent uploads from waiting for each other.
    """
    listed = _newest_lists({_group(key) for key, new in found.items() if new.compiled.kernels})
    placed: dict[RowKey, tuple[int | None, list[int]]] = {}
    for key in sorted(found, key=_group):
        own = [signed(kernel.binary) for kernel in found[key].compiled.kernels]
        known = listed.get(_group(key), _Listed()) if own else _Listed()
        distinct = list(dict.fromkeys(own))
        if missing := [binary for binary in distinct if binary not in known.places]:
            known = listed[_group(key)] = _list_with(known, distinct, missing)
        placed[key] = known.pk, [known.places[binary] for binary in own]
    return placed


def _group(key: RowKey) -> tuple[int, int, int]:
    """Return series, environment and side."""
    return key[1], key[2], key[4]


def _newest_lists(groups: Collection[tuple[int, int, int]]) -> dict[tuple[int, int, int], _Listed]:
    """Return the newest list of each series, environment and side, as far as there is one. Only the newest
    compilations are looked at, so that the cost does not grow with the history."""
    if not groups:
        return {}
    rows = fetch_tuples(
        """
        SELECT given.series, given.environment, given.side, l.id, l.binaries
        FROM unnest(%s::int[], %s::int[], %s::int[]) AS given(series, environment, side)
        JOIN hud_series s ON s.id = given.series
        JOIN LATERAL (
            SELECT binary_list_id FROM (
                SELECT environment_id, side, binary_list_id, order_time FROM hud_compilation
                WHERE experiment_id = s.experiment_id ORDER BY order_time DESC LIMIT %s
            ) newest
            WHERE environment_id = given.environment AND side = given.side
                AND binary_list_id IS NOT NULL
            ORDER BY order_time DESC LIMIT 1
        ) one ON true
        JOIN hud_binarylist l ON l.id = one.binary_list_id
        """,
        [*(_array(part) for part in zip(*groups, strict=True)), _LOOK_BACK],
    )
    return {(series, environment, side): _listed(*row) for series, environment, side, *row in rows}


def _list_with(known: _Listed, binaries: Sequence[int], missing: Sequence[int]) -> _Listed:
    """Return the list with what it lacks, which another upload may have put in meanwhile; another list where
    more than half is missing, or where it is full."""
    if 2 * len(missing) <= len(binaries):
        rows = fetch_tuples(
            """
            UPDATE hud_binarylist SET binaries = binaries || %s::int8[]
            WHERE id = %s AND cardinality(binaries) < %s RETURNING id, binaries
            """,
            [_array(missing), known.pk, _FULL_LIST],
        )
        if rows:
            return _listed(*rows[0])
    insert = "INSERT INTO hud_binarylist (binaries) VALUES (%s::int8[]) RETURNING id"
    return _listed(fetch_tuples(insert, [_array(binaries)])[0][0], binaries)


def _listed(pk: int, binaries: Sequence[int]) -> _Listed:
    return _Listed(pk, {binary: place for place, binary in enumerate(binaries)})


def _row(
    key: RowKey,
    new: NewCompilation,
    ids: list[int],
    binaries: tuple[int | None, list[int]],
    upload_id: int | None,
) -> tuple[Any, ...]:
    run_id, _series_id, environment_id, repeat, side = key
    compiled = new.compiled
    times = ("NULL" if kernel.time_us is None else kernel.time_us for kernel in compiled.kernels)
    return (
        run_id,
        environment_id,
        repeat,
        side,
        new.draw,
        new.number,
        new.order_time,
        compiled.variant(),
        compiled.busy_us,
        compiled.gaps_us,
        compiled.overlap_us,
        _array(ids),
        _array(times),
        binaries[0],
        _array(binaries[1]),
        _notes(compiled.graph_breaks),
        _notes(compiled.recompiles),
        _notes(compiled.cudagraph_skips),
        _named(compiled.phases_s),
        _named(compiled.caches),
        list(compiled.unpinned) or None,
        _named({name: _short(reason) for name, reason in compiled.blind.items()}) if compiled.blind else None,
        upload_id,
    )


def _digest(kernel: Kernel) -> str:
    """Return 32 hex digits over what makes a row of its own. NUL, which no text holds, keeps parts apart."""
    texts = (kernel.slot, kernel.choice, kernel.name, kernel.kind, kernel.config, kernel.default)
    numbers = f"{kernel.calls} {kernel.bytes} {kernel.flops} {kernel.candidates}"
    offered = ("offered", *kernel.offered) if kernel.offered else ()
    said = "\0".join((*texts, numbers, *kernel.origins, *offered))
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _kernel_row(digest: str, kernel: Kernel) -> tuple[Any, ...]:
    offered = tuple(map(_short, kernel.offered))
    return (
        digest,
        kernel.slot,
        kernel.choice,
        _short(kernel.name, _MAX_NAME),
        kernel.kind,
        _short(kernel.config),
        [_short(origin) for origin in kernel.origins[:_MAX_ENTRIES]],
        kernel.calls,
        kernel.bytes,
        kernel.flops,
        kernel.candidates,
        _short(kernel.default),
        [(_short(config), time_us) for config, time_us in kernel.ranked[:_MAX_ENTRIES]],
        # unknown if cut: two lists that differ only in what is cut off would look alike
        list(kernel.offered) if len(kernel.offered) <= _MAX_ENTRIES and offered == kernel.offered else [],
    )


def signed(key: str) -> int:
    """Return the 16 hex digits of a key as a signed number of 8 bytes."""
    number = int(key, 16)
    return number - 2**64 if number >= 2**63 else number


def _array(items: Iterable[Any]) -> str:
    """Return PostgreSQL's text of an array of numbers; psycopg takes three times as long."""
    return f"{{{','.join(map(str, items))}}}"


def _notes(notes: Sequence[Note]) -> str:
    return _json(
        [
            {"reason": _short(note.reason), "place": _short(note.place), "count": note.count}
            for note in notes[:_MAX_ENTRIES]
        ]
    )


def _named(values: Mapping[str, Any]) -> str:
    return _json({_short(name): value for name, value in islice(values.items(), _MAX_ENTRIES)})


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _short(text: str, limit: int = _MAX_TEXT) -> str:
    return (text if text.isascii() else INVISIBLE.sub("", text))[:limit]
