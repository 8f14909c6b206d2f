"""Count what became of a night's headline series, and find which improved since the baseline."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from hud.judging.compare.query import between
from hud.models import STATUS_CODES, VERDICT_CODES
from hud.pages.backends import BackendComparison
from hud.points.kept import Kept
from hud.sql import fetch_tuples


@dataclass(frozen=True)
class JudgedNight:
    """The headline series of an arch with their newest result in the night: they may open a regression."""

    series: int
    compared: int  # of them, that have earlier results in their class of environments
    undecided: int  # of those, with too few earlier results or on another card
    reason: str  # of most of the undecided
    may_be_better: list[int]  # experiments of the subject, since the baseline
    aimed: list[int]  # series whose records say a target
    values: int  # of all metrics
    pale: int  # of them, that may not decide
    quality: str  # why most of these may not
    reference: str | None  # a stream whose level judged some, which opens nothing
    referenced: int  # of the decided, those

    @property
    def is_by_reference(self) -> bool:
        """Return whether no level of the stream's own decided anything."""
        return 0 < self.referenced == self.compared - self.undecided


class Improved(NamedTuple):
    """A series that improved: its run, the value before, the change, and that against the noise."""

    run_id: int
    before: float | None
    change: float | None
    factor: float | None


_judged_nights = Kept(64, tuple[JudgedNight, dict[int, Improved]])


def read(comparison: BackendComparison) -> tuple[JudgedNight, dict[int, Improved]]:
    """Return what became of the candidate's points, and what improved, while none of its runs changes: the
    statements of `count` and `improved`, none for nights that this process has read, 1 for those that another
    one has."""

    def judge() -> tuple[JudgedNight, dict[int, Improved]]:
        judged = count(comparison, comparison.head.runs if comparison.head else ())
        return judged, improved(comparison, judged)

    judged: tuple[JudgedNight, dict[int, Improved]] = _judged_nights.get(comparison.versions, judge)
    return judged


def count(comparison: BackendComparison, night: Collection[int]) -> JudgedNight:
    """Count what became of the night's points on the page's arch: 1 statement."""
    base, filters = comparison.base, comparison.filters
    (counted,) = fetch_tuples(
        """
        SELECT count(*) FILTER (WHERE headline), count(*) FILTER (WHERE headline AND verdict <> %(new)s),
            count(*) FILTER (WHERE headline AND verdict = %(inconclusive)s),
            coalesce(mode() WITHIN GROUP (ORDER BY verdict_reason)
                FILTER (WHERE headline AND verdict = %(inconclusive)s), ''),
            ARRAY(
                SELECT DISTINCT s.experiment_id
                FROM unnest(array_agg(series_id) FILTER (WHERE headline AND may_be_better)) moved(id)
                JOIN hud_series s USING (id) JOIN hud_experiment e ON e.id = s.experiment_id
                    AND e.mode = %(mode)s AND e.dtype = %(dtype)s),
            coalesce(array_agg(series_id) FILTER (WHERE aimed), '{}'),
            count(*), count(quality), coalesce(mode() WITHIN GROUP (ORDER BY quality), ''),
            (SELECT name FROM hud_stream WHERE id = min(level_stream_id)),
            count(level_stream_id) FILTER (WHERE headline AND verdict NOT IN (%(new)s, %(inconclusive)s))
        FROM (
            SELECT DISTINCT ON (series_id) series_id, own.verdict, verdict_reason, quality,
                target IS NOT NULL aimed, level_stream_id,
                EXISTS (SELECT FROM hud_seriesstate
                    WHERE headline AND series_id = own.series_id) AS headline,
                own.verdict = %(improved)s OR (own.value IS NOT NULL OR own.status = %(ok)s)
                    AND (before.verdict <> %(unchanged)s OR before.status <> own.status
                        OR abs(own.level - before.level) > 0.01 * abs(before.level)) AS may_be_better
            FROM hud_point own LEFT JOIN (
                SELECT series_id, verdict, level, status FROM hud_point WHERE run_id = ANY(%(base)s)
            ) before USING (series_id)
            WHERE run_id = ANY(%(runs)s) AND (%(arch)s = '' OR series_id IN (
                SELECT s.id FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
                WHERE e.arch = %(arch)s))
            ORDER BY series_id, order_time DESC, run_id DESC
        ) newest
        """,
        {
            "runs": list(night),
            "base": list(base.runs) if base else [],
            "arch": "" if comparison.only_arch else filters.arch,
            "mode": filters.mode,
            "dtype": filters.dtype,
            "ok": STATUS_CODES["ok"],
            **{name: VERDICT_CODES[name] for name in ("new", "unchanged", "inconclusive", "improved")},
        },
    )
    return JudgedNight(*counted)


def improved(comparison: BackendComparison, judged: JudgedNight) -> dict[int, Improved]:
    """Return the verdict of each series that improved since the baseline, as *Compare* has it, the largest
    change against its noise first: the statements of `between`, none where nothing moved."""
    if not judged.may_be_better or not comparison.base or not comparison.head:
        return {}
    rows_of = between(comparison.base, comparison.head, comparison.stream, judged.may_be_better)
    moved = [cell for row in rows_of("") for cell in row.moved.get(0, ())]
    better = [cell for cell in moved if cell.verdict == "improved"]
    better.sort(key=lambda cell: -(cell.factor or math.inf))
    return {
        cell.head.series_id: Improved(cell.head.run_id, cell.base.value, cell.change, cell.factor)
        for cell in better
    }
