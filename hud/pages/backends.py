"""What the overview and the compilers' page show of suites and backends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from hud.judging.regressions.read import Counts, Scope, count
from hud.models import Point, Stream
from hud.pages import backends_table as of_table
from hud.pages.backends_table import TREND_NIGHTS, Table
from hud.pages.query_string import one_of, parameter, select, words
from hud.points import expectations, streams
from hud.points import nights as of_nights
from hud.points.kept import Kept
from hud.points.nights import Night, Results, Subject
from hud.points.read import NEWEST_POINT
from hud.runs.branches import branch_or_default, other_branch, stored_names
from hud.sql import fetch_tuples
from hud.tables.html import join
from runner.schema.devices import is_named
from runner.suites import CEILINGS

WINDOWS = (1, 7, 28, 90)  # days from the baseline to the candidate
CHOICES = ("arch", "mode", "dtype")
_MOST_OFFERED = 6  # subjects, where a page has nothing to show
_MOST_KEPT = 64  # tables in the memory of a process
_MOST_DRAWN = 20  # ways to show one table
SORTS = ("certainty", "change", "name", "speedup")  # of the cases
SHOWN = ("regressed", "improved", "failed")
_DAYS = forms.TypedChoiceField(
    required=False, coerce=int, empty_value=None, choices=[(days, days) for days in WINDOWS]
)


_suites_of_nights = Kept(64, list[Any])


@dataclass(frozen=True)
class BackendFilters:
    """The query string; '' means the default subject of the stream, or the usual side."""

    branch: str = words()
    arch: str = words(100)
    mode: str = words(40)
    dtype: str = words(40)
    base: str = words(210)
    head: str = words(210)
    window: int = parameter(_DAYS, 7)
    formulas: str = one_of("hud")  # those of PyTorch's HUD
    cell: str = words()  # suite/backend whose cases are listed
    sort: str = one_of(*SORTS)
    show: str = one_of(*SHOWN)
    trend: str = words(60)  # the suite of the trend charts

    @property
    def subject(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in CHOICES}


@dataclass
class BackendComparison:
    """The table with what its pickers offer."""

    stream: Stream
    filters: BackendFilters  # with what was chosen for the empty ones
    choices: dict[str, list[str]]
    suites: list[str]  # that the stream has measured on the arch
    only_arch: bool  # it has measured no other
    nights: list[Night] = field(default_factory=list)  # with results of the subject, oldest first
    base: Night | None = None
    head: Night | None = None
    table: Table | None = None
    results: dict[Night, Results] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)  # of what waits: of the subject, between the sides
    later: Night | None = None  # the newest night with results, if that is not the candidate
    growing: Night | None = None  # the candidate or a later night, whose tasks have not all ended
    instead: list[Subject] = field(default_factory=list)  # that have results, where this page shows none
    complaints: list[str] = field(default_factory=list)
    nights_of_stream: list[Night] = field(default_factory=list)  # of any subject, oldest first
    same_but_arch: list[str] = field(default_factory=list)  # archs of its mode and type

    @property
    def versions(self) -> tuple[object, ...]:
        """Return what changes with the points of the sides, or of their subject."""
        nights = [(night.runs, night.versions) for night in (self.base, self.head) if night]
        return self.stream.pk, self.only_arch, *self.filters.subject.values(), *nights

    @property
    def scope(self) -> Scope:
        base, head = (side.time if side else None for side in (self.base, self.head))
        return Scope(self.stream, **self.filters.subject, base=base, head=head)

    @cached_property
    def has_declared(self) -> bool:
        """Return whether lists or people say something in the stream: 1 statement."""
        return expectations.knows_any(self.stream.pk)

    @cached_property
    def declared(self) -> list[Point]:
        """Return the points of the candidate of which lists or people say something: 6 statements, none where
        nothing is said in the stream."""
        return expectations.of_runs(self.stream.pk, self.head.runs) if self.head and self.has_declared else []

    @property
    def nothing_measured(self) -> str:
        """Return why the table is empty."""
        subject = self.filters.subject.values()
        if not all(subject):
            return "no result to compare names its arch, mode and type"
        return f"no speedup of models was measured on {', '.join(subject)}"

    @cached_property
    def suites_of_stream(self) -> list[tuple[str, int]]:
        """Return each suite with its results in its newest night, for a page without a table: 1 statement."""
        versions = tuple((night.runs, night.versions) for night in self.nights_of_stream)
        read = partial(
            fetch_tuples,
            f"""
            SELECT e.suite, p.run_id, count(*) FROM hud_series s
            JOIN hud_experiment e ON e.id = s.experiment_id CROSS JOIN LATERAL ({NEWEST_POINT}) p
            WHERE s.stream_id = %(stream)s GROUP BY 1, 2
            """,  # noqa: S608 — a constant  # nosec B608
            {"stream": self.stream.pk, "branches": stored_names(self.filters.branch), "until": "infinity"},
        )
        rows = _suites_of_nights.get(("suites", self.stream.pk, self.branch, versions), read)
        places = {run: index for index, night in enumerate(self.nights_of_stream) for run in night.runs}
        counts: dict[str, Counter[int]] = {}
        for suite, run, results in rows:
            counts.setdefault(suite, Counter())[places.get(run, -1)] += results
        return [
            (suite, counts[suite][max(counts[suite])]) for suite in sorted(counts, key=of_table.suite_place)
        ]

    @property
    def branch(self) -> str:
        return branch_or_default(self.filters.branch)

    @cached_property
    def branches(self) -> list[str]:
        """Return the branches of the stream, the newest first: 1 statement."""
        rows = fetch_tuples(
            "SELECT branch FROM hud_run WHERE stream_id = %(stream)s GROUP BY 1"
            " ORDER BY max(order_time) DESC LIMIT 50",
            {"stream": self.stream.pk},
        )
        return list(dict.fromkeys(branch_or_default(name) for (name,) in rows))

    @property
    def pickers(self) -> SafeString:
        """Return the choices of the subject, and of a branch where there are several."""
        has_branches = len(self.branches) > 1 or self.filters.branch
        parts = [select("Branch", "branch", self.branch, self.branches)] if has_branches else []
        for (name, value), label in zip(self.filters.subject.items(), ("Arch", "Mode", "Type"), strict=True):
            offered = self.choices[name]
            unknown = [] if value in ("", *offered) else [value]
            none = [] if value else [("", "none")]
            parts.append(select(label, name, value, [*none, *offered, *unknown]))
        return join(*parts)

    @property
    def query(self) -> str:
        """Return the query string of the same table, for links that add to it."""
        names = ("branch", *CHOICES, "base", "head")
        chosen = {name: getattr(self.filters, name) for name in names if getattr(self.filters, name)}
        if self.filters.window != BackendFilters.window:
            chosen["window"] = str(self.filters.window)
        return urlencode({"stream": self.stream.name, **chosen}) + "&"

    @property
    def of_sides(self) -> str:
        """Return the query string of other pages about the two sides and the subject. A night is named by its
        day, as its commit may have others; days are those of the default branch."""
        return self._address(base=self.base, head=self.head)

    @property
    def other_arches(self) -> list[tuple[str, str]]:
        """Return the other archs with results in this mode and type, with the query strings that compare this
        one with them."""
        subject = self.filters.subject
        own = subject.pop("arch")
        sides = [(arch, {"base": f"arch:{own}", "head": f"arch:{arch}"}) for arch in self.same_but_arch]
        return [
            (arch, urlencode({"stream": self.stream.name, **named, **subject}))
            for arch, named in sides
            if arch != own and own
        ]

    @property
    def until_base(self) -> str:
        """Return the query string of the regressions that began before the baseline or in it."""
        return self._address(head=self.base)

    def _address(self, **sides: Night | None) -> str:
        is_other = other_branch(self.branch)

        def name_of(side: Night) -> str:
            kind, colon, _name = side.side.partition(":")
            if kind in {"run", "commit"}:
                return side.side
            return side.as_side if is_other else side.side if colon else f"night:{side.side}"

        named = {name: name_of(side) for name, side in sides.items() if side}
        return urlencode({"stream": self.stream.name, **named, **self.filters.subject})

    def to_rows(self) -> list[dict[str, Any]]:
        return self.table.data if self.table else []

    def to_json(self) -> dict[str, Any]:
        """Return what the page shows: its stream, subject and sides."""
        return {
            "stream": self.stream.name,
            **{name: value or None for name, value in self.filters.subject.items()},
            "base": self.base and self.base.side,
            "head": self.head and self.head.side,
            "counts": self.counts.to_json(),
        }


def read(filters: BackendFilters, stream: Stream) -> BackendComparison:
    """Return the comparison, in 4 statements, and 1 for each side that is given, 2 for new nights; 1 more
    where a case failed."""
    measured = streams.measured_by(stream)
    nights = of_nights.read(stream, filters.branch)
    subjects = streams.subjects(nights, measured)
    subject = streams.subject_of(filters.subject, subjects)
    page = BackendComparison(
        stream,
        replace(filters, **asdict(subject)),
        {name: sorted({getattr(own, name) for own in subjects if is_named(own.arch)}) for name in CHOICES},
        sorted({suite for own, suite in measured if own.arch == subject.arch} - {CEILINGS}),
        only_arch=all(own.arch == subject.arch for own, _suite in measured),
        nights_of_stream=nights,
        same_but_arch=[one.arch for one in subjects if replace(one, arch=subject.arch) == subject],
    )
    if any(suite != CEILINGS for _one, suite in measured):
        _compare(page, subject, nights)
    if not page.table or not page.table.entries:
        page.instead = [other for other in subjects if other != subject][:_MOST_OFFERED]
    page.counts = count(page.scope)
    return page


def _compare(page: BackendComparison, subject: Subject, nights: Sequence[Night]) -> None:
    """Choose the sides and build the table."""
    asked = {"base": page.filters.base, "head": page.filters.head}
    sides = {
        name: of_nights.side(text, nights, subject, page.stream) if text else None
        for name, text in asked.items()
    }
    unknown: dict[str, Any] = {name: "" for name, text in asked.items() if text and not sides[name]}
    page.complaints = [f"{name}: no results of {asked[name]!r}" for name in unknown]
    page.filters = replace(page.filters, **unknown)
    now, window = timezone.now(), page.filters.window
    days = max(TREND_NIGHTS, window) + 1

    def is_enough(nights: Sequence[Night]) -> bool:
        candidate = sides["head"] or _usual_head(nights, now)
        if candidate is None:
            return False
        older = [night for night in nights if night.time <= candidate.time]
        return len(older) >= days and older[0].time <= _limit(candidate, window)

    by_night = of_nights.measured(nights, subject, page.stream, enough=is_enough)
    by_night = dict(zip(of_nights.named(list(by_night)), by_night.values(), strict=True))
    page.nights = list(by_night)
    for name, text in asked.items():
        if (newest := sides[name]) and text.startswith("latest:"):  # by a name that means the same tomorrow
            own = (night for night in page.nights if night == newest)
            sides[name] = next(own, replace(newest, side=newest.as_side))
    shown = page.nights or nights
    if not shown:
        return
    page.head = sides["head"] or _usual_head(shown, now) or shown[-1]
    with_models = [night for night in page.nights if any(by_night[night].values())]
    page.base = sides["base"] or _usual_base(with_models or page.nights, page.head, window)
    more = [night for night in (page.base, page.head) if night and night not in by_night]
    by_night.update(zip(more, of_nights.results(more, subject, page.stream), strict=True))
    page.results = by_night
    page.later = next((night for night in reversed(page.nights) if night.time > page.head.time), None)
    growing = next((night for night in reversed(nights) if not night.complete), None)
    if growing and growing.time >= page.head.time:
        page.growing = next((night for night in page.nights if night == growing), growing)
    trend = [night for night in with_models if night.time <= page.head.time][-days:]
    page.table = _table(subject, page, trend)


def _usual_head(nights: Sequence[Night], now: datetime) -> Night | None:
    """Return the newest night that a page may choose by itself."""
    return next((night for night in reversed(nights) if night.is_default(now)), None)


def _limit(head: Night, days: int) -> datetime:
    return head.time - timedelta(days=days) + timedelta(hours=6)  # nights do not begin by the minute


def _usual_base(nights: Sequence[Night], head: Night, days: int) -> Night | None:
    """Return the newest night at least as many days older, else the oldest."""
    older = [night for night in nights if night.time < head.time]
    far = [night for night in older if night.time <= _limit(head, days)]
    return far[-1] if far else older[0] if older else None


_tables = Kept(_MOST_KEPT)


def _table(subject: Subject, page: BackendComparison, trend: list[Night]) -> Table:
    """Return the table, from memory where it was made from the same nights."""
    base, head = page.base, page.head
    assert head
    failed = any(None in values.values() for one in page.results[head].values() for values in one.values())
    marked = "SELECT experiment_id FROM hud_knownfailure WHERE stream_id = %(stream)s"
    rows = fetch_tuples(marked, {"stream": page.stream.pk}) if failed and page.has_declared else []
    known = frozenset(pk for (pk,) in rows)
    names = head.side, base and base.side  # which make no difference between nights
    key = (subject, base, head, names, tuple(trend), page.filters.formulas, known)

    def build() -> Table:
        table = of_table.build(base, head, trend, page.results, known)
        if page.filters.formulas:
            of_table.use_hud_formulas(table, page.results)
        return table

    is_over = all(night.complete for night in (*trend, head, *([base] if base else [])))
    return _tables.get(key, build) if is_over else build()


def table_html(page: BackendComparison, *, chosen: str = "", backends: int | None = None) -> SafeString:
    """Return the table, or the first rows of it with lines of nights. It is kept with the table, as its
    hundreds of cells cost more than the rest of a page."""
    shown, kept_as = page.table, (page.query, chosen, backends)
    if not shown or not shown.suites:
        return SafeString("")
    if kept_as not in shown.html:
        if len(shown.html) >= _MOST_DRAWN:
            shown.html.clear()
        formulas = f"formulas={page.filters.formulas}&" if page.filters.formulas else ""
        context = {
            "table": shown,
            "rows": shown.rows[:backends],
            "filters": page.filters,
            "chosen": chosen,
            "lines": backends is not None,
            "query": page.query + formulas,
            "in_stream": f"stream={page.stream.name}",
        }
        shown.html[kept_as] = render_to_string("compilers/table.html", context)
    return mark_safe(shown.html[kept_as])  # noqa: S308 - a template's  # nosec B308, B703
