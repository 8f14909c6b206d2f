"""Ask the archive: questions over whole histories, which `hud.archive.answer` answers in a process of its own
with limits on time and memory. PostgreSQL says before which files, series and environments are meant, and
afterwards what the answer is about."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from typing import Any

from django.conf import settings

from hud.archive import answer
from hud.archive.months import closed_months, local_path
from hud.judging.compare.sides import environments_of
from hud.models import VERDICT_CODES, ArchivedMonth, Experiment, Metric, Series, Stream
from hud.models.archive import POINTS
from hud.points.kept import Kept
from hud.points.streams import measured_by
from hud.problems import Problem
from hud.runs.branches import stored_names
from hud.sql import fetch_models, fetch_tuples, int_array
from hud.tables.table import DataTable
from runner.formats.errors import Fault

logger = logging.getLogger(__name__)
REGRESSED, COMPARED, FLAGGED = "regressed", "compared", "flagged"
KINDS = {
    REGRESSED: "What got worse, and stayed so",
    COMPARED: "Two versions of torch",
    FLAGGED: "What a threshold would have flagged",
}
MOST_MONTHS = 36
_MOST_ITEMS, _MOST_SERIES = 200, 200_000
_WINDOW = timedelta(days=14)
_LIMIT_S, _MEMORY_MIB = 20, 1024
_WAIT_S = 10
_TOO_MUCH = "this question is too large, choose fewer months, a suite or a metric: it"
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_kept = Kept(most=20)
_ASKING = threading.BoundedSemaphore(1)  # of one question at a time in a web process
_COMING = threading.BoundedSemaphore(3)  # with those that wait: of four threads one is left for pages


@dataclass(frozen=True)
class Question:
    """A question over the newest closed months of a stream. An empty suite or metric means all; `base` and
    `head` are versions of torch."""

    kind: str = REGRESSED
    months: int = 12
    suite: str = ""
    metric: str = ""
    least: float = 0.05  # the smallest change that counts
    base: str = ""
    head: str = ""


@dataclass
class SeriesChange:
    """A series whose median changed, or a point that was flagged. `run` and `time` are of the largest step
    for the worse that the judge saw, or of the point."""

    series: Series
    before: float
    after: float
    worse: float  # relative; below 0 for the better
    run: int | None = None
    time: datetime | None = None
    judged: bool | None = None  # whether the judge saw a regression begin there


COLUMNS = DataTable[SeriesChange](
    """series:int=series.pk experiment:int=series.experiment_id suite:str=series.experiment.suite
    case:str=series.experiment.title arch:str=series.experiment.arch mode:str=series.experiment.mode
    dtype:str=series.experiment.dtype backend:str=series.experiment.backend metric:str=series.metric.name
    before:float after:float worse run time judged:bool|None"""
)


@dataclass
class HistoryAnswer:
    """`totals` has a row of everything, and one for each suite or month; `items` are the largest changes."""

    first: date | None = None  # of the archived months in question; None: there is none
    last: date | None = None
    changed_months: list[date] = field(default_factory=list)  # since they were written
    unwritten_months: list[date] = field(default_factory=list)
    points: int = 0  # of these months, whatever their suite and metric
    size_bytes: int = 0
    totals: list[dict[str, Any]] = field(default_factory=list)
    items: list[SeriesChange] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        names = ("first", "last", "changed_months", "unwritten_months", "points", "totals")
        return {name: getattr(self, name) for name in names}


def ask(question: Question, stream: Stream) -> HistoryAnswer:
    """Return the answer: 2 statements, and up to 5 where it is not kept. Raise Problem."""
    if question.kind == COMPARED:
        sides = {"base": "Torch before", "head": "Torch after"}
        missing = [name for name in sides if not getattr(question, name)]
        _refuse({f"?{name}": f"{sides[name]} ({name}) is missing" for name in missing})
    archived = list(ArchivedMonth.objects.filter(stream=stream).order_by("-month"))
    months = [row for row in archived if row.points][: question.months]
    first = months[-1].month if len(months) == question.months else date.min
    written = {row.month: row.versions for row in reversed(archived) if row.month >= first}
    now = {month.month: month.versions for month in closed_months(stream.pk, first)}
    key = question, tuple(row.path for row in months)

    def in_turn() -> HistoryAnswer:
        with _turn():  # for which another may have had the same answer made
            kept: HistoryAnswer = _kept.get(key, lambda: _answer(question, stream, months))
            return kept

    return replace(
        _kept.get(key, in_turn) if months else HistoryAnswer(),
        changed_months=[month for month in written if written[month] != now.get(month)],
        unwritten_months=[month for month in now if month not in written],
    )


def _refuse(faults: Mapping[str, str]) -> None:
    """Raise Problem 422 if there are any, by their places."""
    if faults:
        errors = [Fault(at, detail) for at, detail in faults.items()]
        raise Problem(422, "; ".join(faults.values()), errors=errors)


def _near(name: str, known: Iterable[str]) -> str:
    """Return an unknown name and the known ones that are like it."""
    alike = get_close_matches(name, [*known], 3)
    return repr(name) + (f", perhaps {' or '.join(alike)}" if alike else "")


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other question is being answered. Raise Problem 503 after a while, and where others
    wait."""
    with ExitStack() as stack:
        for semaphore, wait_s in ((_COMING, 0), (_ASKING, _WAIT_S)):
            if not semaphore.acquire(timeout=wait_s):
                raise Problem(503, "other questions are being answered; try again", retry_after_s=2)
            stack.callback(semaphore.release)
        yield


