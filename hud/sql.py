"""Hand-written SQL, where the ORM cannot express a query or takes longer than the database does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import orjson
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.utils import CursorWrapper
from django.db.models import Model
from django.db.models.base import ModelState
from django.http import HttpRequest, HttpResponse
from numpy.typing import NDArray
from psycopg import Cursor
from psycopg.pq import Format
from psycopg.rows import namedtuple_row
from psycopg.types.datetime import TimestamptzLoader

from hud.replica import reading

T = TypeVar("T")
M = TypeVar("M", bound=Model)
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
_Params = Mapping[str, Any] | Sequence[Any] | None
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of times in PostgreSQL's binary format
_ELEMENTS = {20: ">i8", 21: ">i2", 23: ">i4", 700: ">f4", 701: ">f8", 1184: ">i8"}  # OIDs


def fetch(row: type[T], statement: str, params: Mapping[str, Any]) -> list[T]:
    """Return the rows of `statement`; its columns stand in the order of the fields of the dataclass `row`."""
    return [row(*columns) for columns in fetch_tuples(statement, params)]


def real(column: str) -> str:
    """Return SQL for a number that fits 4 bytes, as PostgreSQL refuses one that is too large or too small.
    NULL stays."""
    return (
        f"CASE WHEN abs({column}) < 1e-30 THEN 0 WHEN abs({column}) > 1e30 THEN sign({column}) * 1e30"
        f" ELSE {column} END"
    )


# Whether the statements of `fetch_tuples` are prepared: planned once for a connection, with any parameters
_prepares: ContextVar[bool] = ContextVar("prepares", default=False)


class PreparedReadsMiddleware:
    """Prepare the statements of pages, of which each connection sees the same hundred again and again:
    to parse and plan them takes half of what the database does for most. Background work, whose arrays have
    thousands of elements, lets the database plan for each."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        token = _prepares.set(request.method in {"GET", "HEAD"})
        try:
            return self._get_response(request)
        finally:
            _prepares.reset(token)


def _cursor(*, binary: bool = False) -> CursorWrapper:
    database = reading()
    cursor = database.cursor()
    if _prepares.get():
        cursor.cursor = Cursor(database.connection)  # Django's puts the parameters into the statement
        cursor.cursor.format = Format(binary)
    # psycopg's in C; Django's, in Python, takes 18 times as long
    cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
    return cursor


