"""Compilations: what a record says of one, checked, → a row, and rows for kernels that are new.

A compilation belongs to the measurement whose record brought it: it is stored, replaced and left out with it.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from hud.ingest.series import RowKey, ids_of
from hud.models import BinaryList, Compilation, Kernel, LineList, Run, Series
from hud.sql import fetch_tuples, insert, int_array
from runner.formats.measurement import ParsedMeasurement
from runner.formats.scalars import INVISIBLE
from runner.schema import compilations as schema
from runner.schema.compilations import ANATOMY, Compiled, Note

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
        compiled = msgspec.convert(value, Compiled)
    except msgspec.ValidationError as error:
        raise BadCompilation(str(error)[:200]) from error
    if len(compiled.kernels) > MAX_KERNELS:
        raise BadCompilation(f"{len(compiled.kernels)} kernels are more than {MAX_KERNELS}")
    keys = "".join(f"{kernel.slot} {kernel.choice} {kernel.binary} " for kernel in compiled.kernels)
    if not _KEYS.fullmatch(keys):
        raise BadCompilation("a key of a kernel is not 16 hex digits")
    if not all(map(KEY.fullmatch, compiled.unpinned)) or len(compiled.unpinned) > MAX_KERNELS:
        raise BadCompilation("a slot that was left to the autotuner is none")
    if not all(map(_fits, compiled.kernels)):
        raise BadCompilation("a number of a kernel is below 0 or too large")
    times = compiled.busy_us, compiled.gaps_us, compiled.overlap_us, *compiled.phases_s.values()
    if not all(0 <= (time or 0) <= _MAX_REAL for time in times):
        raise BadCompilation("a time of a step or a phase is below 0 or too large")
    counts = [
        note.count for note in (*compiled.graph_breaks, *compiled.recompiles, *compiled.cudagraph_skips)
    ]
    counts += [count for cache in compiled.caches.values() for count in cache]
    if not all(0 <= count <= _MAX_COUNT for count in counts):
        raise BadCompilation(f"a count is not 0 to {_MAX_COUNT}")
    return compiled


def _fits(kernel: schema.Kernel) -> bool:
    reals, integers = (kernel.calls, kernel.time_us), (kernel.bytes or 0, kernel.flops or 0)
    return (
        all(not value or _MIN_REAL <= value <= _MAX_REAL for value in reals)
        and all(0 <= value <= _MAX_BIGINT for value in integers)
        and all(0 <= (getattr(kernel, name) or 0) <= _MAX_COUNT for name in _COUNTS)
        and all(0 <= spills <= _MAX_COUNT for _config, spills in kernel.skipped)
    )


def store_compilations(
    items: Mapping[RowKey, ParsedMeasurement],
    runs: Mapping[int, Run],
    *,
    replace: bool,
    upload_id: int | None,
) -> None:
    """Write what these measurements compiled, by their keys; `replace` lets a task's later attempt supersede
    an earlier one."""
    compiled = {key: item.compiled for key, item in items.items() if item.compiled}
    if not compiled:
        return
    digests = {key: [_digest(kernel) for kernel in value.kernels] for key, value in compiled.items()}
    described = {
        digest: kernel
        for key, compilation in compiled.items()
        for digest, kernel in zip(digests[key], compilation.kernels, strict=True)
    }
    known = sorted(described)  # the order keeps two concurrent uploads from waiting for each other
    numbers = ids_of(Kernel, {"digest": known}, lambda index: _kernel_row(described[known[index]]))
    ids = dict(zip(known, numbers, strict=True))
    binaries = _places_of_binaries(compiled)
    line_lists = _line_lists(compiled)
    experiments = dict(
        Series.objects.filter(pk__in={key[1] for key in items}).values_list("pk", "experiment")
    )
    rows = []
    for key, compilation in compiled.items():
        run_id, series_id, environment_id, repeat, side = key
        list_id, places = binaries[key]
        rows.append(
            {
                "run_id": run_id,
                "experiment_id": experiments[series_id],
                "environment_id": environment_id,
                "repeat": repeat,
                "side": side,
                "draw": items[key].draw,
                # what is counted draws its own choices
                "uncounted": items[key].draw is None
                and compilation.forced is None
                and not items[key].is_compiled_impossible,
                "impossible": items[key].is_compiled_impossible,
                "number": items[key].compilation,
                "order_time": runs[run_id].order_time,
                "variant": compilation.variant(),
                "kernels": [ids[digest] for digest in digests[key]],
                "times_us": [kernel.time_us for kernel in compilation.kernels],
                "binary_list_id": list_id,
                "binary_places": places,
                "line_list_id": line_lists.get(key),
                **{name: _notes(getattr(compilation, name)) for name in _NOTES},
                **{name: _named(getattr(compilation, name)) for name in ("phases_s", "caches")},
                **{name: getattr(compilation, name) for name in ("busy_us", "gaps_us", "overlap_us")},
                "unpinned": compilation.unpinned or ([] if compilation.forced else None),
                "blind": _named({name: _short(reason) for name, reason in compilation.blind.items()}) or None,
                "upload_id": upload_id,
            }
        )
    replaced = ", ".join(f"{name} = excluded.{name}" for name in rows[0])
    key_columns = "run_id, experiment_id, environment_id, repeat, side"
    insert(Compilation, rows, f"({key_columns}) DO UPDATE SET {replaced}" if replace else "DO NOTHING")


_COUNTS = ("candidates", "registers", "spills", "shared_bytes")
_SAME = ("slot", "choice", "kind", "calls", "bytes", "flops", *_COUNTS)  # in a kernel and its row
_NOTES = ("graph_breaks", "recompiles", "cudagraph_skips")
_List = tuple[int | None, Mapping[int, int]]  # of binaries: its id, and where each is in it
_NO_LIST: _List = (None, {})


def _places_of_binaries(compiled: Mapping[RowKey, Compiled]) -> dict[RowKey, tuple[int | None, list[int]]]:
    """Return each compilation's list of binaries, and the places of its own in that.

    A compilation shares the list of the newest one of its experiment, environment and side, which is extended
    by what it lacks. Where that is more than half, as after a change of the compiler, it gets a list of its
    own. The order keeps two concurrent uploads from waiting for each other.
    """
    lists = _newest_lists({_group(key) for key, compilation in compiled.items() if compilation.kernels})
    placed: dict[RowKey, tuple[int | None, list[int]]] = {}
    for key in sorted(compiled, key=_group):
        own = [signed(kernel.binary) for kernel in compiled[key].kernels]
        list_id, places = lists.get(_group(key), _NO_LIST) if own else _NO_LIST
        distinct = list(dict.fromkeys(own))
        if missing := [binary for binary in distinct if binary not in places]:
            list_id, places = lists[_group(key)] = _list_with(list_id, distinct, missing)
        placed[key] = list_id, [places[binary] for binary in own]
    return placed


def _line_lists(compiled: Mapping[RowKey, Compiled]) -> dict[RowKey, int]:
    """Return the list of lines of each compilation that knows any."""
    texts = {
        key: ["\n".join(map(_line, kernel.lines[: schema.MOST_LINES])) for kernel in compilation.kernels]
        for key, compilation in compiled.items()
    }
    digests = {key: _hash("\0".join(lines)) for key, lines in texts.items() if any(lines)}
    lists = {digest: texts[key] for key, digest in digests.items()}
    known = sorted(lists)  # as for kernels
    numbers = ids_of(LineList, {"digest": known}, lambda index: {"lines": lists[known[index]]})
    ids = dict(zip(known, numbers, strict=True))
    return {key: ids[digest] for key, digest in digests.items()}


def _line(text: str) -> str:
    return _short(" ".join(text.split()), _MAX_NAME)


def _group(key: RowKey) -> tuple[int, int, int]:
    """Return series, environment and side."""
    return key[1], key[2], key[4]


def _newest_lists(groups: Collection[tuple[int, int, int]]) -> dict[tuple[int, int, int], _List]:
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
        ) own ON true
        JOIN hud_binarylist l ON l.id = own.binary_list_id
        """,
        [*(int_array(part) for part in zip(*groups, strict=True)), _LOOK_BACK],
    )
    return {tuple(group): (list_id, _places(binaries)) for *group, list_id, binaries in rows}


