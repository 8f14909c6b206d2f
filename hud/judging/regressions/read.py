"""Regressions with what pages and API show of them, by causes, the most certain and largest first; and how
many causes and series wait for somebody: the numbers that every page, view and badge shows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User

from hud.judging.regressions.groups import CauseLines, by_key, experiments_of_runs, group, score
from hud.models import Cause, Experiment, Metric, Regression, RegressionEvent, Run, Series, Stream
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array
from hud.states.regressions import ACTIVE, TOLD, RegressionState
from hud.tables.table import DataTable, experiment_of

MOST_ROWS = 500
NOBODY = "nobody"
COLUMNS = DataTable(f"""
    id:int=pk state:str verdict:str stream:str=series.stream.name {experiment_of("series.experiment")}
    metric:str=series.metric.name unit:str=series.metric.unit direction:str=series.metric.direction before
    after:float|None change factor points kind cause canaries since opened:datetime cause_id=cause_row_id
    first_run:int|None=first_run_id last_good_run:int|None=last_good_run_id
    base_commit:str=last_good_run?.commit head_commit:str=first_run?.commit owner:str=owner?.username note:str
    link:str muted_until:datetime|None state_since:datetime
""")
CAUSE = DataTable[Cause](
    """id:int stream:str=stream.name night:datetime title:str created:datetime series:int states
    regressions:list[int]""",
    series=lambda cause: len({regression.series_id for regression in cause.regressions.all()}),
    states=lambda cause: Counter(regression.state for regression in cause.regressions.all()),
    regressions=lambda cause: sorted(regression.pk for regression in cause.regressions.all()),
)
EVENT = DataTable("at:datetime who event:str before:str after:str note:str run:int|None=run_id")
# By their keys, as regressions are few: a join of all series takes twice the time.
_SERIES = "CROSS JOIN LATERAL (SELECT * FROM hud_series WHERE id = own.series_id OFFSET 0) series"
JOINS = f"""{_SERIES}
    CROSS JOIN LATERAL (SELECT * FROM hud_experiment WHERE id = series.experiment_id OFFSET 0) e