def torches() -> list[str]:
    """Return the versions of torch that are known, the newest first: 1 statement."""
    statement = (
        "SELECT torch FROM hud_environment WHERE torch <> '' GROUP BY 1 ORDER BY max(id) DESC LIMIT 200"
    )
    return [version for (version,) in fetch_tuples(statement)]


def _answer(question: Question, stream: Stream, months: list[ArchivedMonth]) -> HistoryAnswer:
    environments: dict[str, tuple[int, ...]] = {"base": (), "head": ()}
    if question.kind == COMPARED:
        sides = {"base": question.base, "head": question.head}
        environments = {name: environments_of(torch) for name, torch in sides.items()}
        unknown = {f"?{name}": torch for name, torch in sides.items() if not environments[name]}
        _refuse({at: f"nothing ran with torch {_near(torch, torches())}" for at, torch in unknown.items()})
    series = fetch_tuples(
        """
        SELECT s.id, CASE k.direction WHEN 'down' THEN 1 ELSE -1 END,
            dense_rank() OVER (ORDER BY e.suite), e.suite
        FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id AND k.direction IN ('up', 'down')
        JOIN hud_experiment e ON e.id = s.experiment_id
        WHERE s.stream_id = %(stream)s AND %(suite)s IN ('', e.suite) AND %(metric)s IN ('', k.name)
        LIMIT %(most)s
        """,
        {"stream": stream.pk, "suite": question.suite, "metric": question.metric, "most": _MOST_SERIES + 1},
    )
    if len(series) > _MOST_SERIES:
        raise Problem(422, f"these are more than {_MOST_SERIES:,} series: choose a suite or a metric")
    if not series:
        known_suites = {suite for _subject, suite in measured_by(stream)}
        known_metrics = Metric.objects.exclude(direction="none").values_list("name", flat=True)
        faults = {}
        if question.suite and question.suite not in known_suites:
            faults["?suite"] = f"{stream.name} has no suite {_near(question.suite, known_suites)}"
        if question.metric and question.metric not in known_metrics:
            faults["?metric"] = f"no metric with a direction is {_near(question.metric, known_metrics)}"
        _refuse(faults)
    ids, signs, parts, suites = zip(*series, strict=True) if series else ((), (), (), ())
    classes = dict(fetch_tuples("SELECT id, dense_rank() OVER (ORDER BY class_key) FROM hud_environment"))
    first = months[-1].month
    rows = _run(
        question.kind,
        series={"series": ids, "sign": signs, "part": parts},
        parameters={
            "files": [str(local_path(row.file(POINTS))) for row in months],
            "since_us": (datetime.combine(first, time.min, UTC) - _UNIX) // timedelta(microseconds=1),
            "classes": [classes.get(pk) for pk in range(1, max(classes, default=0) + 1)],
            "branches": stored_names(),
            "window_us": _WINDOW // timedelta(microseconds=1),
            "least": question.least,
            "most": _MOST_ITEMS,
            "regressed": VERDICT_CODES["regressed"],
            **environments,
        },
    )
    names = dict(zip(parts, suites, strict=True))
    for total in rows["totals"]:
        if "part" in total:
            total["suite"] = names.get(total.pop("part"), "")
    return HistoryAnswer(
        first,
        months[0].month,
        points=sum(row.points for row in months),
        size_bytes=sum(row.size_bytes for row in months),
        totals=rows["totals"],
        items=_changes(rows["items"]),
    )


def _run(question: str, **asked: Any) -> dict[str, list[dict[str, Any]]]:
    """Ask in a process that knows none of this one's variables. Raise Problem if it takes too much."""
    body = {"question": question, "folder": f"{settings.HUD_DATA}/archive/", **asked}
    try:
        process = subprocess.run(
            [sys.executable, "-I", str(answer.__file__)],
            input=json.dumps({**body, "limit_s": _LIMIT_S, "memory_mib": _MEMORY_MIB}).encode(),
            capture_output=True,
            timeout=_LIMIT_S,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Problem(503, f"{_TOO_MUCH} took over {_LIMIT_S} s") from error
    if process.returncode:
        reason = process.stderr.decode("utf-8", "replace")[-2000:]
        logger.error("the archive did not answer: %s", reason)
        raise Problem(503, f"{_TOO_MUCH} failed" + (" for want of memory" if "Memory" in reason else ""))
    rows: dict[str, list[dict[str, Any]]] = json.loads(process.stdout)
    return rows


def _changes(rows: list[dict[str, Any]]) -> list[SeriesChange]:
    ids = int_array({row["series"] for row in rows})
    condition = """JOIN hud_experiment experiment ON experiment.id = own.experiment_id
        JOIN hud_metric metric ON metric.id = own.metric_id WHERE own.id = ANY(%(ids)s::int[])"""
    known = fetch_models(Series, condition, {"ids": ids}, experiment=Experiment, metric=Metric)
    by_id = {series.pk: series for series in known}
    changes = []
    for row in rows:
        series, time_us = by_id.get(row["series"]), row.pop("time_us", None)
        if series:  # else it was deleted since
            moment = None if time_us is None else _UNIX + timedelta(microseconds=time_us)
            changes.append(SeriesChange(**{**row, "series": series}, time=moment))
    return changes
