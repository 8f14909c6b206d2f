"""Runs over the API: request, watch and cancel them, read logs and artifacts."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime
from typing import Annotated, Any, Literal

from django.db import transaction
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router, Schema, Status
from pydantic import Field

from hud.accounts.keys import effective_scopes, request_of
from hud.accounts.limits import RUNS
from hud.api.administration import DELETED, deletion_answer
from hud.api.auth import caller_key, check_may_delete, who
from hud.api.cursors import IdCursor, cursor_to
from hud.api.experiments import stream_of
from hud.api.schemas import (
    ANSWER,
    Error,
    Filter,
    Items,
    MatrixBody,
    StrictBody,
    file_answer,
    of_table,
    parameter,
)
from hud.corrections import background
from hud.corrections.deletion import uploads_of
from hud.hosts.registration import visible_accelerators
from hud.judging.comparison import plan_of
from hud.models import (
    Aliases,
    Artifact,
    Experiment,
    Host,
    IdempotencyKey,
    Run,
    RunClass,
    State,
    Task,
    Upload,
)
from hud.problems import Problem, row_of
from hud.runs import lines, logs, overlays, requests, streams, tasks
from hud.runs.lines import ARTIFACT, artifacts_of, tasks_of
from hud.runs.matching import ResourceRequest
from hud.runs.queue import QueuedRun, progress_of, read_waiting
from hud.runs.requests import RunOptions
from hud.tables.table import DataTable
from runner.formats.errors import Fault
from runner.formats.scalars import branch_name
from runner.schema.draws import LEAST_DRAWS, MAX_DRAWS
from runner.schema.protocol import overlay_of
from runner.schema.suite import BadRequest
from runner.schema.tasks import Caches, Replication, Selection

router = Router(tags=["runs"])
_MAX_LOG_PIECE_BYTES = 512 * 1024
_REF = r"^([0-9A-Za-z][0-9A-Za-z._/-]{0,199})?$"
_LOG_TYPE = "text/plain; charset=utf-8"
_COLUMNS = DataTable("""id:int=pk state:str stream:str=stream.name reason:str host:str=host_name commit:str
    pull_request:int|None=request_or_empty.pull_request retry_of:int|None=request_or_empty.retry_of_id""")
_PROGRESS = DataTable("done:int total:int eta_s:float|None")
_IDEMPOTENCY_KEY = parameter("header", "Idempotency-Key", "the same request gets its run", maxLength=200)
_PLAN = DataTable("""cases:list[str] left_out:list[dict[str,str]] tasks:int processes:int
    seconds:float|None queue_position:int|None starts_in_s:float|None stream:str pairs:int|None
    detects_percent:float|None power:float|None noise_assumed:bool|None""")
_PLACE = DataTable("queue_position:int|None=position starts_in_s:float|None")


class OverlayIn(StrictBody):
    """A commit of a mirror, or a patch on it, by default on the commit of the interpreter's torch."""

    ref: str = Field("", pattern=_REF)
    patch: str = Field("", max_length=overlays.MOST_PATCH_CHARS, description="a unified diff")


