"""The funnel of a stream by ISO week: how many points came, and what became of those that moved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.safestring import SafeString

from hud.models import Stream
from hud.pages import data, streams
from hud.sql import fetch_tuples
from hud.states.regressions import RegressionState
from hud.tables.formatting import percent
from hud.tables.html import dim, element
from hud.tables.table import Column, DataTable

WEEKS = 26  # that are read
_HEIGHT = 100  # units of the chart
_LEAST_COLUMNS = 8  # weeks in it
_BARS = {"suspects": 0.1, "opened": 0.2, "dismissed": 0.3}  # with what is free on either side of a bar
_S = RegressionState
_WEEK = "date_trunc('week', {} AT TIME ZONE 'UTC')::date"  # its Monday


@dataclass
class Week:
    """`start` is its Monday. `noise` are suspects that a second point did not show; `dismissed` are
    regressions that were listed and turned out to be none."""

    start: date
    points: int = 0
    suspects: int = 0
    repeats: int = 0
    noise: int = 0
    opened: int = 0
    confirmed: int = 0
    dismissed: int = 0
    resolved: int = 0
    accepted: int = 0
    real: int = 0  # confirmed, or accepted while open

    @property
    def name(self) -> str:
        year, week, _day = self.start.isocalendar()
        return f"{year}-W{week:02}"

    @property
    def false_alarms(self) -> float | None:
        """Return the share of dismissed regressions among those that this week found to be real or not; None
        where there was none."""
        decided = self.real + self.dismissed
        return self.dismissed / decided if decided else None


def read(stream: Stream, now: datetime) -> list[Week]:
    """Return the weeks up to now, the newest first: 1 statement."""
    today = now.astimezone(UTC).date()
    starts = [today - timedelta(days=today.weekday(), weeks=back) for back in range(WEEKS)]
    weeks = {start: Week(start) for start in starts}
    rows = fetch_tuples(
        f"""
        SELECT {_WEEK.format("created")}, '', '', sum(points)::int,
            count(*) FILTER (WHERE id IN (SELECT repeat_run_id FROM hud_regression))
        FROM hud_run WHERE stream_id = %(stream)s AND created >= %(first)s GROUP BY 1
        UNION ALL
        SELECT {_WEEK.format("at")}, before, after, count(*), 0 FROM hud_regressionevent
        WHERE at >= %(first)s AND before <> after AND regression_id = ANY(ARRAY(
            SELECT g.id FROM hud_regression g  -- by their keys, as regressions are few
            WHERE (SELECT stream_id FROM hud_series WHERE id = g.series_id) = %(stream)s))
        GROUP BY 1, 2, 3
        """,  # noqa: S608 — constants  # nosec B608
        {"first": datetime.combine(starts[-1], time.min, UTC), "stream": stream.pk},
    )
    for start, before, after, count, repeats in rows:
        week = weeks.get(start)
        if week is None:  # a clock that runs ahead
            continue
        if not after:
            week.points, week.repeats = count, repeats
        for name in _kinds(before, after):
            setattr(week, name, getattr(week, name) + count)
    return list(weeks.values())


def _kinds(before: str, after: str) -> Iterator[str]:
    """Yield as what it counts that a regression went from one state to another."""
    was_suspect = before == _S.SUSPECT
    is_decided = after in {_S.CONFIRMED, _S.RESOLVED, _S.ACCEPTED}
    if after == _S.SUSPECT:
        yield "suspects"
    elif after == _S.DISMISSED:
        yield "noise" if was_suspect else "dismissed"
    elif is_decided:
        yield after
    if after == _S.OPEN or (is_decided and was_suspect):  # pairs confirmed it at once
        yield "opened"
    if after == _S.CONFIRMED or (before, after) == (_S.OPEN, _S.ACCEPTED):
        yield "real"


def _count(name: str, title: str, tooltip: str = "") -> Column[Week, None]:
    return Column(name, title, show="{:,}".format, css="num", label=title.lower(), tooltip=tooltip)


_COUNTS = (
    _count("points", "Points judged"),
    _count("suspects", "Suspects", "points that left their level, but not surely"),
    _count("repeats", "Repeats", "silent repeats of suspects on a host"),
    _count("noise", "Noise", "suspects that a second point did not show"),
    _count("opened", "Regressions"),
    _count("confirmed", "Confirmed", "by pairs or a person"),
    _count("dismissed", "Dismissed", "regressions that pairs or a person found to be none"),
    _count("resolved", "Resolved", "back at their level"),
    _count("accepted", "Accepted", "their level is the new baseline"),
)
_TABLE = DataTable[Week, None](
    Column(
        "week", "Week", "name", is_head=True,
        draw=lambda week, _: element("time", week.name, datetime=str(week.start), title=f"from {week.start}"),
    ),
    "start",
    *_COUNTS,
    Column(
        "false_alarm_rate", "False alarms", "false_alarms", css="num", label="false alarms",
        show=lambda rate: dim("none decided") if rate is None else percent(rate),
        tooltip="dismissed ÷ (confirmed + accepted while open + dismissed)",
    ),
)  # fmt: skip


def _bars(weeks: Sequence[Week]) -> SafeString:
    """Draw suspects, regressions and dismissals of each week one in front of the other, the newest last."""
    scale = _HEIGHT / (max(getattr(week, name) for week in weeks for name in _BARS) or 1)
    columns = []
    for x, week in enumerate(reversed(weeks)):
        counts = f"{week.suspects} suspects, {week.opened} regressions, {week.dismissed} dismissed"
        bars = "".join(
            f'<rect class="{name}" x="{free}" width="{1 - 2 * free:.1f}"'
            f' height="{getattr(week, name) * scale:.2f}" transform="translate(0 {_HEIGHT}) scale(1 -1)"/>'
            for name, free in _BARS.items()
        )
        columns.append(
            f'<g transform="translate({x} 0)"><title>{week.name}: {counts}</title>'
            f'<rect x=".1" width=".8" y="0" height="{_HEIGHT}" class="space"/>{bars}</g>'
        )
    return SafeString(
        f'<svg viewBox="0 0 {len(weeks)} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label='
        f'"Suspects, regressions and dismissals by week; the table has the numbers">{"".join(columns)}</svg>'
    )


def funnel(request: HttpRequest, data_format: str = "") -> HttpResponse:
    weeks = read(streams.of_request(request), timezone.now())
    if data_format:
        return data.answer_table(data_format, "funnel", _TABLE, weeks)
    names = [column.name for column in _COUNTS]
    first = next((week for week in reversed(weeks) if any(getattr(week, name) for name in names)), weeks[0])
    shown = weeks[: weeks.index(first) + 1]  # no empty weeks before the first one
    drawn = weeks[: max(len(shown), _LEAST_COLUMNS)]
    total = {name: sum(getattr(week, name) for week in shown) for name in (*names, "real")}
    decided = total["real"] + total["dismissed"]
    context = {
        "table": _TABLE.html(shown, None, caption="ISO weeks, newest first, in UTC"),
        "bars": _bars(drawn),
        "span": f"{drawn[-1].name} to {drawn[0].name}",
        "total": total,
        "false_alarms": total["dismissed"] / decided if decided else None,
        "decided": decided,
    }
    return render(request, "funnel/funnel.html", context)
