"""The lines of a chart: points of series by night, relative to others, alone or as means of groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hud.models import Point, Regression
from hud.pages.backends_table import colour
from hud.pages.explore.filters import DIMENSIONS, ExploreFilters, SeriesRow
from hud.points import nights
from hud.points.nights import Night, NightRun
from hud.sql import Floats, Ints, fetch_tuples, from_epoch_us, int_array

if TYPE_CHECKING:
    from pandas import DataFrame

_OF_BACKENDS, _COLOURS = 6, 10  # of hud.css, which backends.csv gives; with those of explore.css
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_OWN_DASHES = {4: "dot", 5: "longdash"}  # as the trend of the overview
Style = tuple[int, str]  # number of the colour, and dash


class Slot(NamedTuple):
    """A place of the x axis: a night, or the nights of one commit or version of torch, with the first."""

    label: str
    night: Night


@dataclass
class Line:
    name: str
    key: str  # in the address
    group: str
    coloured_by: str
    metric: str
    series: int  # of which it is the mean
    row: SeriesRow | None  # of one series
    slots: Ints
    shown: Floats  # NaN where it failed
    values: Floats  # the same before anything was divided
    runs: Ints  # -1 of means
    decides: Ints
    point: Point | None = None  # the newest
    regression: Regression | None = None

    @property
    def moved(self) -> bool:
        return bool(self.regression) or bool(self.point and self.point.verdict in {"regressed", "improved"})


def ends(numbers: Floats) -> tuple[float, float] | None:
    """Return the oldest and the newest number."""
    known = numbers[~np.isnan(numbers)]
    return (float(known[0]), float(known[-1])) if len(known) else None


def at_slots(frame: DataFrame, by: str) -> tuple[DataFrame, list[Slot]]:
    """Return the points that count, each with its slot, and the slots in order: of several points of a series
    in a night that of the level's host, else the newest. 1 statement, 1 more for versions of torch, and 1
    where a series has several points in a night."""
    moments = frame[["run", "time"]].drop_duplicates()
    runs = {
        pk: about
        for pk, *about in fetch_tuples(
            """
            SELECT id, stream_id, order_time,
                CASE order_time_source WHEN 'commit' THEN created ELSE order_time END, commit, host_name
            FROM hud_run WHERE id = ANY(%(runs)s::int[])
            """,
            {"runs": int_array(moments["run"].unique())},
        )
    }
    in_order, places = _nights(moments.to_numpy().tolist(), runs)
    frame = frame.merge(moments.assign(night=places), on=["run", "time"])
    frame["of_level"] = False
    if frame.duplicated(["series", "night"]).any():
        hosts = frame["run"].map({pk: host for pk, (*_about, host) in runs.items()})
        frame["of_level"] = hosts == frame["series"].map(_level_hosts(frame["series"].unique()))
    frame = frame.sort_values(["series", "night", "of_level", "time", "run"])
    if by == "torch":
        known = """SELECT id, coalesce(nullif(torch, ''), 'unknown') FROM hud_environment
            WHERE id = ANY(%(ids)s::int[])"""
        rows = fetch_tuples(known, {"ids": int_array(frame["environment"].unique())})
        labels = frame["environment"].map(dict(rows))
    else:
        names = [
            (night.short_commit or night.side) if by == "commit" else f"{night.time:%Y-%m-%d %H:%M}"
            for night in in_order
        ]
        labels = frame["night"].map(names.__getitem__)
    first_nights = frame["night"].groupby(labels).min().sort_values(kind="stable")
    frame["slot"] = labels.map({label: place for place, label in enumerate(first_nights.index)})
    frame = frame.drop_duplicates(["series", "slot"], keep="last").sort_values(["series", "slot"])
    return frame, [Slot(str(label), in_order[night]) for label, night in first_nights.items()]


def _nights(
    moments: Sequence[Sequence[int]], runs: Mapping[int, Sequence[Any]]
) -> tuple[list[Night], list[int]]:
    """Return the nights of all streams, oldest first, and the place of each moment's."""
    by_stream: dict[int, list[NightRun]] = defaultdict(list)
    for place, (run, time_us) in enumerate(moments):
        stream, order_time, began, commit, _host = runs[run]
        time = from_epoch_us(time_us)
        if time != order_time:  # of a history file, whose records have times of their own
            began, commit = time, ""
        by_stream[stream].append(NightRun(place, time, began, commit, active=False))
    groups = [nights.group(sorted(each, key=lambda run: (run.time, run.pk))) for each in by_stream.values()]
    in_order = sorted((night for group in groups for night in group), key=lambda night: night.time)
    of_moment = {moment: place for place, night in enumerate(in_order) for moment in night.runs}
    return in_order, [of_moment[place] for place in range(len(moments))]


