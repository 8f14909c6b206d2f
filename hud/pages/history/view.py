"""Questions over whole histories, which the archive answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.archive import ask
from hud.archive.ask import COMPARED, FLAGGED, REGRESSED, HistoryAnswer, Question, SeriesChange
from hud.archive.months import WRITTEN_EVERY_H
from hud.pages import data, query_string, streams
from hud.pages.query_string import number, parameter, words
from hud.problems import Problem
from hud.tables.formatting import address, long_name, moment, quantity, run_link, signed_percent, signed_share
from hud.tables.html import NOTHING, dim, element, join, text
from hud.tables.table import Column, DataTable

_DEFAULTS = Question()


@dataclass(frozen=True)
class HistoryFilters:
    question: str = parameter(
        forms.ChoiceField(required=False, choices=list(ask.KINDS.items())),
        REGRESSED,
        label="Question",
        blank=None,
    )
    months: int = number(ask.MOST_MONTHS, default=_DEFAULTS.months, label="Months", type="number", min="1")
    percent: int = number(
        100, default=round(100 * _DEFAULTS.least), label="At least, %", type="number", min="1"
    )
    suite: str = words(60, label="Suite")
    metric: str = words(label="Metric")
    base: str = words(100, label="Torch before", blank="choose")
    head: str = words(100, label="Torch after", blank="choose")


def _title(change: SeriesChange, page: Question) -> SafeString:
    own, metric = change.series.experiment, change.series.metric
    about = " · ".join(filter(None, (metric.title, own.suite, own.arch, own.mode, own.dtype, own.backend)))
    where = streams.link(address(own.pk, "experiment"), metric=metric.name)
    name = f'<a href="{text(where)}"{long_name(own.title)}>{text(own.title)}</a>'
    return join(SafeString(name), element("span", about, css="dim under", title=about))


def _value(name: str) -> Any:
    return lambda change, _page: quantity(getattr(change, name), change.series.metric)


def _moved(change: SeriesChange, _page: Question) -> SafeString:
    relative = (change.after - change.before) / abs(change.before)
    return element("b", signed_percent(relative), css="slower" if change.worse > 0 else "faster")


def _when(change: SeriesChange, page: Question) -> object:
    if change.run is None:
        return dim("no single step")
    return join(moment(change.time), run_link(change.run, f"run {change.run}"))


_CHANGES = DataTable[SeriesChange, Question](
    *ask.COLUMNS.columns,
    Column("", "Experiment", draw=_title, is_head=True),
    Column("", "Before", draw=_value("before"), css="num"),
    Column("", "After", draw=_value("after"), css="num"),
    Column("", "Change", draw=_moved, css="num"),
    Column(
        "",
        lambda page: "Point" if page.kind == FLAGGED else "Largest step",
        draw=_when,
        only=lambda page: page.kind != COMPARED,
    ),
    Column(
        "",
        "Judge",
        "judged",
        show=lambda judged: "regressed" if judged else dim("no"),
        only=lambda page: page.kind == FLAGGED,
    ),
)


def _count(name: str, title: str, tooltip: str = "") -> Column[dict[str, Any], None]:
    return Column(name, title, lambda row: row[name], show="{:,}".format, css="num", tooltip=tooltip)


_TOTALS = {
    COMPARED: DataTable[dict[str, Any], None](
        Column("suite", "Suite", lambda row: row["suite"] or "all", is_head=True),
        _count("series", "Series"),
        _count("worse", "Worse"),
        _count("better", "Better"),
        Column("", "Mean gain", lambda row: row["mean_gain"], show=signed_share, css="num",
               tooltip="geometric; below 0 for the worse"),
    ),
    FLAGGED: DataTable[dict[str, Any], None](
        Column("month", "Month", lambda row: row["month"] or "all", is_head=True),
        _count("points", "Points"),
        _count("flagged", "Flagged", "worse than the point before by the limit"),
        _count("returned", "Back at once", "of those, within the limit again at the next point"),
        _count("both", "Judge too", "of those flagged, where the judge saw a regression begin"),
        _count("regressed", "Judge in all", "regressions that the judge saw begin"),
    ),
}  # fmt: skip


def _months(months: Sequence[date]) -> str:
    more = f" and {len(months) - 6} more" if len(months) > 6 else ""
    return ", ".join(f"{month:%B %Y}" for month in months[-6:]) + more


def history(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(HistoryFilters, request.GET, data_format)
    stream, problem, answer = streams.of_request(request), "", HistoryAnswer()
    about = {name: getattr(filters, name) for name in ("months", "suite", "metric", "base", "head")}
    question = Question(kind=filters.question, least=filters.percent / 100, **about)
    try:
        answer = ask.ask(question, stream)
    except Problem as error:
        if data_format:
            raise
        problem = error.detail
    if data_format:
        return data.answer_table(
            data_format, "history", _CHANGES, answer.items, stream=stream.name, **answer.to_json()
        )
    versions = ask.torches() if question.kind == COMPARED else []
    clear = streams.link(reverse("history"))
    context = {
        "question": question,
        "answer": answer,
        "problem": problem,
        "changed": _months(answer.changed_months),
        "unwritten": _months(answer.unwritten_months),
        "written_every_h": WRITTEN_EVERY_H,
        "form": query_string.filter_form(
            filters,
            offered={"question": list(ask.KINDS.items()), "base": versions, "head": versions},
            hidden={"stream": stream.name},
            clear=clear,
            button="Ask",
        ),
        "total": answer.totals[0] if answer.totals else None,
        "totals": _TOTALS[question.kind].html(answer.totals, None) if question.kind in _TOTALS else NOTHING,
        "changes": _CHANGES.html(answer.items, question, empty="Nothing changed by as much."),
        "complaints": complaints,
    }
    return render(request, "history/history.html", context)
