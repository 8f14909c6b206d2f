"""What needs a look: regressions by cause, then missed targets; one row for each experiment or cause."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from hud.judging.regressions.groups import CauseLines
from hud.models import Point, Regression
from hud.points.kernels import known_between
from hud.runs.places import Builds, Rerun
from hud.sql import fetch_tuples, int_array


@dataclass
class LookRow:
    """A row: a cause with its lines, or a point that improved or misses its target."""

    cause: CauseLines | None = None
    point: Point | None = None
    recent: list[float | None] | None = None  # of the point's series
    others: int = 0  # further metrics of the experiment that miss their targets
    is_new: bool = False  # it moved in the newest night
    is_better: bool = False
    move: tuple[int, datetime] | None = None  # run and time of an improvement's first point, not a level yet
    rerun: Rerun | None = None
    has_kernels: bool = False  # both runs between which it moved have them: they can be compared

    @property
    def regression(self) -> Regression | None:
        return self.cause.first if self.cause else None

    @property
    def more_metrics(self) -> int:
        return len(self.cause.lines) - self.cause.experiments if self.cause else self.others

    @property
    def kind(self) -> str:
        if not self.cause:
            return "improved" if self.is_better else "missed"
        if self.cause.why == "host":
            return "host"
        return self.cause.first.verdict


def rows(
    causes: Sequence[CauseLines], missed: Sequence[Point], night: Collection[int], improved: Sequence[Point]
) -> list[LookRow]:
    """Return the rows, in 1 statement. `night` are the runs of the night, `missed` and `improved` (since the
    baseline) its points, the largest first."""
    rows = [LookRow(cause=cause, is_new=cause.first.first_run_id in night) for cause in causes]
    rows.sort(key=lambda row: row.kind == "host")
    better: dict[int, LookRow] = {}
    for point in improved:
        better.setdefault(point.experiment.pk, LookRow(point=point, is_better=True))
    regressed = {line.series.experiment_id for cause in causes for line in cause.lines}
    below: dict[int, LookRow] = {}
    for point in missed:
        pk = point.experiment.pk
        if pk in below:
            below[pk].others += 1
        elif pk not in regressed:
            below[pk] = LookRow(point=point)
    rows += [*better.values(), *below.values()]
    statement = """
        SELECT series_id, recent, (level->'move'->>'run_id')::int, (level->'move'->>'time')::timestamptz
        FROM hud_seriesstate WHERE series_id = ANY(%s::int[]) ORDER BY order_time
    """
    points = {row.point.series_id: row for row in rows if row.point}
    for series, recent, run, since in fetch_tuples(statement, [int_array(points)]) if points else ():
        row = points[series]
        row.recent, row.move, row.is_new = recent, run and (run, since), row.is_better and run in night
    return rows


def complete(shown: Sequence[LookRow]) -> None:
    """Say how each row can be measured again, and whether its kernels are known: 2 statements, 1 more where a
    host has two versions of torch."""
    places = known_between([row.regression for row in shown if row.regression])
    builds = Builds()
    moved = [
        row.regression
        for row in shown
        if row.regression and row.kind in {"regressed", "drift", "inconclusive"}
    ]
    pairs = builds.of_regressions(moved)
    for row in shown:
        if one := row.regression:
            pk = one.series.experiment_id
            row.has_kernels = {(one.first_run_id, pk), (one.last_good_run_id, pk)} <= places
            row.rerun = pairs.get(one.pk) or builds.once(one.series.experiment, one.series.metric.name)
        elif row.point:
            row.rerun = builds.once(row.point.experiment, row.point.metric.name)


def chosen(rows: Sequence[LookRow], which: str, user: User | None) -> list[LookRow]:
    """Return the new rows or a person's own; all of them for any other word."""
    if which == "new":
        return [row for row in rows if row.is_new]
    if which == "mine":
        return [row for row in rows if row.regression and user and row.regression.owner_id == user.pk]
    return list(rows)