def fetch_tuples(statement: str, params: _Params = None, *, binary: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of a statement. Columns of bytes are half as long in the `binary` format."""
    with _cursor(binary=binary) as cursor:
        cursor.execute(statement, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def fetch_named(statement: str, params: _Params = None) -> list[Any]:
    """Return rows with their columns as attributes."""
    with _cursor() as cursor:
        cursor.execute(statement, params)
        return list(map(namedtuple_row(cursor.cursor), cursor.fetchall()))


def execute(statement: str, params: _Params = None) -> int:
    """Run a statement; return how many rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return int(cursor.rowcount)


def empty_temporary_table(name: str, columns: str) -> None:
    """Make a table that ends with the transaction, or empty the one that an earlier call has made."""
    execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({columns}) ON COMMIT DROP; TRUNCATE {name}")


def copy_rows(table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows by COPY; `columns` have their types."""
    names = ", ".join(f'"{name}"' for name in columns)
    # Django turns the errors of execute() into its own, not those of a COPY
    with (
        connection.wrap_database_errors,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(list(columns.values()))
        for row in rows:
            copy.write_row(row)


def given_rows(model: type[Model], columns: Iterable[str]) -> str:
    """Return SQL that reads rows, as `given`, from one JSON text: a tenth of what psycopg's arrays cost. Real
    numbers keep their digits until they are stored; `place` is the number of a row."""
    kinds = {str(field.column): field.db_type(connection) for field in model._meta.concrete_fields}
    kinds = {name: "double precision" if kind == "real" else kind for name, kind in kinds.items()}
    named = ", ".join(f'"{name}" {kinds.get(name, "int")}' for name in columns)
    return f"json_to_recordset(%s::json) AS given({named})"


def insert(model: type[Model], rows: Sequence[Mapping[str, Any]], conflict: str = "DO NOTHING") -> None:
    """Insert rows with the same columns. A value in them may be JSON already, as bytes."""
    body = orjson.dumps(rows, default=lambda value: orjson.Fragment(bytes(value))).decode()
    names = ", ".join(f'"{name}"' for name in rows[0])
    execute(
        f"""INSERT INTO {model._meta.db_table} ({names}) SELECT {names} FROM {given_rows(model, rows[0])}
        ON CONFLICT {conflict}""",  # noqa: S608 — names of columns  # nosec B608
        [body],
    )


def by_id(model: type[M], ids: Iterable[int | None]) -> dict[int, M]:
    """Return rows by id. One array, since hundreds of parameters cost more than the statement."""
    wanted = {pk for pk in ids if pk is not None}
    if not wanted:
        return {}
    return {
        row.pk: row
        for row in fetch_models(model, "WHERE id = ANY(%(ids)s::int[])", {"ids": int_array(wanted)})
    }


@cache
def _columns(kind: type[Model]) -> tuple[list[str], list[Any], list[tuple[str, Any]]]:
    """Return the attributes of a model's fields, their columns, and what reads some of them."""
    fields = kind._meta.concrete_fields
    readers = [(each.attname, each.from_db_value) for each in fields if hasattr(each, "from_db_value")]
    return [each.attname for each in fields], [each.column for each in fields], readers


def fetch_models(
    model: type[M],
    condition: str,
    params: Mapping[str, Any],
    *,
    rows: str = "",
    computed: Mapping[str, str] | None = None,
    **joined: type[Model],
) -> list[M]:
    """Return the rows of a table, `own`, that `condition` chooses and orders, or those of the subquery `rows`
    with its columns. `condition` joins `joined` under the names of the attributes that refer to them; what a
    left join does not find is None. This takes a quarter of what the ORM does: without its signals, which
    nobody listens to, and without a call for each field. `computed` has SQL for further attributes, as the
    ORM's annotations."""
    tables: dict[str, type[Model]] = {"own": model, **joined}
    parts: list[tuple[Any, ...]] = []
    columns: list[str] = []
    for name, kind in tables.items():
        names, own, readers = _columns(kind)
        parts.append((name, kind, len(columns), names, readers))
        columns += [f'{name}."{column}"' for column in own]
    computed, start_of_computed = computed or {}, len(columns)
    columns += computed.values()
    table = f"({rows})" if rows else model._meta.db_table
    statement = f"SELECT {', '.join(columns)} FROM {table} own {condition}"  # noqa: S608 — tables of ours  # nosec B608
    found: list[M] = []
    before: dict[str, tuple[int, Model]] = {}  # what the row before refers to: neighbours often share it
    database = connections[DEFAULT_DB_ALIAS]  # what `connection` looks up at every use
    for row in fetch_tuples(statement, params):
        for name, kind, start, names, readers in parts:
            if name != "own" and row[start] is None:  # its primary key
                found[-1]._state.fields_cache[name] = None
                continue
            if name in before and before[name][0] == row[start]:
                found[-1]._state.fields_cache[name] = before[name][1]
                continue
            made = kind.__new__(kind)
            values = made.__dict__
            values.update(zip(names, row[start : start + len(names)], strict=True), _state=ModelState())
            made._state.adding, made._state.db = False, DEFAULT_DB_ALIAS
            for attribute, read in readers:
                values[attribute] = read(values[attribute], None, database)
            if name == "own":
                found.append(made)
            else:
                found[-1]._state.fields_cache[name] = made
                before[name] = row[start], made
        if computed:
            found[-1].__dict__.update(zip(computed, row[start_of_computed:], strict=True))
    return found


def attach(rows: Iterable[Model], name: str, found: Mapping[int, Model]) -> None:
    """Give rows what their foreign key `name` refers to, at a fifth of what assignment takes for checks."""
    for row in rows:
        row._state.fields_cache[name] = found.get(getattr(row, f"{name}_id"))


def int_array(numbers: Iterable[int]) -> str:
    """Return an array in PostgreSQL's own words, which costs less than a parameter for each element."""
    return f"{{{','.join(map(str, numbers))}}}"


def fetch_columns(columns: Sequence[str], rows: str, params: Mapping[str, Any]) -> list[NDArray[Any]]:
    """Return columns, of numbers without NULL or of times in µs since 2000, from a table or subquery. An
    element costs a hundredth of what it costs as a part of a row."""
    arrays = ", ".join(f"array_send(array_agg({column}))" for column in columns)
    statement = f"SELECT {arrays} FROM {rows}"  # noqa: S608 — columns of ours  # nosec B608
    (row,) = fetch_tuples(statement, params, binary=True)
    return [numbers_of(column) for column in row]


def numbers_of(array: bytes | None) -> NDArray[Any]:
    """Return a one-dimensional array of PostgreSQL's binary format, as `array_send` writes it: dimensions,
    whether there are NULLs, the elements' type, length and lower bound, then each element after its own
    length."""
    if array is None or len(array) == 12:  # no dimension
        return np.empty(0, np.int64)
    _dimensions, nulls, kind, length, _bound = np.frombuffer(array, ">i4", 5)
    if nulls:
        raise ValueError("an array of numbers holds NULL")
    element = _ELEMENTS[int(kind)]
    found = np.frombuffer(array, [("length", ">i4"), ("value", element)], int(length), offset=20)["value"]
    return found.astype(element[1:])


def since_epoch_us(time: datetime) -> int:
    """Return a time as PostgreSQL's binary format has it, in µs since 2000."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_epoch_us(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)
