"""Preview a rule over the last 60 nights: judge stored points with and without it, and write nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Max

from hud.judging.judge import read_points, take_points
from hud.judging.levels import SeriesPoint
from hud.judging.regressions.follow import Judged, settled
from hud.judging.rules.thresholds import Thresholds, metrics_by_class, opens_regressions
from hud.judging.rules.write import Rule, touched
from hud.models import Metric, Series, SeriesState, Threshold

NIGHTS = 60
MOST_SERIES = 100  # those with the newest points
SHOWN = 20
_WARM_UP = timedelta(days=30)  # before those nights, for a level to begin with


@dataclass(frozen=True)
class Flag:
    """A point that leaves the level for the worse, or misses a target."""

    series: Series
    run_id: int
    at: datetime
    change: float | None
    value: float | None = None


@dataclass
class Preview:
    """`flags` are the newest of the `count` that the rule would have raised, `today` how many there are
    without it. Of the `matching` series `looked_at` were judged."""

    matching: int
    looked_at: int
    until: datetime | None = None
    count: int = 0
    today: int = 0
    flags: list[Flag] = field(default_factory=list)

    def add(self, flags: Sequence[Flag], today: int) -> None:
        self.count += len(flags)
        self.today += today
        self.flags = sorted([*self.flags, *flags], key=lambda flag: flag.at, reverse=True)[:SHOWN]


def newest_series(rule: Rule) -> tuple[Preview, list[Series]]:
    """Return a preview without flags, and the series with the newest points that a rule matches."""
    states = SeriesState.objects.filter(series__in=Series.objects.filter(touched(rule)))
    latest = states.values("series").annotate(latest=Max("order_time")).order_by("-latest", "series")
    newest = list(latest.values_list("series", "latest")[:MOST_SERIES])
    related = ("experiment", "metric", "stream")
    series = Series.objects.filter(pk__in=[pk for pk, _time in newest]).select_related(*related)
    return Preview(latest.count(), len(newest), newest[0][1] if newest else None), list(series)


def preview(rule: Threshold | Metric, *, replaces: Threshold | None = None) -> Preview:
    """Return what a threshold, in place of `replaces`, or the meaning of a metric would have flagged."""
    shown, series = newest_series(rule)
    if shown.until is None:
        return shown
    stored = list(Threshold.objects.all())
    today = Thresholds(stored)
    others = [row for row in stored if replaces is None or row.pk != replaces.pk]
    then = Thresholds([*others, rule]) if isinstance(rule, Threshold) else today
    if isinstance(rule, Metric):
        rule.told = True
    by_id = {row.pk: row for row in series}
    present = metrics_by_class({row.experiment_id for row in series})
    since = shown.until - timedelta(days=NIGHTS)
    ended = settled(by_id.keys())
    for (series_id, class_key), points in read_points(dict.fromkeys(by_id, since - _WARM_UP)):
        row, ends = by_id[series_id], ended.get((series_id, class_key), [])
        metric = rule if isinstance(rule, Metric) else row.metric
        beside, flags = present.get((row.experiment_id, class_key), ()), []
        for thresholds, of in ((today, row.metric), (then, metric)):
            own = thresholds.of(row.experiment, of)
            opens = opens_regressions(own, of, beside)
            flags.append(_flags(Judged(row, class_key, own), points, ends, since) if opens else [])
        shown.add(flags[1], len(flags[0]))
    return shown


def _flags(
    state: Judged, points: Sequence[SeriesPoint], ends: Sequence[datetime], since: datetime
) -> list[Flag]:
    """Return the moves for the worse that began after `since` and would have opened a regression."""
    flags: list[Flag] = []
    for judged in take_points(state, points, ends, is_first=True):
        move = state.level.move
        opens = move and move.worse and not move.back and move.is_sure and move.time >= since
        if move and opens and (not flags or flags[-1].at != move.time):
            flags.append(Flag(state.series, move.run_id, move.time, judged["change"], move.latest))
    return flags
