"""Answers to questions about a HUD, short enough for an agent: a sentence, a table, and what was left out.

The MCP server and `python -m runner query` give the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .connection import WrongUsage
from .gate import gate_refs
from .hud import Hud
from .words import number, percent, title_of

MOST_BYTES = 4096
_MOST_ROWS = 60
_COUNTS = ("matched", "regressed", "improved", "failed", "inconclusive", "unchanged")
_CASE = "experiment suite case backend arch metric unit"


@dataclass
class Answer:
    """What is known, the most telling items first.

    `columns` are keys of the items, joined by spaces: `name=key` under another name, `name%` a ratio as
    `name_percent`, `name@` a time to the minute, `name#` the first digits of a commit. `row_link` makes a
    permalink from the columns of a row, `narrow` is how to ask for less.
    """

    text: str
    items: Sequence[Mapping[str, Any]]
    columns: str
    link: str
    row_link: str = ""
    narrow: str = ""

    def to_json(self, offset: int = 0) -> dict[str, Any]:
        """Return the answer with as many rows as fit, from one on."""
        items, columns = self.items[offset:], self.columns.split()
        rows = [dict(_cell(column, item) for column in columns) for item in items[:_MOST_ROWS]]
        while True:
            left = len(items) - len(rows)
            how = " or ".join(filter(None, [f"offset={offset + len(rows)}", self.narrow]))
            left_out = f"{left} rows after, ask with {how}" if left else "none after"
            left_out = f"{offset} rows before, {left_out}" if offset else left_out
            answer = {"answer": self.text, **_table(rows), "left_out": left_out, "link": self.link}
            answer.update({"row_link": self.row_link} if self.row_link else {})
            if not rows or len(json.dumps(answer, ensure_ascii=False).encode()) <= MOST_BYTES:
                return answer
            rows.pop()

    def to_table(self, offset: int = 0) -> str:
        """Return the same for a terminal."""
        answer = self.to_json(offset)
        cells = [["" if value is None else str(value) for value in row] for row in answer["rows"]]
        rows = [answer["columns"], *cells]
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines = ["  ".join(row[at].ljust(width) for at, width in enumerate(widths)) for row in rows]
        same = [f"{name} {value}" for name, value in answer.get("same_in_all_rows", {}).items() if value]
        lines += [f"All: {', '.join(same)}"] if same else []
        return "\n".join([self.text, "", *lines, f"Left out: {answer['left_out']}", self.link])


def _cell(column: str, item: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a column and the value of an item in it."""
    named, kind = (column[:-1], column[-1]) if column[-1] in "%@#" else (column, "")
    name, _sign, key = named.partition("=")
    value = item.get(key or name)
    if isinstance(value, float):
        value = round(100 * value, 2) if kind == "%" else float(f"{value:.5g}")
    elif isinstance(value, str):
        value = value[: {"@": 16, "#": 12}.get(kind, 120)]
    return f"{name}_percent" if kind == "%" else name, value


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return columns and rows; what is the same in all rows stands apart."""
    names = list(rows[0]) if rows else []
    same = {name: rows[0][name] for name in names if all(row[name] == rows[0][name] for row in rows[1:])}
    same = same if len(rows) > 1 else {}
    columns = [name for name in names if name not in same]
    found: dict[str, Any] = {"columns": columns, "rows": [[row[name] for name in columns] for row in rows]}
    return {**found, "same_in_all_rows": same} if same else found


def _told(item: Mapping[str, Any]) -> str:
    """Return a regression in a sentence."""
    values = f"{number(item['before'], item['unit'])} → {number(item['after'], item['unit'])}"
    factor = f", {item['factor']:.1f} × noise" if item["factor"] else ""
    commits = f"{item['base_commit'][:12]} → {item['head_commit'][:12]}"
    return (
        f"{title_of(item)}, {item['metric']} {values} ({percent(item['change'])}{factor}), {item['state']},"
        f" since {item['since'][:16]} (run {item['first_run']}, {commits}). {item['cause']}"
    )


class Questions:
    """What can be asked of a HUD. Each is a tool of the MCP server and a part of `runner query`."""

    def __init__(self, hud: Hud) -> None:
        self._hud = hud
        self._of_experiment = f"{hud.url}/experiments/{{experiment}}/"

    def overview(self, *, stream: str = "", arch: str = "", head: str = "") -> Answer:
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
        columns = """suite backend passed expected newly_failed failed_before not_run metric unit
            base=base_value head=head_value change% low% high% verdict"""
        link = self._hud.link("", stream=page["stream"], arch=page["arch"], head=head)
        return Answer(text, page["table"], columns, link)

    def regressions(
        self,
        *,
        stream: str = "",
        state: str = "",
        arch: str = "",
        suite: str = "",
        case: str = "",
        regression: int = 0,
    ) -> Answer:
        """Regressions with state, change, size in units of noise, since when, between which commits, likely
        cause. state: suspect, open, confirmed, acknowledged, accepted, dismissed, resolved. With a number
        the history of one."""
        hud = self._hud
        if regression:
            one = hud.get(f"regressions/{regression}")
            link = hud.link(f"experiments/{one['experiment']}/", metric=one["metric"])
            return Answer(_told(one), one["history"], "at@ who event before after note run", link)
        found = hud.get("regressions", stream=stream, state=state, arch=arch, suite=suite)["items"]
        items = [item for item in found if case in item["case"]]
        states = [item["state"] for item in items]
        counts = ", ".join(f"{states.count(word)} {word}" for word in sorted(set(states)))
        columns = f"""id {_CASE} before after change% times_noise=factor kind state points since@ base_commit#
            head_commit# run=first_run cause"""
        link = hud.link("regressions/", stream=stream, arch=arch, state=state)
        text = f"{len(items)} regressions: {counts or 'none'}."
        return Answer(text, items, columns, link, self._of_experiment, "narrow by suite, case, arch or state")

    def runs(
        self,
        *,
        stream: str = "",
        arch: str = "",
        host: str = "",
        branch: str = "",
        commit: str = "",
        state: str = "",
        kind: str = "",
        since: str = "",
        until: str = "",
    ) -> Answer:
        """Runs, newest first. kind: night, person, pull_request, rerun, upload; since, until: days."""
        filters = {name: value for name, value in locals().items() if name != "self"}
        page = self._hud.get("runs", limit=500, **filters)
        text = f"{len(page['items'])}{' or more' if page['next'] else ''} runs."
        columns = "id state title host branch regressed done total commit# finished@"
        link, of_run = self._hud.link("runs/", **filters), f"{self._hud.url}/runs/{{id}}/"
        return Answer(text, page["items"], columns, link, of_run, "narrow by since, until, branch or state")

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
    ) -> Answer:
        """Two sides by experiment: movers first, then undecided with the reason, then unchanged. A side is
        run:12, commit:abc123, latest:main, night:2026-11-20, host:NAME."""
        filters = {"stream": stream, "suite": suite, "arch": arch, "metric": metric, "verdict": verdict}
        page = self._hud.get("compare", base=base, head=head, **filters)
        words = [f"{page['counts'][name]} {name}" for name in _COUNTS]
        for mean in page["totals"]["means"].values():
            ends = f"{number(mean['base'])} → {number(mean['head'], mean['unit'])}"
            interval = f"95 % {percent(mean['low'])} to {percent(mean['high'])}"
            words.append(
                f"{mean['metric']} {mean['statistic']} {ends} {percent(mean['change'])} ({interval})"
            )
        sides = [f"{page[side]['side']} ({page[side]['commit'][:12]})" for side in ("base", "head")]
        items = [item for item in page["items"] if case in item["case"]]
        columns = f"{_CASE} base head change% noise% times_noise=factor verdict reason status=head_status"
        text = f"{' → '.join(sides)}: {', '.join(words)}."
        link = self._hud.link("compare/", base=base, head=head, **filters)
        return Answer(text, items, columns, link, self._of_experiment, "narrow by suite, case or verdict")

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
    ) -> Answer:
        """The newest value of every metric with noise, level and verdict: of an experiment by number, or of a
        suite's case (all backends). With `text` instead: search names, commits, runs."""
        hud = self._hud
        if text:
            items = hud.page("search", q=text, stream=stream)["items"]
            return Answer(
                f"{len(items)} results.", items, "kind title about url", hud.link("search/", q=text)
            )
        if not experiment and not (suite and case):
            raise WrongUsage("name an experiment, or suite and case, or a text to search for")
        path = f"experiments/{experiment}" if experiment else f"models/{suite}/{case}"
        page = hud.page(path, stream=stream)
        about = page.get("experiment", {})
        found = [{**about, **item} for item in page["metrics" if experiment else "items"]]
        items = [item for item in found if metric in item["metric"] and backend in item["backend"]]
        columns = """experiment backend arch mode dtype metric unit direction value status verdict level run
            change% noise% samples=n time@"""
        title = f"{title_of(about) if about else f'{suite} {case}'}: {len(items)} newest values."
        link = hud.link(f"{path}/", stream=stream)
        return Answer(title, items, columns, link, self._of_experiment, "name a metric or backend")

    def points(
        self,
        *,
        experiment: int,
        metric: str,
        stream: str = "",
        branch: str = "",
        since: str = "",
        until: str = "",
    ) -> Answer:
        """The history of one metric of an experiment, newest first, with commits, noise, level and verdict of
        each point. since, until: days."""
        period = {"from": since, "to": until}
        series = self._hud.get(f"series/{experiment}/{metric}", stream=stream, branch=branch, **period)
        unit, values = series["unit"], [point["value"] for point in series["points"]]
        present = [value for value in values if value is not None]
        ends = (
            f"from {number(min(present))} to {number(max(present), unit)}" if present else "without a value"
        )
        better = {"up": ", larger is better", "down": ", smaller is better"}.get(series["direction"], "")
        older = ", and older ones" if series["next"] else ""
        text = f"{len(values)} points{older}, {ends}; {metric} in {unit or 'no unit'}{better}."
        columns = "time@ run commit# value samples=n noise% change% level verdict status quality"
        link = self._hud.link(f"experiments/{experiment}/", metric=metric, stream=stream)
        of_run = f"{self._hud.url}/runs/{{run}}/"
        return Answer(text, series["points"][::-1], columns, link, of_run, "narrow by since and until")

    def kernels(self, *, base: str, head: str, stream: str = "") -> Answer:
        """What changed between two points, kernel by kernel in µs with the cause. A side is
        run:12/experiment:5, or commit:HASH/experiment:5, latest:BRANCH/…, night:DAY/…"""
        page = self._hud.get("attribution", base=base, head=head, stream=stream)
        kernels = sorted(page["kernels"], key=lambda one: -abs(one["change_us"] or 0.0))
        causes = {name: cause["change_us"] for name, cause in page["causes"].items() if cause["change_us"]}
        words = ", ".join(f"{name} {number(change_us, 'µs')}" for name, change_us in causes.items())
        text = f"Busy time changed by {number(page['busy_change_us'], 'µs')}: {words or 'nothing'}."
        columns = "kernel cause base_us head_us change_us share% beyond_noise"
        return Answer(text, kernels, columns, self._hud.link("code/", base=base, head=head, stream=stream))

    def measure(
        self, *, base: str, head: str, budget_min: float = 0.0, suite: str = "", case: str = ""
    ) -> Answer:
        """Is head slower than base? Takes stored results, and within `budget_min` minutes measures what they
        leave open in pairs on a host with both builds (needs a key that may run). Sides as in compare, or two
        environment:NAME with suite and case."""
        cases = [case] if case else []
        found = gate_refs(self._hud, base, head, budget_min=budget_min, cases=cases, suite=suite)
        order = ("regressed", "cannot tell", "pass")
        items = [one.to_json() for one in sorted(found.cases, key=lambda one: order.index(one.answer))]
        text = " ".join([f"{found.answer}: {len(items)} matched.", *found.notes])
        columns = f"{_CASE} base head change% answer why run"
        return Answer(text, items, columns, found.link, self._of_experiment, "name a suite")

    all = (overview, regressions, runs, compare, experiment, points, kernels, measure)
