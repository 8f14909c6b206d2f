"""Addresses from before a renaming: a page redirects to its present one, data and the API answer like it."""

import re
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin

from hud.models import Aliases, Experiment
from hud.pages import streams

_KINDS = {"suite": "suite", "trend": "suite", "case": "case", "q": "case"}  # of what parameters name
_KINDS |= {name: name for name in ("arch", "host", "experiment")}
_PATHS = {  # the arguments in a path, and the kinds of what they name
    "suites/<name:name>": {"name": "suite"},
    "models/<name:suite>/<case:case>": {"suite": "suite", "case": "case"},
    "experiments/<int:pk>": {"pk": "experiment"},
    "api/v1/series/<int:experiment>": {"experiment": "experiment"},
}
_OF_SIDE = re.compile(r"(?P<kind>^host|/experiment):(?P<name>[^/]+)")
_WITH_SIDES, _CELL = ("base", "head"), "cell"
_NAMING = {*_KINDS, *_WITH_SIDES, _CELL}  # parameters
_SEARCHED = ("case", "suite", "arch", "host")  # what the words of a search may name


class RenamedMiddleware(MiddlewareMixin):
    """Replace the former names of suites, cases, arches and hosts, and the ids of merged experiments, in the
    path and the query of a request."""

    def process_view(
        self, request: HttpRequest, _view: Callable[..., Any], _args: list[Any], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        match = request.resolver_match
        if match is None or match.namespaces not in ([], ["api"]):
            return None
        named = next((_PATHS[path] for path in _PATHS if match.route.startswith(path)), {})
        if not named and not request.GET.keys() & _NAMING:
            return None
        known = [] if match.namespaces else streams.listed(request)  # for which a page asks anyway
        has_aliases = getattr(known[0], "has_aliases", True) if known else True
        if not has_aliases or not (aliases := Aliases.read()):
            return None
        arguments, suite = dict(kwargs), request.GET.get("suite", "")
        for argument, kind in named.items():
            name = aliases.current(kind, str(kwargs[argument]), suite if kind == "case" else "")
            arguments[argument] = type(kwargs[argument])(name)
            suite = name if kind == "suite" else suite
        query = _renamed(request.GET, aliases, aliases.current("suite", suite))
        if match.url_name == "search" and "q" in query:
            query["q"] = _searched(aliases, request.GET["q"])
        if (query, arguments) == (request.GET, kwargs):
            return None
        if request.method in {"GET", "HEAD"} and not match.namespaces and "data_format" not in kwargs:
            return redirect(f"{reverse(match.view_name, kwargs=arguments)}?{query.urlencode(safe=':/')}")
        request.GET = query  # type: ignore[assignment]
        kwargs.update(arguments)
        return None


def _renamed(query: QueryDict, aliases: Aliases, suite: str) -> QueryDict:
    """Return a query with the present names, `suite` being that of its cases and arches, '' all."""

    def of_side(part: re.Match[str]) -> str:
        return f"{part['kind']}:{_current(aliases, part['kind'].lstrip('/'), part['name'], suite)}"

    renamed = query.copy()
    for name, values in query.lists():
        if name in _WITH_SIDES:
            renamed.setlist(name, [_OF_SIDE.sub(of_side, value) for value in values])
        elif name == _CELL:  # suite/backend
            parts = (value.partition("/") for value in values)
            renamed.setlist(name, [aliases.current("suite", first) + "".join(rest) for first, *rest in parts])
        elif name in _KINDS:
            renamed.setlist(name, [_current(aliases, _KINDS[name], value, suite) for value in values])
    return renamed


def _searched(aliases: Aliases, text: str) -> str:
    """Return the text of a search with present names for it as a whole, else for each of its words. A name
    that holds the former one is found by that."""

    def current(name: str) -> str:
        new_names = (_current(aliases, kind, name, "") for kind in _SEARCHED)
        return next((new for new in new_names if name not in new), name)

    whole = current(text)
    return whole if whole != text else re.sub(r"\S+", lambda word: current(word[0]), text)


def _current(aliases: Aliases, kind: str, name: str, suite: str) -> str:
    """Return what a name is called now. Without a suite, one that was renamed in a suite only has its new
    name once nothing else has the old one."""
    new = aliases.current(kind, name, suite)
    if new != name or suite:
        return new
    in_suites = {aliases.current(kind, name, one) for of, one, old in aliases if (of, old) == (kind, name)}
    if len(in_suites) == 1 and not Experiment.objects.filter(**{kind: name}).exists():
        return in_suites.pop()
    return name
