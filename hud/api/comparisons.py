"""Outcomes of runs, comparisons of runs and of two points kernel by kernel, proven choices, and kernels
to run alone."""

import threading
import time
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.experiments import stream_of
from hud.api.schemas import ANSWER, Error, Filter, of_table
from hud.judging import proven_choices
from hud.judging.compare import ab_runs, text
from hud.judging.compare.query import Filters, read
from hud.judging.kernels import changes
from hud.models import ACTIVE, Run
from hud.points.kernels import largest
from hud.problems import row_of
from runner.schema.replay import MOST_KERNELS

router = Router(tags=["reading"])
_WAITING = threading.Lock()  # of one request in a process, whose threads are few
_LOOK_S = 0.5


class _CompareQuery(Filter):
    base: str = Field(
        max_length=300,
        description="run:12, commit:abc123, latest:main or night:DAY; arch:, backend:, dtype:, torch:, host:,"
        " branch: and stream: with a name; several joined by commas",
    )
    head: list[str] = Field(min_length=1, max_length=3, description="as base; repeated for up to three")
    metric: str = Field("", max_length=200, description="else of each experiment the most telling")
    suite: str = Field("", max_length=60)
    arch: str = Field("", max_length=100)
    mode: str = Field("", max_length=40)
    dtype: str = Field("", max_length=40)
    stream: str = Field("", max_length=60, description="of commits, branches, hosts and days; else the front")
    verdict: Literal["", "regressed", "improved", "failed", "inconclusive", "unchanged"] = ""
    format: Literal["json", "md"] = "json"
    pairs: bool = Field(
        False, description="1: items that moved or are undecided say which host can compare both builds"
    )


class CompareOut(Schema):
    stream: str
    across: list[str] = Field(description="what the sides differ in, by whose rest they are matched")
    base: dict[str, Any]
    head: dict[str, Any] = Field(description="the first candidate")
    counts: dict[str, Any] = Field(description="its experiments: matched, on one side only, by verdict")
    totals: dict[str, Any] = Field(description="all together: passing, means and a sum with intervals")
    aggregates: list[dict[str, Any]] = Field(description="its suites and backends, with 95 % intervals")
    heads: list[dict[str, Any]] = Field(description="each candidate with its counts, totals and aggregates")
    environment: list[dict[str, Any]] = Field(description="the facts that differ")
    items: list[dict[str, Any]] = Field(description="experiments: movers first, then the rest")


@router.get(
    "/compare",
    response={200: CompareOut, (400, 404): Error},
    openapi_extra={"responses": {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}},
)
def get_compare(request: HttpRequest, given: Query[_CompareQuery]) -> Any:
    """Compare runs: matched cohort, a verdict for each experiment, aggregates with their 95 % interval. What
    another card, host or environment may have caused is inconclusive, with that as its reason. Sides `across`
    archs, backends, dtypes or hosts are matched by the rest; `regressed` and `improved` then mean worse and
    better."""
    sides = {"base", "head", "stream", "format", "pairs"}
    filters = Filters(**given.model_dump(exclude=sides))
    page = read(given.base, given.head, filters, stream_of(given.stream))
    if given.format == "md" or given.pairs:
        rows = text.shown(page, everything=given.pairs)
    if given.format == "md":
        return HttpResponse(text.markdown(page, rows), content_type="text/markdown; charset=utf-8")
    return {**page.to_json(), "items": page.to_rows()}


class RunResultOut(Schema):
    model_config = ANSWER
    state: str
    verdict: str | None = Field(description="the worst of all; null until the run has ended and is judged")
    pairs: int = Field(description="draws or pairs, the most of an experiment of an A/B run")
    verdicts: list[dict[str, Any]] = Field(
        description="of an A/B run's experiments: `code` and `choice` (confirmed, dismissed, inconclusive),"
        " kernels of one side alone, share of the time at equal choices; null without known kernels"
    )


class _ResultQuery(Filter):
    wait: int = Field(0, ge=0, le=60, description="seconds to wait for the end of the run")


