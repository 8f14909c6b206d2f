"""Search: cases, experiments, suites, runs, hosts and regressions by words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    When,
    Window,
)
from django.db.models.functions import Cast, Length
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from hud.columns import Columns
from hud.judging.regressions.states import ACTIVE
from hud.models import Experiment, Host, Point, Regression, Run, Series, Stream
from hud.pages import data, query_string, streams
from hud.pages.query_string import words as text_field
from hud.pages.streams import link
from runner.suites import SUITES

COLUMNS = Columns(
    "kind title about url", about=lambda one: ", ".join(filter(None, (one.about, one.commit[:10])))
)
MOST = 12  # results of a kind
_MOST_WORDS = 8
_FEWEST_OF_HASH = 4
_MAX_ID = 2**31 - 1
_BETWEEN_WORDS = re.compile(r"[\0\[\],]+")  # of a title such as layer_norm[D=4096,size=tiny]
_NAMES = ("suite", "case", "backend", "mode", "dtype", "arch")


@dataclass(frozen=True)
class Result:
    kind: str
    title: str
    about: str
    url: str
    commit: str = ""  # of a run


@dataclass(frozen=True)
class Results:
    """The results of one kind, and how many there are."""

    kind: str
    found: list[Result]
    total: int


@dataclass(frozen=True)
class _Asked:
    q: str = text_field()


def search(request: HttpRequest, data_format: str = "") -> HttpResponse:
    asked, complaints = query_string.read(_Asked, request.GET, data_format)
    text = asked.q
    kinds = find(streams.of_request(request), text)
    if data_format:
        rows = [COLUMNS.row(one) for kind in kinds for one in kind.found]
        totals = {kind.kind: kind.total for kind in kinds}
        return data.answer(data_format, "search", rows, COLUMNS.names, q=text, totals=totals)
    streams.name_in_links(request)
    context = {"text": text, "kinds": kinds, "complaints": complaints}
    return render(request, "search/search.html", context)


def find(stream: Stream, text: str) -> list[Results]:
    """Return what matches all words: of the page's stream first, then the closest, then the newest, and last
    what was never measured. 6 statements, none for an empty text."""
    words = _BETWEEN_WORDS.sub(" ", text).split()[:_MOST_WORDS]
    if not words:
        return []
    kinds = [
        _cases(words, stream),
        _suites(words),
        _experiments(words, stream),
        _regressions(words, stream),
        _runs(words, stream),
        _hosts(words),
    ]
    number = _number(words)
    if number is not None:  # an id is meant before a name that holds the same digits
        kinds.sort(key=lambda one: one.kind not in {"run", "regression"})
    return [one for one in kinds if one.found]


def _number(words: list[str]) -> int | None:
    """Return the id that is asked for: ``12``, ``run 12``, ``#12``."""
    text = words[-1].removeprefix("#").removeprefix("run:")
    if not (text.isascii() and text.isdigit() and len(text) < 11) or int(text) > _MAX_ID:
        return None
    return int(text) if len(words) == 1 or words[0].lower() in {"run", "regression"} else None


def _named(found: QuerySet[Any], words: Iterable[str], path: str = "") -> QuerySet[Any]:
    """Return the rows whose experiment has each word in its name or options, as in ``size=tiny``."""
    found = found.alias(options=Cast(f"{path}knobs", TextField()))
    for word in words:
        one = Q()
        for name in _NAMES:
            one |= Q(**{f"{path}{name}__icontains": word})
        stored = word.replace("\\", "\\\\")  # as JSON
        name, _, value = stored.partition("=")
        for text in (f'"{name}": {value}', f'"{name}": "{value}') if value else (stored,):
            one |= Q(options__icontains=text)
        found = found.filter(one)
    return found


def _measured(words: list[str], stream: Stream) -> QuerySet[Any]:
    """Return the experiments that match, with `rank`, 0 for those with results in the stream and 2 for those
    without any, and `newest`, the time of their newest point."""
    newest_point = Point.objects.filter(series=OuterRef("pk"), rerun=False).order_by("-order_time")
    series = Series.objects.filter(experiment=OuterRef("pk"))
    series = series.annotate(newest=Subquery(newest_point.values("order_time")[:1]))
    newest_first = series.order_by(F("newest").desc(nulls_last=True))
    own = Exists(series.filter(stream=stream, newest__isnull=False))
    elsewhere = Q(newest__isnull=False)
    exact, begins = Q(case__iexact=words[0]), Q(case__istartswith=words[0])
    measured: QuerySet[Any] = _named(Experiment.objects.all(), words).annotate(
        newest=Subquery(newest_first.values("newest")[:1]),
        rank=Case(When(own, then=0), When(elsewhere, then=1), default=2),
        close=Case(When(exact, then=0), When(begins, then=1), default=2),
    )
    return measured


