"""A series over the API: every point with its compilations, target and verdict."""

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from django.views.decorators.http import conditional_page
from ninja import Path, Query, Router
from ninja.decorators import decorate_view
from ninja.schema import Schema
from pydantic import Field

from hud.api.cursors import PointCursor, cursor_to
from hud.api.experiments import stream_of
from hud.api.schemas import ANSWER, of_table, parameter
from hud.models import Compilation, Point, Run, Series, kernels_of
from hud.points import expectations, streams
from hud.points.read import with_levels
from hud.points.targets import Targets
from hud.problems import Problem
from hud.runs.branches import branch_or_default, stored_names
from hud.sql import fetch_models
from hud.tables.table import DataTable
from runner.formats.scalars import branch_name
from runner.schema.compilations import Kernel

router = Router(tags=["reading"])
MAX_POINTS = 2000  # of one page
_COMPILATION = DataTable[Compilation](
    "variant:str run:int=run_id experiment:int=experiment_id time=order_time busy_us:float|None"
)
_CACHED = {"parameters": [parameter("header", "If-None-Match", "an ETag of an earlier answer")]}


class _SeriesQuery(Schema):
    stream: str = Field("", max_length=60)
    branch: str = Field("", max_length=200)
    since: date | None = Field(None, alias="from")
    until: date | None = Field(None, alias="to")
    cursor: PointCursor = ""


class CompilationOut(Schema):
    """The value of one compilation from `n` samples. `variant` is null where its kernels are not known."""

    variant: str | None
    value: float
    n: int


def _compilations(point: Point) -> list[dict[str, Any]]:
    """Return each compilation that gave a value; the variant is None where its kernels are not known."""
    values = point.compilation_values
    variants = point.variants or list[str | None]([None] * len(values))
    counts = point.counts or [point.samples]
    return [
        {"variant": variant, "value": value, "n": n}
        for variant, value, n in zip(variants, values, counts, strict=True)
        if value is not None
    ]


_POINT = DataTable[Point](  # all but its stream, which is the series'
    """run:int=run_id time:str commit:str=run.commit branch:str value:float|None n:int=samples status:str
    code:str|None quality:str|None target:float|None target_arch:str|None target_met:bool|None
    verdict:str|None=verdict? level:float|None level_stream:str|None expectation:str|None=expectation?
    known_failure:str|None=known_failure? change:float|None noise:float|None rerun:bool
    source:str=run.source processes:int compilations""",
    time=lambda point: point.order_time.isoformat(),
    branch=lambda point: branch_or_default(point.branch),
    level_stream=lambda point: point.level_stream and point.level_stream.name,  # null: its own
    target=lambda point: point.own_target.value if point.own_target else point.target,
    target_arch=lambda point: None if point.own_target else point.target_arch,
    target_met=lambda point: {"met": True, "missed": False}.get(point.met),
    compilations=_compilations,
)


@of_table(_POINT)
class PointOut(Schema):
    stream: str
    compilations: list[CompilationOut]


class SeriesOut(Schema):
    unit: str
    direction: str
    points: list[PointOut]
    next: str | None


@router.get(
    "/series/{int:experiment}/{path:metric}", response={200: SeriesOut, 304: None}, openapi_extra=_CACHED
)
@decorate_view(conditional_page)
def get_series(
    request: HttpRequest, experiment: int, metric: str, given: Query[_SeriesQuery]
) -> dict[str, Any]:
    """Get the points of a series, ordered by commit date, then run time: the latest ones, and by `next` as
    `cursor` those before them. `from` and `to` are days, both included. A point is a run; its value is the
    median over its compilations. Without `stream`: the front stream, or the one with the newest point."""
    known = experiment < 2**31 and "\0" not in metric
    stream = stream_of(given.stream)
    if known and not given.stream:
        stream = streams.with_experiments([experiment], stream)
    found = Series.objects.select_related("experiment", "metric", "stream")
    found = found.filter(experiment=experiment, metric__name=metric, stream=stream) if known else found.none()
    series = found.first()
    if series is None:
        detail = f"experiment {experiment} has no metric {metric[:200]!r} in the stream {stream}"
        raise Problem(404, detail)
    time, run, environment = given.cursor or (None, None, None)
    branch = branch_name(given.branch)
    newest_first = fetch_models(
        Point,
        """
        JOIN hud_run run ON run.id = own.run_id
        WHERE own.series_id = %(series)s
            AND (%(branches)s::text[] IS NULL OR own.branch = ANY(%(branches)s))
            AND (%(since)s::date IS NULL OR own.order_time >= %(since)s::date)
            AND (%(until)s::date IS NULL OR own.order_time < %(until)s::date + 1)
            AND (%(time)s::timestamptz IS NULL OR (own.order_time, own.run_id, own.environment_id)
                < (%(time)s::timestamptz, %(run)s::int, %(environment)s::int))
        ORDER BY own.order_time DESC, own.run_id DESC, own.environment_id DESC LIMIT %(limit)s
        """,
        {
            "series": series.pk,
            "branches": stored_names(branch) if branch else None,
            "since": given.since,
            "until": given.until,
            "time": time,
            "run": run,
            "environment": environment,
            "limit": MAX_POINTS + 1,
        },
        run=Run,
    )
    targets = Targets.read()
    page = with_levels(newest_first[:MAX_POINTS][::-1])
    for point in page:
        point.show(series.experiment, series.metric, targets)
    expectations.add(series.stream_id, page)
    first = page[0] if len(newest_first) > MAX_POINTS else None
    return {
        "unit": series.metric.unit,
        "direction": series.metric.direction,
        "points": [{"stream": series.stream.name, **_POINT.row(point)} for point in page],
        "next": first and cursor_to(first.order_time, first.run_id, first.environment_id),
    }


@of_table(_COMPILATION)
class VariantOut(Schema):
    """The kernels of a variant in its newest compilation, which is of this run and experiment."""

    model_config = ANSWER
    compilations: int
    time: datetime
    kernels: list[Kernel]


_Variant = Annotated[str, Path(..., pattern=r"^[0-9a-f]{16}$")]


@router.get("/variants/{variant}", response=VariantOut)
def get_variant(request: HttpRequest, variant: _Variant) -> dict[str, Any]:
    """Get the kernels of a variant, which is the fingerprint of a compilation's choices, as `compilations` of
    a series name it."""
    rows = Compilation.objects.filter(variant=variant)
    newest = rows.order_by("-order_time", "-run", "-repeat").first()
    if newest is None:
        raise Problem(404, f"no compilation has the variant {variant!r}")
    compiled = newest.compiled(kernels_of([newest]))
    return {**_COMPILATION.row(newest), "compilations": rows.count(), "kernels": compiled.kernels}
