"""Find cases, experiments, suites, runs, hosts and regressions by words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, TextField, Value, When, Window
from django.db.models.functions import Cast, Length
from django.urls import reverse
from django.utils.http import urlencode

from hud.judging.regressions.states import ACTIVE
from hud.models import Experiment, Host, Regression, Run
from runner.suites import SUITES

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

    def to_row(self) -> dict[str, Any]:
        about = ", ".join(filter(None, (self.about, self.commit[:10])))
        return {"kind": self.kind, "title": self.title, "about": about, "url": self.url}


@dataclass(frozen=True)
class Results:
    """The results of one kind, and how many there are."""

    kind: str
    found: list[Result]
    total: int


def search(text: str) -> list[Results]:
    """Return what matches all words, the closest first: 6 statements, none for an empty text."""
    words = _BETWEEN_WORDS.sub(" ", text).split()[:_MOST_WORDS]
    if not words:
        return []
    kinds = [
        _cases(words),
        _suites(words),
        _experiments(words),
        _regressions(words),
        _runs(words),
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


def _closeness(word: str, name: str = "case") -> Case:
    return Case(
        When(**{f"{name}__iexact": word}, then=Value(0)),
        When(**{f"{name}__istartswith": word}, then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )


def _cases(words: list[str]) -> Results:
    rows = list(
        _named(Experiment.objects.all(), words)
        .values("suite", "case")
        .annotate(experiments=Count("pk"), total=Window(Count("*")), close=_closeness(words[0]))
        .order_by("close", Length("case"), "case", "suite")[:MOST]
    )
    found = [
        Result(
            "case",
            row["case"],
            f"{row['suite']}, {row['experiments']} experiment{'s' if row['experiments'] > 1 else ''}",
            f"{reverse('suite', args=[row['suite']])}?{urlencode({'q': row['case']})}",
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
        Result("suite", name, titles.get(name, ""), reverse("suite", args=[name])) for name in names[:MOST]
    ]
    return Results("suite", found, len(names))


def _experiments(words: list[str]) -> Results:
    close = _named(Experiment.objects.all(), words).annotate(
        total=Window(Count("pk")), close=_closeness(words[0])
    )
    rows = list(close.order_by("close", Length("case"), "case", Length("options"), "backend", "pk")[:MOST])
    found = [Result("experiment", one.title, _about(one), _experiment(one)) for one in rows]
    return Results("experiment", found, rows[0].total if rows else 0)


def _experiment(one: Experiment) -> str:
    return reverse("experiment", args=[one.pk])


def _about(one: Experiment) -> str:
    words = (one.suite, one.backend, one.mode, one.dtype, one.arch or one.device)
    return " · ".join(filter(None, (*words, "dynamic shapes" if one.dynamic else "")))


def _regressions(words: list[str]) -> Results:
    active = _named(Regression.objects.filter(state__in=ACTIVE), words, "series__experiment__")
    wanted = Q(pk__in=active.values("pk"))
    number = _number(words)
    if number is not None and words[0].lower() != "run":
        wanted |= Q(pk=number)
    rows = _counted(Regression.objects.filter(wanted).select_related("series__experiment", "series__metric"))
    found = [
        Result(
            "regression",
            f"{one.pk} {one.series.experiment.title}",
            f"{one.state}, {one.series.metric.title}, {one.series.experiment.backend}",
            f"{reverse('regressions')}?open={one.pk}",
        )
        for one in rows
    ]
    return Results("regression", found, _total(rows))


def _runs(words: list[str]) -> Results:
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
    rows = _counted(Run.objects.filter(wanted).only(*names))
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
    return Results("run", found, _total(rows))


def _hosts(words: list[str]) -> Results:
    wanted = Q()
    for word in words:
        wanted &= Q(name__icontains=word)
    rows = _counted(Host.objects.filter(wanted).only("name", "detached_at"))
    found = [
        Result("host", one.name, "detached" if one.detached_at else "attached", reverse("hosts"))
        for one in rows
    ]
    return Results("host", found, _total(rows))


def _counted(found: QuerySet[Any]) -> list[Any]:
    return list(found.annotate(total=Window(Count(F("pk")))).order_by("-pk")[:MOST])


def _total(rows: list[Any]) -> int:
    return rows[0].total if rows else 0