def _level_hosts(series: Sequence[int]) -> dict[int, str]:
    """Return the host of each series' level: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT s.id, r.host_name FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL (
            SELECT level FROM hud_seriesstate WHERE series_id = s.id ORDER BY order_time DESC LIMIT 1) state
        JOIN hud_run r ON r.id = (state.level->>'last_run')::int
        """,
        {"series": int_array(series)},
    )
    return dict(rows)


def shown(frame: DataFrame, slots: Sequence[Slot], relative: str, partner_of: Mapping[int, int]) -> Any:
    """Return what is shown of each point: its value, or its ratio to the first one of the series, to that of
    a night, or to that of its partner in the same slot. None where there is no such base."""
    kind, _colon, name = relative.partition(":")
    if not kind:
        return frame["value"]
    if kind == "first":
        base = frame.groupby("series")["value"].transform("first")
    elif of_night := [at for at, slot in enumerate(slots) if kind == "night" and name in slot.night.names]:
        base = frame["series"].map(frame[frame["slot"] == of_night[-1]].set_index("series")["value"])
    elif kind == "backend" and partner_of:
        places = zip(frame["series"].map(partner_of), frame["slot"], strict=True)
        base = frame.set_index(["series", "slot"])["value"].reindex(list(places)).to_numpy()
    else:
        return None
    ratio = frame["value"] / base
    return ratio.where(np.isfinite(ratio))


def lines_of(frame: DataFrame, rows: Sequence[SeriesRow], filters: ExploreFilters) -> list[Line]:
    """Return the lines, each of one series, or the mean of a group's in one metric and stream."""
    if filters.line == "mean":
        return list(_means(frame, rows, filters))
    columns = [frame[name].to_numpy() for name in ("slot", "shown", "value", "run", "decides")]
    series = frame["series"].to_numpy()
    starts = np.flatnonzero(np.diff(series, prepend=-1)).tolist()
    parts = {int(series[start]): slice(start, end) for start, end in pairwise([*starts, len(series)])}
    varying = [
        name for name in DIMENSIONS if len({row.of(name) for row in rows}) > 1 and name != filters.group
    ]
    made = []
    for row in rows:
        if row.pk in parts:
            group, metric = row.of(filters.group), row.of("metric")
            name = " · ".join(row.of(name) for name in varying) or group
            numbers = [column[parts[row.pk]] for column in columns]
            made.append(Line(name, str(row.pk), group, row.of(filters.colour), metric, 1, row, *numbers))
    return made


def _means(frame: DataFrame, rows: Sequence[SeriesRow], filters: ExploreFilters) -> Iterator[Line]:
    """Yield the geometric means of the groups. A series that is missing in one night leaves the mean where it
    was: each counts by its distance from its own level."""
    members: dict[tuple[str, ...], list[SeriesRow]] = defaultdict(list)
    for row in rows:
        members[row.of(filters.group), row.of("metric"), row.of("stream")].append(row)
    tables = [frame.pivot(index="slot", columns="series", values=name) for name in ("shown", "value")]
    logs = [np.log(table.where(table > 0)).dropna(axis=1, how="all") for table in tables]
    several = len({names[1:] for names in members}) > 1
    for names, of_group in members.items():
        if known := [row.pk for row in of_group if row.pk in logs[0] and row.pk in logs[1]]:
            parts = [table[known] for table in logs]
            means = [np.exp(each.mean().mean() + (each - each.mean()).mean(axis=1)) for each in parts]
            slots = means[0].dropna().index
            numbers = [mean.reindex(slots).to_numpy() for mean in means]
            colours = {row.of(filters.colour) for row in of_group}
            shared = colours.pop() if len(colours) == 1 else ""
            name, key = " · ".join(names if several else names[:1]), ":".join(names)
            ones = np.ones(len(slots), int)
            numbers = [slots.to_numpy(), *numbers, -ones, ones]
            yield Line(name, key, names[0], shared, names[1], len(known), None, *numbers)


def styles(names: Sequence[str], *, of_backends: bool) -> dict[str, Style]:
    """Return a style for each name, no two alike while there are up to 30. Backends have the colours that
    they have everywhere, and others none of these."""
    made: dict[str, Style] = {}
    for name in names if of_backends else ():
        if number := colour(name):
            style = number, _OWN_DASHES.get(number, "solid")
            made[name] = (number, "dashdot") if style in made.values() else style
    least = _OF_BACKENDS + 1 if of_backends else 1
    offered = [(number, dash) for dash, number in product(_DASHES, range(least, _COLOURS + 1))]
    free = [style for style in offered if style not in made.values()]
    others = [name for name in names if name not in made]
    return made | {name: free[place % len(free)] for place, name in enumerate(others)}