def _list_with(list_id: int | None, binaries: Sequence[int], missing: Sequence[int]) -> _List:
    """Return the list with what it lacks, which another upload may have put in meanwhile; another list where
    more than half is missing, or where it is full."""
    if 2 * len(missing) <= len(binaries):
        rows = fetch_tuples(
            """
            UPDATE hud_binarylist SET binaries = binaries || %s::int8[]
            WHERE id = %s AND cardinality(binaries) < %s RETURNING binaries
            """,
            [int_array(missing), list_id, _FULL_LIST],
        )
        if rows:
            return list_id, _places(rows[0][0])
    return BinaryList.objects.create(binaries=binaries).pk, _places(binaries)


def _places(binaries: Sequence[int]) -> dict[int, int]:
    return {binary: index for index, binary in enumerate(binaries)}


def _digest(kernel: schema.Kernel) -> str:
    """Return 32 hex digits over what makes a row of its own. NUL, which no text holds, keeps parts apart."""
    texts = (kernel.slot, kernel.choice, kernel.name, kernel.kind, kernel.config, kernel.default)
    numbers = f"{kernel.calls} {kernel.bytes} {kernel.flops} {kernel.candidates}"
    offered = ("offered", *kernel.offered) if kernel.offered else ()
    anatomy = [f"{getattr(kernel, name)}" for name in ANATOMY if getattr(kernel, name) not in (None, ())]
    identity = "\0".join((*texts, numbers, *kernel.origins, *offered, *anatomy))
    return _hash(identity)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _kernel_row(kernel: schema.Kernel) -> dict[str, Any]:
    offered = tuple(map(_short, kernel.offered))
    # unknown if cut: two lists that differ only in what is cut off would look alike
    is_cut = len(offered) > _MAX_ENTRIES or offered != kernel.offered
    return {
        **{name: getattr(kernel, name) for name in _SAME},
        "name": _short(kernel.name, _MAX_NAME),
        "config": _short(kernel.config),
        "origins": [_short(origin) for origin in kernel.origins[:_MAX_ENTRIES]],
        "default_config": _short(kernel.default),
        "ranked": [(_short(config), time_us) for config, time_us in kernel.ranked[:_MAX_ENTRIES]],
        "offered": [] if is_cut else offered,
        "skipped": [(_short(config), spills) for config, spills in kernel.skipped[:_MAX_ENTRIES]],
    }


def signed(key: str) -> int:
    """Return the 16 hex digits of a key as a signed number of 8 bytes."""
    return int.from_bytes(bytes.fromhex(key), "big", signed=True)


def _notes(notes: Sequence[Note]) -> list[dict[str, Any]]:
    return [
        {"reason": _short(note.reason), "place": _short(note.place), "count": note.count}
        for note in notes[:_MAX_ENTRIES]
    ]


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_short(name): value for name, value in islice(values.items(), _MAX_ENTRIES)}


def _short(text: str, limit: int = _MAX_TEXT) -> str:
    return (text if text.isascii() else INVISIBLE.sub("", text))[:limit]
