"""Results of a run by importance: what each point shows, and in which order.

Of a large run the judge keeps both, so that a page reads counts and the points that it shows, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from hud.models import NEVER_RAN, STATUS_CODES, VERDICT_CODES, Metric, Point, PointFields, Run, SidePoint
from hud.points import expectations
from hud.points.read import main_metrics
from hud.points.targets import RECORDED, Targets
from hud.sql import (
    Bools,
    Floats,
    Ints,
    by_id,
    execute,
    fetch_columns,
    fetch_models,
    fetch_tuples,
    int_array,
    since_epoch_us,
)
from runner.schema.tables import rows

Key = tuple[int, int, int, int]  # series, environment, time in µs since 2000, side

# What a point shows, in the order of the page → icon, word of a filter, words of a sentence
LABELS = {kind: labels for kind, *labels in map(dict.values, rows(__file__, "kinds.csv"))}
KINDS = tuple(LABELS)
SORTS = ("experiment", "metric", "value", "change", "noise")
LARGE = 5000  # points of a run of which more are kept in their order
_NO_PLACE = 99  # of what is none of its suite's main metrics
_PLACE = np.dtype([("series", ">i4"), ("environment", ">i4"), ("time_us", ">i8")])  # of a point
# What changes with what points of the run `own` show: its points, targets, and what lists and people say
_VERSION = """concat_ws(' ', concat(own.xmin, own.ctid),
    (SELECT md5(string_agg(concat(xmin, ctid), ' ' ORDER BY id)) FROM hud_target),
    (SELECT concat(count(*), '-', max(id)) FROM hud_expectation WHERE stream_id = own.stream_id),
    (SELECT concat(count(*), '-', max(id)) FROM hud_knownfailure WHERE stream_id = own.stream_id))"""


class KindCount(NamedTuple):
    """How often a run shows something."""

    points: int
    experiments: int


# Kind, case, metric and change of the most certain change for the worse, or doubt
Worst: TypeAlias = tuple[str, str, str, float]


@dataclass
class Summary:
    """Counts of all points of a run."""

    counts: dict[str, KindCount]  # by kind
    experiments: int
    suites: dict[str, dict[str, int]]  # points by suite and kind
    worst: Worst | None

    @property
    def points(self) -> int:
        return sum(count.points for count in self.counts.values())

    def place_of(self, kind: str) -> tuple[int, int]:
        """Return how many points stand before those of a kind, and how many it has; '' has all."""
        if not kind:
            return 0, self.points
        before = sum(self.counts[each].points for each in KINDS[: KINDS.index(kind)] if each in self.counts)
        return before, self.counts[kind].points if kind in self.counts else 0


@dataclass(frozen=True)
class _Stored:
    """All points of a run, one element each: as much as sorting, filtering and counting need. A missing
    number is NaN, a missing verdict -1; `target` is the record's own for the arch."""

    series: Ints
    environment: Ints
    time_us: Ints  # since 2000
    side: Ints
    status: Ints
    verdict: Ints
    value: Floats
    change: Floats
    factor: Floats
    target: Floats
    experiment: Ints
    metric: Ints

    @classmethod
    def read(cls, run: Run) -> _Stored:
        """Return the points of a run, or of both sides of an A/B run: 1 statement."""
        judged = "0::int2 side, verdict, change, abs(factor) factor FROM hud_point"
        if run.is_ab:
            judged = "side, NULL::int2 verdict, NULL::real change, NULL::real factor FROM hud_sidepoint"
        numbers = [f"coalesce({name}, 'NaN')" for name in ("value", "change", "factor")]
        columns = ["p.series_id", "environment_id", "order_time", "side", "status"]
        columns += ["coalesce(verdict, -1::int2)", *numbers, RECORDED, "experiment_id", "metric_id"]
        points = f"""(SELECT series_id, environment_id, order_time, status, value, target, target_arch,
            {judged} WHERE run_id = %(run)s) p JOIN hud_series s ON s.id = p.series_id"""
        return cls(*fetch_columns(columns, points, {"run": run.pk}))

    def key(self, at: int) -> Key:
        return int(self.series[at]), int(self.environment[at]), int(self.time_us[at]), int(self.side[at])