def _cases(words: list[str], stream: Stream) -> Results:
    rows = list(
        _measured(words, stream)
        .values("suite", "case")
        .annotate(
            experiments=Count("pk"),
            total=Window(Count("*")),
            best=Min("rank"),
            last=Max("newest"),
        )
        .order_by("best", "close", F("last").desc(nulls_last=True), Length("case"), "case", "suite")[:MOST]
    )
    found = [
        Result(
            "case",
            row["case"],
            f"{row['suite']}, {row['experiments']} experiment{'s' if row['experiments'] > 1 else ''}",
            link(reverse("suite", args=[row["suite"]]), q=row["case"]),
        )
        for row in rows
        if _can_be_address(row["suite"])
    ]
    return Results("case", found, rows[0]["total"] if rows else 0)


def _can_be_address(suite: str) -> bool:
    return bool(suite) and "/" not in suite and suite.isprintable()


def _suites(words: list[str]) -> Results:
    known = {*SUITES, *Experiment.objects.values_list("suite", flat=True).distinct().order_by()}
    lower = [word.lower() for word in words]
    names = sorted(
        name for name in known if all(word in name.lower() for word in lower) and _can_be_address(name)
    )
    titles = {name: SUITES[name].title for name in names if name in SUITES}
    found = [
        Result("suite", name, titles.get(name, ""), link(reverse("suite", args=[name])))
        for name in names[:MOST]
    ]
    return Results("suite", found, len(names))


def _experiments(words: list[str], stream: Stream) -> Results:
    newest_first = F("newest").desc(nulls_last=True)
    names = (Length("case"), "case", Length("options"), "backend", "pk")
    rows, total = _top(_measured(words, stream), "rank", "close", newest_first, *names)
    found = []
    for one in rows:
        address = reverse("experiment", args=[one.pk])  # without a stream it shows one that has results
        facts = (one.suite, one.backend, one.mode, one.dtype, one.arch or one.device)
        about = " · ".join(filter(None, (*facts, "dynamic shapes" if one.dynamic else "")))
        found.append(Result("experiment", one.title, about, address if one.rank else link(address)))
    return Results("experiment", found, total)


def _regressions(words: list[str], stream: Stream) -> Results:
    active = _named(Regression.objects.filter(state__in=ACTIVE), words, "series__experiment__")
    wanted = Q(pk__in=active.values("pk"))
    number = _number(words)
    if number is not None and words[0].lower() != "run":
        wanted |= Q(pk=number)
    named = Regression.objects.filter(wanted).select_related(
        "series__experiment", "series__metric", "series__stream"
    )
    rows, total = _top(named, Case(When(series__stream=stream, then=0), default=1))
    found = [
        Result(
            "regression",
            f"{one.pk} {one.series.experiment.title}",
            f"{one.state}, {one.series.metric.title}, {one.series.experiment.backend}",
            link(reverse("regressions"), stream=one.series.stream, open=one.pk),
        )
        for one in rows
    ]
    return Results("regression", found, total)


def _runs(words: list[str], stream: Stream) -> Results:
    wanted = Q()
    for word in words:
        one = Q(title__icontains=word) | Q(host_name__icontains=word) | Q(branch__icontains=word)
        if len(word) >= _FEWEST_OF_HASH:
            one |= Q(commit__istartswith=word)
        wanted &= one
    number = _number(words)
    if number is not None and words[0].lower() != "regression":
        wanted |= Q(pk=number)
    names = ("title", "host_name", "branch", "commit", "order_time")
    is_elsewhere = Case(When(stream=stream, then=0), default=1)
    rows, total = _top(Run.objects.filter(wanted).only(*names), is_elsewhere, "-order_time")
    found = [
        Result(
            "run",
            f"Run {run.pk}",
            ", ".join(filter(None, (run.title, run.host_name, f"{run.order_time:%-d %b %Y}"))),
            reverse("run", args=[run.pk]),
            run.commit,
        )
        for run in rows
    ]
    if number is not None:
        found.sort(key=lambda one: one.title != f"Run {number}")
    return Results("run", found, total)


def _hosts(words: list[str]) -> Results:
    wanted = Q()
    for word in words:
        wanted &= Q(name__icontains=word)
    rows, total = _top(Host.objects.filter(wanted).only("name", "detached_at"))
    found = [
        Result("host", one.name, "detached" if one.detached_at else "attached", reverse("hosts"))
        for one in rows
    ]
    return Results("host", found, total)


def _top(found: QuerySet[Any], *order: Any) -> tuple[list[Any], int]:
    """Return the first results, and how many there are."""
    rows = list(found.annotate(total=Window(Count(F("pk")))).order_by(*order, "-pk")[:MOST])
    return rows, rows[0].total if rows else 0