"""  # noqa: S608 — constants  # nosec B608
_CONDITIONS = {
    "stream": "series.stream_id = %(stream)s",
    "arch": "e.arch = %(arch)s",
    "mode": "e.mode = %(mode)s",
    "dtype": "e.dtype = %(dtype)s",
    "base": "own.since > %(base)s",
    "head": "own.since <= %(head)s",
}


@dataclass(frozen=True)
class Scope:
    """The regressions that a page is about: of a stream and a subject, that began after the baseline and not
    after the candidate; '' and None mean any."""

    stream: Stream | None
    arch: str = ""
    mode: str = ""
    dtype: str = ""
    base: datetime | None = None
    head: datetime | None = None

    @property
    def condition(self) -> str:
        """Return SQL, of a row `one` of hud_regression with `JOINS`."""
        return " AND ".join(["true", *(_CONDITIONS[name] for name, value in self.params.items() if value)])

    @property
    def params(self) -> dict[str, Any]:
        chosen = {name: getattr(self, name) for name in _CONDITIONS}
        return {**chosen, "stream": self.stream.pk if self.stream else None}


@dataclass(frozen=True)
class Counts:
    causes: int = 0
    series: int = 0
    suspects: int = 0  # that wait for a second result, not yet for somebody
    older: int = 0  # causes of what began before the baseline, which are in none of the others

    def to_json(self) -> dict[str, int]:
        return {"causes": self.causes, "series": self.series}


def cause_key(regression: Regression) -> int:
    """Return what regressions of one cause have in common: without a row of `Cause` their experiment."""
    return regression.cause_row_id or -regression.series.experiment_id


def count(scope: Scope) -> Counts:
    """Return how many causes and series wait for somebody, as what is muted does not: 1 statement."""
    joins = JOINS if scope.arch or scope.mode or scope.dtype else _SERIES
    is_new = _CONDITIONS["base"] if scope.base else "true"
    ((causes, series, suspects, older),) = fetch_tuples(
        f"""
        SELECT count(DISTINCT coalesce(own.cause_id, -series.experiment_id))
                FILTER (WHERE own.state <> %(suspect)s AND {is_new}),
            count(DISTINCT own.series_id) FILTER (WHERE own.state <> %(suspect)s AND {is_new}),
            count(*) FILTER (WHERE own.state = %(suspect)s AND {is_new}),
            count(DISTINCT coalesce(own.cause_id, -series.experiment_id))
                FILTER (WHERE own.state <> %(suspect)s AND NOT {is_new})
        FROM hud_regression own {joins}
        WHERE own.state = ANY(%(active)s) AND coalesce(own.muted_until <= now(), true)
            AND {replace(scope, base=None).condition}
        """,  # noqa: S608 — constants  # nosec B608
        {**scope.params, "active": list(ACTIVE), "suspect": RegressionState.SUSPECT},
    )
    return Counts(causes, series, suspects, older)


def elsewhere(scope: Scope) -> list[tuple[str, int]]:
    """Return how many causes wait on other archs, and not on that of the scope, most first: 1 statement."""
    return fetch_tuples(
        f"""
        SELECT arch, count(*)::int FROM (
            SELECT min(e.arch) arch FROM hud_regression own {JOINS}
            WHERE own.state = ANY(%(states)s) AND coalesce(own.muted_until <= now(), true)
                AND {replace(scope, arch="").condition}
            GROUP BY coalesce(own.cause_id, -series.experiment_id) HAVING NOT bool_or(e.arch = %(arch)s)
        ) cause WHERE arch <> '' GROUP BY 1 ORDER BY 2 DESC, 1
        """,  # noqa: S608 — constants  # nosec B608
        {**scope.params, "states": list(TOLD)},
    )


def rows(
    scope: Scope,
    *,
    states: Sequence[str] = (),
    is_muted: bool | None = None,
    suite: str = "",
    owner: str = "",
    owner_id: int | None = None,
) -> list[Regression]:
    """Return the newest regressions of a scope, at most one more than `MOST_ROWS`: 6 statements at most. What
    is not given may be anything; `owner` is a name, or `NOBODY`."""
    conditions = {
        scope.condition: True,
        "own.state = ANY(%(states)s)": states,
        f"coalesce(own.muted_until > now(), false) = {is_muted}": is_muted is not None,
        "e.suite = %(suite)s": suite,
        "own.owner_id IS NULL": owner == NOBODY,
        "own.owner_id = (SELECT id FROM auth_user WHERE username = %(owner)s)": owner not in ("", NOBODY),
        "own.owner_id = %(owner_id)s": owner_id is not None,
    }
    chosen = " AND ".join(text for text, holds in conditions.items() if holds)
    newest = f"{JOINS} WHERE {chosen} ORDER BY own.since DESC, own.id LIMIT {MOST_ROWS + 1}"
    params = {"states": list(states), "suite": suite, "owner": owner, "owner_id": owner_id, **scope.params}
    return complete(fetch_models(Regression, newest, params, series=Series), scope.stream)


def waiting(scope: Scope) -> list[CauseLines]:
    """Return the causes of what waits for somebody, without recent values: 6 statements."""
    return grouped(rows(scope, states=TOLD, is_muted=False)[:MOST_ROWS])


def complete(rows: list[Regression], stream: Stream | None = None) -> list[Regression]:
    """Add what rows with their series show: 3 statements, 4 with owners, 1 more without the `stream` of all.
    Hundreds share a few runs and metrics, which are read once and not joined to every row."""
    series = [row.series for row in rows]
    attach(series, "experiment", by_id(Experiment, [row.experiment_id for row in series]))
    attach(series, "metric", by_id(Metric, [row.metric_id for row in series]))
    streams = {stream.pk: stream} if stream else by_id(Stream, [row.stream_id for row in series])
    attach(series, "stream", streams)
    add_runs(rows, "first_run", "last_good_run", "latest_run")
    return rows


def add_runs(regressions: Sequence[Regression], *names: str) -> None:
    """Add the owners, and the runs that these fields refer to: 2 statements."""
    attach(regressions, "owner", by_id(User, [regression.owner_id for regression in regressions]))
    runs = by_id(Run, [getattr(regression, f"{name}_id") for regression in regressions for name in names])
    for name in names:
        attach(regressions, name, runs)


def add_recent(regressions: Sequence[Regression]) -> None:
    """Add the newest values of their series: 1 statement."""
    statement = "SELECT series_id, class_key, recent FROM hud_seriesstate WHERE series_id = ANY(%s::int[])"
    rows = fetch_tuples(statement, [int_array(regression.series_id for regression in regressions)])
    recent = {(series, class_key): values for series, class_key, values in rows}
    for regression in regressions:
        regression.recent = recent.get((regression.series_id, regression.class_key), ())


def grouped(regressions: Sequence[Regression]) -> list[CauseLines]:
    """Return one row for each cause, the most certain and largest first, those of hosts last: 1 statement."""
    measured, rows = experiments_of_runs(regressions), []
    for members in by_key(regressions, cause_key):
        parts = group(members, measured)
        largest = max(parts, key=lambda part: len(part.lines))
        rows.append(replace(largest, lines=[line for part in parts for line in part.lines]))
    return sorted(rows, key=lambda row: (row.why == "host", -max(map(score, row.lines)), row.first.pk))


def causes(stream: Stream | None, state: str) -> list[dict[str, Any]]:
    """Return the newest causes with a regression, of one stream or of all, for the API: 2 statements."""
    wanted = {"regressions__isnull": False, "stream": stream, "regressions__state": state}
    found = Cause.objects.filter(**{name: value for name, value in wanted.items() if value not in ("", None)})
    newest = found.select_related("stream").prefetch_related("regressions").order_by("-night", "-pk")
    return CAUSE.rows(newest.distinct()[:MOST_ROWS])


def with_history(regression: Regression, events: Iterable[RegressionEvent]) -> dict[str, Any]:
    """Return a regression with its history for JSON."""
    return {**COLUMNS.row(regression), "history": EVENT.rows(events)}