def key_of(point: PointFields) -> Key:
    """Return the key of a point that is read."""
    side = point.side if isinstance(point, SidePoint) else 0
    return point.series_id, point.environment_id, since_epoch_us(point.order_time), side


class RunPoints:
    """All points of a run with what each of them shows: a fixed number of statements."""

    def __init__(self, run: Run, targets: Targets) -> None:
        self.stored = stored = _Stored.read(run)
        self.metrics = by_id(Metric, np.unique(stored.metric).tolist())
        listed = {} if run.is_ab else {key_of(p): p for p in expectations.of_runs(run.stream_id, [run.pk])}
        self.kinds = _kinds(stored, listed, self.metrics, targets)
        experiments, self._experiment = np.unique(stored.experiment, return_inverse=True)
        wanted = 'SELECT suite, "case" FROM hud_experiment WHERE id = ANY(%(ids)s::int[]) ORDER BY id'
        named = fetch_tuples(wanted, {"ids": int_array(experiments.tolist())}) or [("", "")]
        (self._suites, self._suite), (self._cases, self._case) = (
            np.unique(names, return_inverse=True) for names in zip(*named, strict=True)
        )

    def summary(self) -> Summary:
        """Return the counts, and what is worst."""
        stored, kinds = self.stored, self.kinds
        of_experiments = np.unique(kinds << 32 | stored.experiment) >> 32
        points, experiments = (np.bincount(x, minlength=len(KINDS)).tolist() for x in (kinds, of_experiments))
        counts = {kind: KindCount(points[n], experiments[n]) for n, kind in enumerate(KINDS) if points[n]}
        suites: dict[str, dict[str, int]] = {}
        pairs, of_pairs = np.unique(self._suite[self._experiment] << 32 | kinds, return_counts=True)
        for pair, count in zip(pairs.tolist(), of_pairs.tolist(), strict=True):
            suites.setdefault(str(self._suites[pair >> 32]), {})[KINDS[pair & 0xFF]] = count
        worst: Worst | None = None
        moved = np.isin(kinds, [KINDS.index("regressed"), KINDS.index("inconclusive")])
        doubts = np.flatnonzero(moved & ~np.isnan(stored.change))
        for at in doubts[np.lexsort((-stored.factor[doubts], kinds[doubts]))][:1].tolist():
            case, metric = str(self._cases[self._case[self._experiment[at]]]), self.metrics[stored.metric[at]]
            worst = KINDS[kinds[at]], case, metric.title, float(stored.change[at])
        return Summary(counts, int(self._experiment.max(initial=-1)) + 1, suites, worst)

    def order(self, sort: str = "") -> Ints:
        """Return all points in the order of a column or by importance, equal ones by experiment and
        metric."""
        stored, experiment = self.stored, self._experiment
        if not stored.series.size:
            return stored.series
        pks, metric = np.unique(stored.metric, return_inverse=True)
        titles = [self.metrics[pk].name for pk in pks.tolist()]
        mains = ({name: at for at, name in enumerate(main_metrics(suite))} for suite in self._suites.tolist())
        places = np.array([[main.get(name, _NO_PLACE) for name in titles] for main in mains])
        place = places[self._suite[experiment], metric]
        name = np.unique(titles, return_inverse=True)[1][metric]
        case = self._case[experiment]
        row, column = case << 32 | experiment, place << 32 | name
        keys: tuple[NDArray[Any], ...] = {
            "": (self.kinds, -stored.factor, column, row),
            "experiment": (case, row, column),
            "metric": (place, column, row),
            "value": (stored.value, row, column),
            "change": (stored.change, row, column),
            "noise": (stored.factor, row, column),
        }[sort.removeprefix("-")]
        first, *others = keys
        return np.lexsort((stored.side, stored.time_us, *others[::-1], -first if sort[:1] == "-" else first))