@router.get("/runs/{int:run_id}/result", response=RunResultOut, tags=["runs"])
def get_result(request: HttpRequest, run_id: int, given: Query[_ResultQuery]) -> dict[str, Any]:
    """Get what came of a run. With `wait` the answer comes when it has ended, or when the time is over; at
    once where others wait."""
    run, until = row_of(Run, run_id), time.monotonic() + given.wait
    if given.wait and _WAITING.acquire(blocking=False):
        try:
            while run.state in ACTIVE and time.monotonic() < until:
                time.sleep(_LOOK_S)
                run.refresh_from_db(fields=["state"])
        finally:
            _WAITING.release()
    return ab_runs.result_of(run)


class _SidesQuery(Filter):
    base: str = Field(
        max_length=300, description="run:12/experiment:5, with /compilation:2 for one of several"
    )
    head: str = Field(
        max_length=300, description="as base; also commit:HASH/…, latest:BRANCH/… and night:DAY/…"
    )
    stream: str = Field("", max_length=60, description="of commits, branches and nights; else the front one")


@of_table(changes.POINT)
class AttributionSideOut(Schema):
    """A point with its compilations."""


@of_table(changes.TIMES)
class BusyTimeOut(Schema):
    """Means over the compilations, in µs of a step: kernels - overlap = busy."""


class KernelCauseOut(Schema):
    change_us: float
    share: float | None


@of_table(changes.KERNELS)
class KernelChangeOut(Schema):
    """A kernel, or the part of it that has this cause. `group`: moved work that shares operators."""


@of_table(changes.TOTALS)
class AttributionOut(Schema):
    stream: str
    base: AttributionSideOut
    head: AttributionSideOut
    totals: dict[str, BusyTimeOut]
    causes: dict[str, KernelCauseOut]
    environment: list[str]
    graph: dict[str, list[dict[str, Any]]]
    compile: dict[str, Any]
    lines: list[dict[str, Any]] = Field(description="of source, with the time of their kernels")
    kernels: list[KernelChangeOut]


@router.get("/attribution", response={200: AttributionOut, 404: Error})
def get_attribution(request: HttpRequest, given: Query[_SidesQuery]) -> dict[str, Any]:
    """Get what changed between two points: kernels with their cause and share of the change of busy time,
    environment, graph facts and compile time."""
    page = changes.read(given.base, given.head, stream_of(given.stream), with_code=False)
    return {**page.to_json(), "kernels": page.to_rows()}


class _ChoicesQuery(Filter):
    arch: str = Field("", max_length=100, description="arch, torch and triton: else of the most experiments")
    torch: str = Field("", max_length=100)
    triton: str = Field("", max_length=100)
    suite: str = Field("", max_length=60)
    backend: str = Field("", max_length=100)
    stream: str = Field("", max_length=60)


class ChoicesOut(Schema):
    stream: str
    arch: str
    torch: str
    triton: str
    items: list[dict[str, Any]] = Field(description="experiments: what the draw costs, what is returned")
    slots: list[dict[str, Any]] = Field(description="with all choices; `best` is the proven one, or null")


@router.get("/choices", response={200: ChoicesOut, 404: Error})
def get_choices(request: HttpRequest, given: Query[_ChoicesQuery]) -> dict[str, Any]:
    """Get the choices of the autotuner on an arch with one torch and Triton, and which are proven."""
    stream = stream_of(given.stream)
    filters = proven_choices.LedgerFilters(**given.model_dump(exclude={"stream"}))
    return {"stream": stream.name, **proven_choices.read(filters, stream).to_json()}


class _KernelsQuery(Filter):
    arch: str = Field("", max_length=100)
    stream: str = Field("", max_length=60)
    limit: int = Field(MOST_KERNELS, ge=1, le=MOST_KERNELS)


class StoredKernelsOut(Schema):
    stream: str
    arch: str
    items: list[dict[str, Any]] = Field(description="with `code`; time and bytes are of one call")


@router.get("/kernels", response={200: StoredKernelsOut, 404: Error})
def get_kernels(request: HttpRequest, given: Query[_KernelsQuery]) -> dict[str, Any]:
    """Get the kernels of an arch that take the most time, as `runner run kernels --file FILE` takes them."""
    stream = stream_of(given.stream)
    items = largest(stream, given.arch, given.limit)
    return {"stream": stream.name, "arch": given.arch, "items": items}
