"""Answers to questions about a HUD, short enough for an agent: a sentence, a table, and what was left out.

The MCP server and `python -m runner query` give the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .connection import WrongUsage
from .gate import gate_refs
from .hud import Hud
from .words import number, percent, title_of

MOST_BYTES = 4096
_MOST_ROWS = 60
_COUNTS = (
    "matched",
    "regressed",
    "improved",
    "failed",
    "inconclusive",
    "unchanged",
    "only_base",
    "only_head",
)
_RUN = "runs/{run}/"
_EXPERIMENT = "experiments/{experiment}/"


@dataclass
class Answer:
    """What is known, the most telling rows first. `row_link` makes a permalink from the columns of a row."""

    text: str
    columns: str  # joined by spaces
    rows: Sequence[Sequence[Any]]
    link: str
    row_link: str = ""
    narrow: str = ""  # how to ask for less
    offset: int = 0
    more: int = 0  # rows that the HUD has beyond these
    same: dict[str, Any] = field(default_factory=dict)  # columns with one value in all rows

    def to_json(self) -> dict[str, Any]:
        """Return the answer with as many rows as fit."""
        rows = [[_short(value) for value in row] for row in self.rows[self.offset :]]
        shown = rows[:_MOST_ROWS]
        while True:
            answer = self._with(shown, len(rows) - len(shown) + self.more)
            if not shown or len(json.dumps(answer, ensure_ascii=False).encode()) <= MOST_BYTES:
                return answer
            shown = shown[:-1]

    def to_table(self) -> str:
        """Return the same for a terminal."""
        answer = self.to_json()
        cells = [["" if value is None else str(value) for value in row] for row in answer["rows"]]
        rows = [answer["columns"], *cells]
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines = ["  ".join(row[at].ljust(width) for at, width in enumerate(widths)) for row in rows]
        same = [f"{name} {value}" for name, value in answer.get("same_in_all_rows", {}).items() if value]
        lines += [f"All: {', '.join(same)}"] if same else []
        return "\n".join([self.text, "", *lines, f"Left out: {answer['left_out']}", self.link])

    def _with(self, rows: Sequence[Sequence[Any]], left: int) -> dict[str, Any]:
        columns, same = self.columns.split(), dict(self.same)
        if len(rows) > 1:
            values = [[row[place] for row in rows] for place in range(len(columns))]
            constant = [own.count(own[0]) == len(own) for own in values]
            same.update((columns[at], values[at][0]) for at in range(len(columns)) if constant[at])
            rows = [[row[at] for at in range(len(columns)) if not constant[at]] for row in rows]
            columns = [columns[at] for at in range(len(columns)) if not constant[at]]
        answer: dict[str, Any] = {"answer": self.text, "columns": columns, "rows": rows}
        if same:
            answer["same_in_all_rows"] = same
        start = f"{self.offset} rows before; " if self.offset else ""
        rest = f"{left} rows after: ask with offset={self.offset + len(rows)}, or {self.narrow}"
        answer["left_out"] = f"{start}{rest if left else 'none after'}"
        return {**answer, "link": self.link, **({"row_link": self.row_link} if self.row_link else {})}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return value[:120] if isinstance(value, str) else value


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 2)


def _minute(time: str | None) -> str:
    return (time or "")[:16]


class Questions:
    """What can be asked of a HUD. Each is a tool of the MCP server and a part of `runner query`."""

    def __init__(self, hud: Hud) -> None:
        self._hud = hud

    def overview(self, *, stream: str = "", arch: str = "", head: str = "", offset: int = 0) -> Answer:
        """The newest night (or night `head`) against the one before: passing, geometric means by suite and
        backend with 95 % interval, and how much waits for a decision. Start here."""
        page = self._hud.page("overview", stream=stream, arch=arch, head=head)
        counts, results = page["counts"], page["results"]
        text = (
            f"Stream {page['stream']}, {page['arch']} {page['mode']} {page['dtype']}: night {page['head']}"
            f" against {page['base']}. {counts['causes']} causes in {counts['series']} series wait for a"
            f" decision; {results['judged']} series judged, {results['improved']} improved. Newest run"
            f" {page['runs'][0]['run'] if page['runs'] else 'none'}."
        )
        columns = "suite backend passed expected newly_failed failed_before not_run metric unit"
        rows = [
            (
                *(line[name] for name in columns.split()),
                *(line["base_value"], line["head_value"], _percent(line["change"])),
                *(_percent(line["low"]), _percent(line["high"]), line["verdict"]),
            )
            for line in page["table"]
        ]
        columns += " base head change_percent low_percent high_percent verdict"
        link = self._hud.link("", stream=page["stream"], arch=page["arch"], head=head)
        return Answer(text, columns, rows, link, narrow="name an arch", offset=offset)

    def regressions(
        self,
        *,
        stream: str = "",
        state: str = "",
        arch: str = "",
        suite: str = "",
        case: str = "",
        regression: int = 0,
        offset: int = 0,
    ) -> Answer:
        """Regressions with state, change, size in units of noise, since when, between which commits, likely
        cause. state: suspect, open, confirmed, acknowledged, accepted, dismissed, resolved. With the number
        of a `regression` its history."""
        hud = self._hud
        if regression:
            one = hud.get(f"regressions/{regression}")
            columns = "at who event before after note run"
            rows = [tuple(event[name] for name in columns.split()) for event in one["history"]]
            text = f"Regression {regression}: {self._told(one)}"
            return Answer(text, columns, rows, hud.link(f"experiments/{one['experiment']}/"), offset=offset)
        found = hud.get("regressions", stream=stream, state=state, arch=arch, suite=suite)["items"]
        items = [item for item in found if case in item["case"]]
        states = sorted({item["state"] for item in items})
        counts = [f"{sum(item['state'] == word for item in items)} {word}" for word in states]
        columns = "id experiment suite case backend arch metric unit before after"
        rows = [
            (
                *(item[name] for name in columns.split()),
                *(_percent(item["change"]), item["factor"], item["kind"], item["state"], item["points"]),
                *(_minute(item["since"]), item["base_commit"][:10], item["head_commit"][:10]),
                *(item["first_run"], item["cause"]),
            )
            for item in items
        ]
        columns += " change_percent times_noise kind state points since base_commit head_commit run cause"
        link = hud.link("regressions/", stream=stream, arch=arch, state=state)
        narrow = "narrow by suite, case, arch or state"
        text = f"{len(items)} regressions: {', '.join(counts) or 'none'}."
        return Answer(text, columns, rows, link, hud.link(_EXPERIMENT), narrow, offset)

    @staticmethod
    def _told(item: dict[str, Any]) -> str:
        values = f"{number(item['before'], item['unit'])} → {number(item['after'], item['unit'])}"
        factor = f", {item['factor']:.1f} × noise" if item["factor"] else ""
        return (
            f"{title_of(item)}, {item['metric']} {values} ({percent(item['change'])}{factor}),"
            f" {item['state']}, since {_minute(item['since'])} (run {item['first_run']},"
            f" {item['base_commit'][:10]} → {item['head_commit'][:10]}). {item['cause']}"
        )

    def runs(
        self,
        *,
        stream: str = "",
        suite: str = "",
        arch: str = "",
        host: str = "",
        branch: str = "",
        commit: str = "",
        state: str = "",
        kind: str = "",
        since: str = "",
        until: str = "",
        offset: int = 0,
    ) -> Answer:
        """Runs, newest first. kind: night, person, pull_request, rerun, upload; since, until: days."""
        filters = {name: value for name, value in locals().items() if name not in {"self", "offset"}}
        page = self._hud.get("runs", limit=500, **filters)
        columns = "id state title host branch regressed done total"
        rows = [
            (*(item[name] for name in columns.split()), item["commit"][:12], _minute(item["finished"]))
            for item in page["items"]
        ]
        text = f"{len(rows)}{' or more' if page['next'] else ''} runs."
        link = self._hud.link("runs/", **filters)
        row_link = f"{self._hud.url}/runs/{{id}}/"
        narrow = "narrow by since, until, branch or state"
        return Answer(text, f"{columns} commit finished", rows, link, row_link, narrow, offset)

    def compare(
        self,
        *,
        base: str,
        head: str,
        stream: str = "",
        suite: str = "",
        arch: str = "",
        case: str = "",
        metric: str = "",
        verdict: str = "",
        offset: int = 0,
    ) -> Answer:
        """Two sides by experiment: movers first, then undecided with the reason, then unchanged. A side is
        run:12, commit:abc123, latest:main, night:2026-11-20, host:NAME."""
        filters = {"stream": stream, "suite": suite, "arch": arch, "metric": metric, "verdict": verdict}
        page = self._hud.get("compare", base=base, head=head, **filters)
        counts, means = page["counts"], page["totals"]["means"].values()
        words = [f"{counts[name]} {name}" for name in ("matched", "regressed", "improved", "failed")]
        words += [
            f"{counts[name]} {name}" for name in ("inconclusive", "unchanged", "only_base", "only_head")
        ]
        for mean in means:
            ends = f"{number(mean['base'])} → {number(mean['head'], mean['unit'])}"
            interval = f"95 % {percent(mean['low'])} to {percent(mean['high'])}"
            words.append(
                f"{mean['metric']} {mean['statistic']} {ends} ({percent(mean['change'])}, {interval})"
            )
        columns = "experiment suite case backend arch metric unit base head"
        rows = [
            (
                *(item.get(name) for name in columns.split()),
                *(_percent(item.get("change")), _percent(item.get("noise")), item.get("factor")),
                *(item["verdict"], item.get("reason"), item.get("head_status")),
            )
            for item in page["items"]
            if case in item["case"]
        ]
        columns += " change_percent noise_percent times_noise verdict reason status"
        sides = " → ".join(f"{page[side]['side']} ({page[side]['commit'][:10]})" for side in ("base", "head"))
        link = self._hud.link("compare/", base=base, head=head, **filters)
        narrow = "narrow by suite, case or verdict"
        text = f"{sides}: {', '.join(words)}."
        return Answer(text, columns, rows, link, self._hud.link(_EXPERIMENT), narrow, offset)

    def experiment(
        self,
        *,
        experiment: int = 0,
        suite: str = "",
        case: str = "",
        text: str = "",
        metric: str = "",
        backend: str = "",
        stream: str = "",
        offset: int = 0,
    ) -> Answer:
        """The newest value of every metric with noise, level and verdict: of an experiment by number, or of a
        suite's case (all backends). With `text` instead: search names, commits, runs."""
        hud = self._hud
        if text:
            page = hud.page("search", q=text, stream=stream)
            rows = [(item["kind"], item["title"], item["about"], item["url"]) for item in page["items"]]
            link = hud.link("search/", q=text)
            return Answer(f"{len(rows)} results.", "kind title about url", rows, link, offset=offset)
        if experiment:
            path, key = f"experiments/{experiment}", "metrics"
        elif suite and case:
            path, key = f"models/{suite}/{case}", "items"
        else:
            raise WrongUsage("name an experiment, or suite and case, or a text to search for")
        page = hud.page(path, stream=stream)
        about = page.get("experiment", {})
        items = [about | item if about else item for item in page[key]]
        items = [one for one in items if metric in one["metric"] and backend in one["backend"]]
        names = "experiment backend arch mode dtype metric unit direction value status verdict level run"
        rows = [
            (
                *(item[name] for name in names.split()),
                *(_percent(item["change"]), _percent(item["noise"]), item["n"], _minute(item["time"])),
            )
            for item in items
        ]
        title = title_of(about) if about else f"{suite} {case}"
        return Answer(
            f"{title}: {len(rows)} newest values.",
            f"{names} change_percent noise_percent samples time",
            rows,
            hud.link(f"{path}/", stream=stream),
            hud.link(_EXPERIMENT) if not about else "",
            "name a metric or backend",
            offset,
        )

    def points(
        self,
        *,
        experiment: int,
        metric: str,
        stream: str = "",
        branch: str = "",
        since: str = "",
        until: str = "",
        offset: int = 0,
    ) -> Answer:
        """The history of one metric of an experiment, newest first, with commits, noise, level and verdict of
        each point. since, until: days."""
        period = {"from": since, "to": until}
        series = self._hud.get(f"series/{experiment}/{metric}", stream=stream, branch=branch, **period)
        points, unit = series["points"][::-1], series["unit"]
        values = [point["value"] for point in points if point["value"] is not None]
        ends = f"from {number(min(values))} to {number(max(values), unit)}" if values else "none has a value"
        better = {"up": "larger is better", "down": "smaller is better"}.get(series["direction"], "")
        rows = [
            (
                *(_minute(point["time"]), point["run"], point["commit"][:12], point["value"], point["n"]),
                *(_percent(point["noise"]), _percent(point["change"]), point["level"]),
                *(point["verdict"], point["status"], point["quality"]),
            )
            for point in points
        ]
        columns = "time run commit value samples noise_percent change_percent level verdict status quality"
        more = ", and older ones" if series["next"] else ""
        return Answer(
            f"{len(points)} points{more}, {ends}; {metric} in {unit or 'no unit'}, {better}.",
            columns,
            rows,
            self._hud.link(f"experiments/{experiment}/", metric=metric, stream=stream),
            f"{self._hud.url}/{_RUN}",
            "narrow by since and until",
            offset,
        )

    def kernels(self, *, base: str, head: str, stream: str = "", offset: int = 0) -> Answer:
        """What changed between two points, kernel by kernel in µs with the cause. A side is
        run:12/experiment:5, or commit:HASH/experiment:5, latest:BRANCH/…, night:DAY/…"""
        page = self._hud.get("attribution", base=base, head=head, stream=stream)
        kernels = sorted(page["kernels"], key=lambda one: -abs(one["change_us"] or 0.0))
        columns = "kernel cause base_us head_us change_us share beyond_noise"
        rows = [[kernel[name] for name in columns.split()] for kernel in kernels]
        causes = {name: cause for name, cause in page["causes"].items() if cause["change_us"]}
        words = [f"{name} {cause['change_us']:+.3g} µs" for name, cause in causes.items()]
        text = (
            f"Busy time changed by {number(page['busy_change_us'], 'µs')}: {', '.join(words) or 'nothing'}."
        )
        link = self._hud.link("code/", base=base, head=head, stream=stream)
        return Answer(text, columns, rows, link, narrow="name one compilation", offset=offset)

    def measure(
        self,
        *,
        base: str,
        head: str,
        budget_min: float = 0.0,
        suite: str = "",
        case: str = "",
        offset: int = 0,
    ) -> Answer:
        """Is head slower than base? Takes stored results, and within `budget_min` minutes measures what they
        leave open in pairs on a host with both builds (needs a key that may run). Sides as in compare, or two
        environment:NAME with suite and case."""
        found = gate_refs(
            self._hud, base, head, budget_min=budget_min, cases=[case] if case else [], suite=suite
        )
        worst = sorted(found.cases, key=lambda one: ("regressed", "cannot tell", "pass").index(one.answer))
        columns = "experiment suite case backend metric unit base head"
        rows = [
            (
                *(one.item.get(name) for name in columns.split()),
                *(_percent(one.item.get("change")), one.answer, one.why, one.run or None),
            )
            for one in worst
        ]
        text = f"{found.answer}: {len(found.cases)} matched. {' '.join(found.notes)}"
        columns += " change_percent answer why run"
        row_link = self._hud.link(_EXPERIMENT)
        return Answer(text, columns, rows, found.link, row_link, "name a suite", offset)

    all = (overview, regressions, runs, compare, experiment, points, kernels, measure)
