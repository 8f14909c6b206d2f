"""Export of results: v3 records that ingestion reads back as the same rows, flat rows as JSON or CSV.

Rows are read through a server-side cursor and written as they come, so an export of any size takes
bounded memory. `exported` reads what the v3 export adds.
"""

import csv
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import orjson
from django.db import connection, transaction

from hud.ingest.compilations import METRIC
from hud.models import STATUS_NAMES, Compilation, kernels_of, words_are_reason
from hud.runs.branches import stored_names
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement, RunKey, info_of
from runner.formats.parameters import PLAUSIBLE, parse_time
from runner.formats.scalars import branch_name
from runner.schema.compilations import COMPILED, Compiled
from runner.schema.draws import MAX_DRAWS
from runner.schema.records import Benchmark, Environment, Metric, Model, Record

FORMATS = {
    "v3": "application/x-ndjson",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_PIECE = 2000  # rows read at a time
_COMPUTED = {
    "process": "CASE WHEN r.base_interpreter <> '' THEN 2 * m.repeat + m.side ELSE m.repeat END",
    "place": "ARRAY[m.run_id, s.experiment_id, m.environment_id, m.repeat, m.side]",
}
# in their order: a column of a table in `_JOINS`, under its own name or `name=`; or one of `_COMPUTED`
_DECLARED = """
    x.suite x.case x.knobs x.mode x.dtype x.backend x.device x.arch x.dynamic metric=k.name k.unit k.direction
    m.value m.samples m.spread m.n m.status m.code m.target m.target_arch words=m.note m.quality process
    m.draw m.compilation stream=t.name run=r.id r.uid at=m.order_time run_at=r.order_time
    at_source=r.order_time_source r.source r.external_id host=r.host_name r.commit r.branch r.repo
    environment=r.interpreter base_environment=r.base_interpreter e.facts place
"""
COLUMNS = {
    name.rpartition(".")[2]: _COMPUTED.get(name) or column or name
    for name, _sign, column in (part.partition("=") for part in _DECLARED.split())
}
FILTERS = COLUMNS | {"experiment": "x.id"}  # what an export may be narrowed by, each with its column
SERIES = """hud_series s JOIN hud_stream t ON t.id = s.stream_id
    JOIN hud_experiment x ON x.id = s.experiment_id JOIN hud_metric k ON k.id = s.metric_id"""
_IDENTITY = ("suite", "case", "knobs", "mode", "dtype", "backend", "device", "arch", "dynamic", "metric")
_NOT_FLAT = {"samples", "facts", "uid", "external_id", "words", "place", "run_at"}
FLAT = [name for name in COLUMNS if name not in _NOT_FLAT]
_WIDE = (*_IDENTITY[:-1], "stream", "run", "at", "source", "host", "commit", "branch", "rerun")
_WIDE_COLUMNS = {**COLUMNS, "rerun": "m.rerun"}
_FORMULA = ("=", "+", "-", "@", "\N{MINUS SIGN}")
_ADDED = "/benchmark/extra_info/hud"
_Text = Annotated[str, msgspec.Meta(max_length=200)]


def export(file_format: str, filters: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield an export in pieces, oldest run first. `filters` hold names of `FILTERS`."""
    if file_format == "parquet":
        from hud.ingest.parquet import export_parquet  # noqa: PLC0415 - pyarrow takes 40 MB of a process

        yield from export_parquet(filters)
        return
    if file_format == "v3":
        for piece in _pieces(filters):
            compiled = _compiled(piece)
            for row in piece:
                written = record_of(row).to_json()
                if row["metric"] == METRIC and (compilation := compiled.get(tuple(row["place"]))):
                    written["metric"]["extra_info"][COMPILED] = compilation.to_json()
                yield orjson.dumps(written) + b"\n"
        return
    rows = chain.from_iterable(_pieces(filters))
    if file_format == "csv":
        yield _csv_line([*FLAT, "reason", "warning", "torch"])
        yield from (_csv_line(map(csv_cell, _flat(row).values())) for row in rows)
        return
    yield b'{"items":['
    for index, row in enumerate(rows):
        yield (b",\n" if index else b"\n") + orjson.dumps({**_flat(row), "samples": row["samples"]})
    yield b"\n]}\n"


def export_wide(filters: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield one line for each experiment of a run, as CSV, with a column for the value of each
    metric; it is empty where there is none. A/B runs are left out: they have two values."""
    condition, params = condition_of(filters)
    lines: dict[tuple[Any, ...], dict[str, float | None]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT m.environment_id, k.name, m.value, {", ".join(_WIDE_COLUMNS[name] for name in _WIDE)}
            FROM hud_point m {_JOINS} WHERE {condition}
            ORDER BY m.run_id, s.experiment_id, m.order_time, m.environment_id
            """,  # noqa: S608 — columns and names are constants of this module  # nosec B608
            params,
        )
        for environment, metric, value, *line in cursor:
            lines.setdefault((environment, *line), {})[metric] = value
    metrics = sorted({metric for values in lines.values() for metric in values})
    yield _csv_line([*_WIDE, *map(inert, metrics)])
    for (_environment, *line), values in lines.items():
        shown = dict(zip(_WIDE, line, strict=True))
        shown["knobs"] = orjson.loads(shown["knobs"])
        yield _csv_line([*map(csv_cell, shown.values()), *map(values.get, metrics)])


# of a row m of measurements or points
_JOINS = f"JOIN ({SERIES}) ON s.id = m.series_id JOIN hud_run r ON r.id = m.run_id"
# The measurements of an experiment, whose runs its points tell. OFFSET 0: one look-up by the key for each.
_OF_EXPERIMENT = """(
    SELECT m.* FROM (
        SELECT p.run_id, p.series_id FROM hud_series s JOIN hud_point p ON p.series_id = s.id
        WHERE s.experiment_id = %(experiment)s
        UNION SELECT p.run_id, p.series_id FROM hud_series s JOIN hud_sidepoint p ON p.series_id = s.id
        WHERE s.experiment_id = %(experiment)s
    ) wanted CROSS JOIN LATERAL (
        SELECT * FROM hud_measurement WHERE run_id = wanted.run_id AND series_id = wanted.series_id OFFSET 0
    ) m
)"""


def condition_of(filters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    wanted = [f"{FILTERS[name]} = %({name})s" for name in filters if name != "branch"]
    params = dict(filters)
    if "branch" in filters:
        params["branch"] = stored_names(branch_name(filters["branch"]))
        wanted.append("r.branch = ANY(%(branch)s)")
    return " AND ".join(wanted) or "true", params


def _pieces(filters: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    condition, params = condition_of(filters)
    statement = f"""
        SELECT {", ".join(COLUMNS.values())}
        FROM {_OF_EXPERIMENT if "experiment" in filters else "hud_measurement"} m {_JOINS}
        JOIN hud_environment e ON e.id = m.environment_id
        WHERE {condition}
        ORDER BY m.run_id, m.series_id, m.environment_id, m.repeat, m.side
    """  # noqa: S608 — columns and names are constants of this module  # nosec B608
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute(statement, params)
        while rows := cursor.fetchmany(_PIECE):
            piece = [dict(zip(COLUMNS, values, strict=True)) for values in rows]
            for row in piece:  # Django has psycopg hand jsonb over as text
                row |= {"knobs": orjson.loads(row["knobs"]), "facts": orjson.loads(row["facts"])}
            yield piece


def _compiled(rows: list[dict[str, Any]]) -> dict[tuple[int, ...], Compiled]:
    """Return the compilations of the rows whose records have them, by place; 3 queries."""
    places = {tuple(row["place"]) for row in rows if row["metric"] == METRIC}
    if not places:
        return {}
    runs, experiments = ({key[part] for key in places} for part in (0, 1))
    stored = Compilation.objects.filter(run__in=runs, experiment__in=experiments)
    wanted = [compilation for compilation in stored if compilation.pk in places]
    kernels = kernels_of(wanted)
    return {compilation.pk: compilation.compiled(kernels) for compilation in wanted}


def record_of(row: Mapping[str, Any]) -> Record:
    """Return the v3 record of one measurement; ``benchmark.extra_info.hud`` says what that shape cannot."""
    environment = Environment(**row["facts"])
    where = environment.to_record_fields(row["host"])
    run = {name: row[name] for name in ("uid", "source", "external_id", "host", "commit", "branch", "repo")}
    run |= {name: row[name] for name in ("environment", "base_environment") if row[name]}
    run |= {"uid": str(row["uid"]), "at": row["run_at"].isoformat(), "at_source": row["at_source"]}
    names = ("code", "quality", "target_arch", "unit", "direction", "compilation")
    more = {name: row[name] for name in names} | {"status": STATUS_NAMES[row["status"]], **_words(row)}
    place = {name: row[name] for name in ("process", "draw") if row[name] is not None}
    alone = [] if row["value"] is None else [row["value"]]
    return Record(
        benchmark=Benchmark(
            name=f"Compiler HUD {row['suite']}",
            mode=row["mode"],
            dtype=row["dtype"],
            extra_info={
                **{name: row[name] for name in ("device", "arch", "dynamic", "knobs")},
                "hud": {**{name: row[name] for name in _IDENTITY}, **place, "run": run},
            },
        ),
        model=Model(name=row["case"], backend=row["backend"], origins=[row["suite"]]),
        metric=Metric(
            name=row["metric"],
            benchmark_values=row["samples"] or alone,
            target_value=row["target"],
            extra_info={name: value for name, value in more.items() if value is not None},
        ),
        runners=where["runners"],
        dependencies=where["dependencies"],
        timestamp=row["at"].timestamp(),
        head_sha=row["commit"] or None,
        head_branch=row["branch"] or None,
        repo=row["repo"] or None,
    )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in FLAT}
    return {**shown, **_words(row), "status": STATUS_NAMES[row["status"]], "torch": row["facts"]["torch"]}


def _words(row: Mapping[str, Any]) -> dict[str, str | None]:
    is_reason = words_are_reason(row["status"], row["value"])
    return {"reason": row["words"] if is_reason else None, "warning": None if is_reason else row["words"]}


_echo: Any = SimpleNamespace(write=str.encode)  # a file that hands each line back, which `csv.writer` returns
_csv_line = csv.writer(_echo).writerow


def inert(text: str) -> str:
    """Put a quote before a text that a spreadsheet would take for a formula (OWASP ASVS 1.2.10), also behind
    space or in full width."""
    start = unicodedata.normalize("NFKC", text.lstrip()[:1])
    return f"'{text}" if start.startswith(_FORMULA) or text.startswith(("\t", "\r", "\n")) else text


def csv_cell(value: Any) -> Any:
    """Return a value as CSV has it: numbers as they are, times in ISO 8601, lists and objects as JSON, and no
    text that a spreadsheet would run."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    return inert(value if isinstance(value, str) else orjson.dumps(value).decode())


# Records of our own export: `benchmark.extra_info.hud` has the stored identity and the run. It wins over all
# other fields, so that ingesting an export gives the same rows.


class ExportedRun(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The run that an exported measurement belongs to."""

    uid: UUID
    at: str  # ISO 8601; the run's position in every series
    at_source: Literal["commit", "run", "upload"]
    source: _Text = ""
    external_id: _Text | None = None
    host: _Text = ""
    commit: _Text = ""
    branch: _Text = ""
    repo: _Text = ""
    environment: _Text = ""
    base_environment: _Text = ""  # of an A/B comparison

    def key(self, time: datetime | None) -> RunKey:
        at = parse_time(self.at)
        return RunKey(
            source=self.source[:100],
            external_id=self.external_id,
            host=self.host,
            commit=self.commit[:64],
            branch=branch_name(self.branch),
            repo=self.repo,
            order_time=at,
            order_time_source=self.at_source,
            uid=str(self.uid),
            interpreter=self.environment[:60],
            base_interpreter=self.base_environment[:60],
            point_time=None if time == at else time,
        )


class Exported(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The stored identity of an exported measurement, and its run."""

    suite: str
    case: str
    metric: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool
    process: Annotated[int, msgspec.Meta(ge=0, lt=2**15)] = 0  # of an A/B run: 2 * repeat + side
    draw: Annotated[int, msgspec.Meta(ge=0, lt=2 * MAX_DRAWS)] | None = None
    run: ExportedRun | None = None

    def fill(self, measurement: ParsedMeasurement, time: datetime | None) -> None:
        """Complete a measurement; `time` is its record's, which in a history is not that of its run."""
        for name in (*_IDENTITY, "draw"):
            setattr(measurement, name, getattr(self, name))
        if self.run:
            measurement.run = self.run.key(time)
        is_ab = measurement.run.base_interpreter
        measurement.repeat, measurement.side = divmod(self.process, 2) if is_ab else (self.process, 0)


def exported(record: Record) -> Exported | None:
    """Return what our export added, None for other records. Raise WrongRecord if it is incomplete."""
    value = info_of(record).get("hud")
    if not isinstance(value, dict):
        return None
    try:
        added = msgspec.convert(value, Exported)
    except msgspec.ValidationError as error:
        detail, _at, path = str(error).partition(" - at `$")
        raise WrongRecord(_ADDED + path.rstrip("`").replace(".", "/"), detail) from error
    if added.run and parse_time(added.run.at) is None:
        raise WrongRecord(f"{_ADDED}/run/at", f"a time such as 2026-11-21T07:52:00Z, {PLAUSIBLE}")
    return added