def _kinds(
    stored: _Stored, listed: Mapping[Key, Point], metrics: Mapping[int, Metric], targets: Targets
) -> Ints:
    """Return of each point its place in KINDS. `listed` has what is expected of points that failed or are in
    lists."""
    unexpected, known = np.zeros((2, stored.series.size), bool)
    for at in range(stored.series.size) if listed else ():
        if point := listed.get(stored.key(at)):
            unexpected[at] = point.expectation in expectations.UNEXPECTED
            known[at] = bool(point.known_failure) and not unexpected[at]
    no_value, verdict, ok = np.isnan(stored.value), VERDICT_CODES, STATUS_CODES["ok"]
    never_ran = np.isin(stored.status, [STATUS_CODES[name] for name in NEVER_RAN])
    tests = {  # the first that holds counts
        "known": known,
        "regressed": stored.verdict == verdict["regressed"],
        "unexpected": unexpected,
        "not_run": no_value & never_ran,
        "failed": (stored.verdict == verdict["failed"]) | ((stored.status != ok) & ~never_ran),
        "missed": _missed(stored, metrics, targets),
        "inconclusive": stored.verdict == verdict["inconclusive"],
        "improved": stored.verdict == verdict["improved"],
        "new": stored.verdict == verdict["new"],
    }
    kinds: Ints = np.select(list(tests.values()), [KINDS.index(kind) for kind in tests], KINDS.index("rest"))
    return kinds


def _missed(stored: _Stored, metrics: Mapping[int, Metric], targets: Targets) -> Bools:
    """Return which points miss a target of their own device: 1 statement, none without targets."""
    aimed = np.isin(stored.metric, [pk for pk, metric in metrics.items() if targets.aims_at(metric)])
    aimed_rows = np.flatnonzero(~np.isnan(stored.value) & (aimed | ~np.isnan(stored.target)))
    of_rows = [metrics[pk] for pk in stored.metric[aimed_rows].tolist()]
    met = targets.met(
        stored.experiment[aimed_rows].tolist(), of_rows, stored.value[aimed_rows], stored.target[aimed_rows]
    )
    missed = np.zeros(stored.series.size, bool)
    missed[aimed_rows] = np.array(met) == "missed"
    return missed


def keep_missing() -> int:
    """Keep the summary and order of a large run, the newest of those that have none or an outdated one;
    return how many."""
    wanted = f"""WHERE points > {LARGE} AND base_interpreter = '' AND NOT EXISTS (
        SELECT FROM hud_runsummary kept WHERE kept.run_id = own.id AND kept.version = {_VERSION})
        ORDER BY id DESC LIMIT 1"""
    runs = fetch_models(Run, wanted, {}, computed={"version": _VERSION})
    for run in runs:
        points = RunPoints(run, Targets.read())
        order, stored = points.order(), points.stored
        places = np.empty(order.size, _PLACE)
        for name in _PLACE.names or ():
            places[name] = getattr(stored, name)[order]
        counts = orjson.dumps(asdict(points.summary()), default=list).decode()
        execute(
            """
            INSERT INTO hud_runsummary (run_id, version, counts, places)
            SELECT id, %s, %s::jsonb, %s FROM hud_run WHERE id = %s FOR KEY SHARE
            ON CONFLICT (run_id) DO UPDATE SET version = excluded.version, counts = excluded.counts,
                places = excluded.places
            """,
            [run.version, counts, places.tobytes(), run.pk],  # type: ignore[attr-defined]
        )
    return len(runs)


def kept(run: Run) -> Summary | None:
    """Return what the judge kept of a large run; None where it has not yet, or something has changed since: 1
    statement, none for another run."""
    if run.is_ab or run.points <= LARGE:
        return None
    own = f"""SELECT kept.counts::text FROM hud_runsummary kept JOIN hud_run own ON own.id = kept.run_id
        WHERE own.id = %(run)s AND kept.version = {_VERSION}"""  # noqa: S608 — a constant  # nosec B608
    for (text,) in fetch_tuples(own, {"run": run.pk}):
        values = orjson.loads(text)
        counts = {kind: KindCount(*values["counts"][kind]) for kind in KINDS if kind in values["counts"]}
        return Summary(**{**values, "counts": counts})
    return None


def keys_of_kept(run: Run, first: int, most: int) -> list[Key]:
    """Return the keys of points of a large run in their order: 1 statement."""
    part = "SELECT substr(places, %(start)s, %(bytes)s) FROM hud_runsummary WHERE run_id = %(run)s"
    size = _PLACE.itemsize
    params = {"run": run.pk, "start": first * size + 1, "bytes": max(most, 0) * size}
    for (places,) in fetch_tuples(part, params, binary=True):
        return [(*place, 0) for place in np.frombuffer(places, _PLACE).tolist()]
    return []