class RunIn(MatrixBody):
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)
    suite: str = Field("", max_length=60)
    host: str = Field("", max_length=100)
    arch: str = Field("", max_length=100)
    device: str = Field("", max_length=20)
    base_environment: str = Field("", max_length=60)
    new_options: dict[
        Annotated[str, Field(max_length=100)], bool | int | float | Annotated[str, Field(max_length=100)]
    ] = Field({}, max_length=64)
    knobs: dict[str, bool | int | str | list[int] | None] | None = Field(None, max_length=64)
    repeats: int | None = Field(None, ge=1, le=20)
    draws: int | None = Field(None, ge=LEAST_DRAWS, le=MAX_DRAWS)
    pairs: Annotated[int, Field(ge=1, le=MAX_DRAWS)] | Literal["auto"] = "auto"
    caches: Caches | None = None
    pinned: str = Field("", max_length=60)
    branch: str = Field("", max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
    preset: str = Field("", max_length=60, description="what it measures; `suite` and lists go first")
    commit: str = Field("", pattern=r"^[0-9A-Za-z._-]{0,64}$", description="else that of its torch")
    pull_request: int | None = Field(None, ge=1, le=2**31 - 1, description="its branch is else `pull/NUMBER`")
    run_class: RunClass = Field("person", alias="class", description="who waits: served in this order")
    overlay: OverlayIn | None = Field(None, description="see below")


class _StartQuery(Filter):
    dry_run: bool = Field(False, description="1: answer the plan, and request nothing")


@of_table(_PLAN)
class PlanOut(Schema):
    """The plan of a run: `seconds` of all its processes, where each kind of task has run before; of an A/B
    run the most `pairs`; at equal choices the smallest change that is confirmed in 95 %, the share of such
    comparisons that confirm one of 3 %, and whether no noise is stored of what is compared. Else null."""

    model_config = ANSWER


@of_table(DataTable(*_COLUMNS.columns, *_PROGRESS.columns, *_PLACE.columns))
class RunOut(Schema):
    model_config = ANSWER
    waiting: QueuedRun | None


class _RunsQuery(Filter):
    stream: str = Field("", max_length=60)
    suite: str = Field("", max_length=60)
    arch: str = Field("", max_length=100)
    host: str = Field("", max_length=100, description="a part of its name")
    branch: str = Field("", max_length=200)
    commit: str = Field("", max_length=130, description="the beginning of one, or old..new")
    pull_request: int | None = Field(None, ge=1, le=2**31 - 1)
    source: str = Field("", max_length=100)
    state: str = Field("", pattern=f"^({'|'.join(State)})?$")
    kind: str = Field("", pattern=f"^({'|'.join(lines.KINDS)})?$")
    since: date | None = Field(None, description="the first day (UTC) on which it was made")
    until: date | None = Field(None, description="the last one")
    cursor: IdCursor = ""
    limit: int = Field(100, ge=1, le=500)


@of_table(DataTable("id:int=run.pk", *lines.COLUMNS.columns[1:]))
class ListedRunOut(Schema):
    """A run with what was requested and how many of its tasks have ended."""

    model_config = ANSWER
    created: datetime
    started: datetime | None
    finished: datetime | None


class RunsOut(Items[ListedRunOut]):
    next: str | None


@router.get("/runs", response={200: RunsOut, 404: Error})
def get_runs(request: HttpRequest, given: Query[_RunsQuery]) -> dict[str, Any]:
    """List the runs that match all filters, newest first; `next` is the cursor of the next page. Runs that
    are made meanwhile move nothing."""
    if given.stream:
        stream_of(given.stream)
    runs, _unknown = lines.matching(given.model_dump(exclude={"cursor", "limit"}))
    if given.cursor:
        runs = runs.filter(pk__lt=given.cursor)
    ids = list(runs.order_by("-pk").values_list("pk", flat=True)[: given.limit + 1])
    page = ids[: given.limit]
    items = [{"id": line.run.pk, **lines.COLUMNS.row(line)} for line in lines.read(page)]
    return {"items": items, "next": cursor_to(page[-1]) if len(ids) > given.limit else None}


@router.post(
    "/runs",
    response={200: PlanOut, 201: RunOut, (403, 404, 409): Error},
    openapi_extra={"parameters": [_IDEMPOTENCY_KEY]},
)
def post_run(
    request: HttpRequest, response: HttpResponse, given: RunIn, query: Query[_StartQuery]
) -> Status[dict[str, Any]]:
    """Request a rerun of an experiment or a run of a suite's cases.

    Each task is measured in `compilations` (fresh processes with empty caches), then in `repeats` - 1
    processes over the caches of the first. `pinned` names a compilation (`run:12/experiment:5/compilation:2`)
    whose choices of the autotuner are forced. `base_environment` makes it an A/B comparison at equal choices:
    `draws` are compiled on each side, and both sides are pinned to each of them, in `repeats` processes. With
    fresh `caches` it is `repeats` process pairs instead, which each compile both sides; with kept ones each
    side compiles once. `pairs` is the most draws or pairs; `auto` is the default. `new_options` are inductor
    options of the candidate, by default compared with the same environment without them. `knobs` replace an
    experiment's parameters (null: the suite's default); if they describe another experiment, the run belongs
    to that one. `overlay` names a commit of a mirror, or has a patch on one, whose Python files of torch's
    compiler are compared with the interpreter as it is, on hosts that allow it; it needs the scope `code`.
    """
    key, text = caller_key(request), request.headers.get("Idempotency-Key", "")
    RUNS.check(key.pk)
    _check_subject(given)
    with transaction.atomic(), ExitStack() as stack:
        if query.dry_run:
            plan = plan_of(_request(request, given, stack), given.suite, given.cases)
            transaction.set_rollback(True)
            return Status(200, plan)
        body = given.model_dump_json(by_alias=True).encode()
        content_key = hashlib.sha256(b"POST runs " + body).hexdigest()
        row, is_new = request_of(key, text, content_key) if text else (IdempotencyKey(), True)
        run = (
            _request(request, given, stack) if is_new else row_of(Run, row.receipt["run"], related="request")
        )
        if text and is_new:
            row.receipt = {"run": run.pk}
            row.save(update_fields=["receipt"])
    response["Idempotent-Replayed"] = "false" if is_new else "true"
    return Status(201, _run_out(run))


def _request(request: HttpRequest, given: RunIn, stack: ExitStack) -> Run:
    names = Aliases.read()
    host, arch = _host(names.current("host", given.host)), names.current("arch", given.arch)
    device, knobs = given.device, given.knobs or {}
    may_run_code = "code" in effective_scopes(caller_key(request))
    environment, base, commit = _sides(given, stack, may_run_code=may_run_code)
    if given.experiment is None and host is None and not device:
        named = {overlay_of(name)[0] for name in (environment, base) if name}
        there = (item for item in visible_accelerators() if arch in {"", item.arch})
        kinds = {item.device for item in there if named <= {*item.catalog.get("pythons", ())}}
        device = "cpu" if kinds == {"cpu"} else ""  # '' leaves the choice to the suite
    options = RunOptions(
        ResourceRequest(device, host, arch, given.labels, environment, base),
        who=who(request),
        replication=Replication(
            pairs=None if given.pairs == "auto" else given.pairs,
            **given.model_dump(include={"repeats", "compilations", "draws", "caches"}),
        ),
        pinned=given.pinned,
        candidate_options=given.new_options,
        branch=branch_name(given.branch),
        stream=streams.for_upload(given.stream, caller_key(request)) if given.stream else None,
        **given.model_dump(include={"run_class", "pull_request"}),
        commit=commit,
        may_run_code=may_run_code,
    )
    try:
        if given.experiment is not None:
            return requests.request_rerun(row_of(Experiment, given.experiment), options, knobs=knobs)
        chosen = {name: value for name, value in knobs.items() if value is not None}
        filters = given.model_dump(include={"cases", "modes", "dtypes", "backends"})
        selection = Selection(given.suite, device, **filters, knobs=chosen)
        return requests.request_suite(selection, options, preset=given.preset)
    except BadRequest as error:
        pointer = f"/knobs/{error.knob}" if error.knob in knobs else ""
        faults = [Fault(f"/new_options/{name}", problem) for name, problem in error.options.items()]
        raise Problem(422, str(error), errors=faults or [Fault(pointer, str(error))]) from error


def _sides(given: RunIn, stack: ExitStack, *, may_run_code: bool) -> tuple[str, str, str]:
    """Return the interpreters of candidate and baseline, and the commit. Raise Problem 403 or 422."""
    if given.overlay is None or not (given.overlay.ref or given.overlay.patch):
        return given.environment, given.base_environment, given.commit
    if not may_run_code:
        raise Problem(403, "this key has not the scope code")
    plain, patch = given.environment or requests.DEFAULT_INTERPRETER, given.overlay.patch
    able = (item for item in visible_accelerators() if given.host in {"", item.host.name})
    try:
        commit = overlays.commit_of(given.overlay.ref or overlays.torch_of(plain, able))
        if patch:
            commit = stack.enter_context(overlays.patched(commit, patch))
    except BadRequest as error:
        raise Problem(422, str(error), at=f"/overlay/{'patch' if patch else 'ref'}") from error
    return f"{plain}@{commit}", given.base_environment or plain, given.commit or commit


def _check_subject(given: RunIn) -> None:
    """Raise Problem 422 unless the body names either an experiment, or a suite or a preset."""
    if given.experiment is None and not (given.suite or given.preset):
        raise Problem(422, "say what to run: `experiment` with an id, or `suite` or `preset` with a name")
    if given.preset and given.knobs:
        raise Problem(422, "a preset has its own options", at="/knobs")
    for name in ("suite", "preset", "cases", "modes", "dtypes", "backends"):
        if given.experiment is not None and getattr(given, name):
            words = f"an experiment says itself what is run: leave out `{name}` or `experiment`"
            raise Problem(422, words, at=f"/{name}")


def _host(name: str) -> Host | None:
    host = Host.objects.filter(name=name).first() if name else None
    if name and host is None:
        known = ", ".join(Host.objects.filter(detached_at__isnull=True).values_list("name", flat=True))
        raise Problem(422, f"no host is called {name!r}; attached are: {known or 'none'}", at="/host")
    return host


@router.get("/runs/{int:run_id}", response=RunOut)
def get_run(request: HttpRequest, run_id: int) -> dict[str, Any]:
    return _run_out(row_of(Run, run_id, related="request"))


@router.delete("/runs/{int:run_id}", response=DELETED)
def delete_run(
    request: HttpRequest, response: HttpResponse, run_id: int, dry_run: bool = False
) -> Status[dict[str, Any]]:
    """Delete a run that has ended, with everything that only it has; one with more than 5,000 results in the
    background (202), of which `dry_run` counts points and measurements alone. Series that stay are judged
    again. This takes the scope `run` too, unless the run came in uploads of the key's owner within a day."""
    run = row_of(Run, run_id)
    check_may_delete(request, uploads_of(run))
    return deletion_answer(response, background.delete(run, who=who(request), dry_run=dry_run))


@router.delete("/uploads/{int:upload_id}", response=DELETED)
def delete_upload(
    request: HttpRequest, response: HttpResponse, upload_id: int, dry_run: bool = False
) -> Status[dict[str, Any]]:
    """Delete an upload with its measurements, and its runs unless other uploads have measurements in them; a
    large one in the background (202). The same file can be uploaded again at once. Scopes as for a run."""
    upload = row_of(Upload, upload_id, related="key")
    check_may_delete(request, [upload])
    return deletion_answer(response, background.delete(upload, who=who(request), dry_run=dry_run))


@router.post("/runs/{int:run_id}/cancel", response=RunOut)
def cancel_run(request: HttpRequest, run_id: int) -> dict[str, Any]:
    tasks.cancel(run=row_of(Run, run_id), who=who(request))
    return _run_out(row_of(Run, run_id, related="request"))


class _LogQuery(Schema):
    start: int = Field(0, ge=0, lt=2**62)
    task: int | None = Field(None, ge=0, lt=2**31)
    attempt: int | None = None
    whole: bool = False


@router.get("/runs/{int:run_id}/log", openapi_extra=file_answer("bytes of the log", "text/plain"))
def get_log(
    request: HttpRequest, run_id: int, given: Query[_LogQuery]
) -> HttpResponse | StreamingHttpResponse:
    """Read a task's log from the byte `start`. The default is the running or last task (else `task` is its
    position) and its latest attempt. `X-Next-Offset` says where to go on, `X-More` whether more will come.
    With `whole` the answer goes on to the end."""
    begun = Task.objects.filter(run=row_of(Run, run_id), attempt__gt=0).order_by("position")
    chosen = begun.filter(position=given.task).first() if given.task is not None else begun.last()

    def pieces(position: int) -> Iterator[bytes]:
        while chosen and (data := logs.read(chosen, position, _MAX_LOG_PIECE_BYTES, attempt=given.attempt)):
            yield data
            position += len(data)

    if given.whole:
        return StreamingHttpResponse(pieces(given.start), content_type=_LOG_TYPE)
    data = next(pieces(given.start), b"")
    end = given.start + len(data)
    response = HttpResponse(data, content_type=_LOG_TYPE)
    response["X-Next-Offset"] = str(end)
    latest = chosen and given.attempt in {None, chosen.attempt}
    more = chosen and latest and (chosen.state == "running" or end < chosen.log_bytes)
    response["X-More"] = "1" if more or (data and not latest) else "0"
    return response


@of_table(ARTIFACT)
class ArtifactOut(Schema):
    """A file that a task left behind."""


@router.get("/runs/{int:run_id}/artifacts", response=Items[ArtifactOut])
def get_artifacts(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """List the files that the run's tasks left behind, with sizes and URLs."""
    return {"items": ARTIFACT.rows(artifacts_of(tasks_of(row_of(Run, run_id))))}


@router.get(
    "/runs/{int:run_id}/artifacts/{int:artifact_id}",
    openapi_extra=file_answer("the file", "application/octet-stream"),
)
def get_artifact(request: HttpRequest, run_id: int, artifact_id: int) -> FileResponse:
    """Download an artifact."""
    artifact = get_object_or_404(Artifact, pk=artifact_id, task__run=row_of(Run, run_id))
    response = logs.artifact_response(artifact)
    if response is None:
        raise Problem(404, "this artifact's file is gone")
    return response


def _run_out(run: Run) -> dict[str, Any]:
    waiting = read_waiting(run)
    place = _PLACE.row(waiting) if waiting else dict.fromkeys(_PLACE.names)
    return {**_COLUMNS.row(run), **_PROGRESS.row(progress_of(run)), **place, "waiting": waiting}
