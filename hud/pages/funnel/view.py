"""The funnel of judgement: how many points become suspects, and how many of those are real."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from hud.judging.regressions.counts import read_weeks
from hud.pages import data, streams
from hud.tables.table import DataTable

_HEIGHT = 100  # units of the chart
_LEAST_COLUMNS = 8  # weeks in it
_COUNTS = "points suspects repeats noise opened confirmed dismissed resolved accepted"
_SHOWN = _COUNTS.split()
_HEIGHTS = ("suspects", "opened", "dismissed")
_DATA = DataTable(f"week=name start {_COUNTS} false_alarm_rate=false_alarms")


def funnel(request: HttpRequest, data_format: str = "") -> HttpResponse:
    found = read_weeks(streams.of_request(request), timezone.now())
    if data_format:
        return data.answer_table(data_format, "funnel", _DATA, found)
    is_filled = [any(getattr(week, name) for name in _SHOWN) for week in reversed(found)]
    filled = max(len(found) - is_filled.index(True), 1) if True in is_filled else 1
    drawn = found[: max(filled, _LEAST_COLUMNS)]
    scale = _HEIGHT / (max(getattr(week, name) for week in drawn for name in _HEIGHTS) or 1)
    columns = [  # heights in units of the chart
        {"week": week, "x": x, **{name: getattr(week, name) * scale for name in _HEIGHTS}}
        for x, week in enumerate(reversed(drawn))
    ]
    found = found[:filled]  # no empty weeks before the first one
    total = {name: sum(getattr(week, name) for week in found) for name in (*_SHOWN, "real")}
    decided = total["real"] + total["dismissed"]
    context = {
        "weeks": found,
        "columns": columns,
        "total": total,
        "false_alarms": total["dismissed"] / decided if decided else None,
        "decided": decided,
    }
    return render(request, "funnel/funnel.html", context)
