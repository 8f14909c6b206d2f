"""The cases of one suite on one backend: what explains its cell, and their last nights.

Their table is drawn here: a template takes longer than the rest of the page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from html import escape  # of strings only, at a fifth of the cost of Django's
from itertools import repeat
from typing import Any, Literal

import numpy as np
from django.utils.safestring import SafeString

from hud.judging.aggregates import ratio_of
from hud.judging.compare.judged import JudgedCell
from hud.judging.compare.query import between
from hud.models import VERDICTS, Experiment, Point, Stream
from hud.pages.backends import SHOWN, SORTS, BackendComparison
from hud.pages.backends_table import Cell, Entry, drawn_reach, passing
from hud.pages.sparkline import change_interval
from hud.pages.table_tags import fixed, margin
from hud.pages.tags import expectation_html
from hud.points.nights import PASSES, UNDECIDED, Block, Night, Values, day
from hud.sql import by_id, fetch_columns, int_array
from hud.tables.formatting import address, signed_percent
from hud.tables.html import icon_html
from hud.tables.table import DataTable

GRID_NIGHTS = 28
BEYOND = 2.5  # times the noise

Mark = Literal[
    "same", "worse", "worse-certain", "better", "better-certain", "failed", "undecided", "unjudged", "not-run"
]
MARKS: dict[Mark, str] = {
    "same": "unchanged",
    "worse": "suspect, worse",
    "worse-certain": "regressed",
    "better": "suspect, better",
    "better-certain": "improved",
    "failed": "failed",
    "undecided": "inconclusive",
    "unjudged": "new or not judged",
    "not-run": "not run",
}
_MARK_OF_VERDICT: dict[str, Mark] = {
    "unchanged": "same",
    "regressed": "worse-certain",
    "improved": "better-certain",
    "inconclusive": "undecided",
}
_SUSPECT = len(VERDICTS)  # in place of a verdict's code: of a speedup that rose, one more of one that fell
_MARK_OF = np.array(
    [_MARK_OF_VERDICT.get(word, "unjudged") for word in VERDICTS] + ["better", "worse"], object
)
_FAILED, _NOT_RUN = math.inf, -math.inf  # in place of a value
_VERDICTS = {
    "regressed": f'<span class="worse strong">{icon_html("worse")} regressed</span>',
    "improved": f'<span class="better strong">{icon_html("better")} improved</span>',
    "failed": f'<span class="worse strong">{icon_html("cross")} failed</span>',
    "unchanged": f'<span class="dim">{icon_html("same")} unchanged</span>',
}
_TONES = {"regressed": " worse strong", "improved": " better strong"}
_PALE = ' class="pale" title="may not decide"'


@dataclass
class Case:
    experiment: Experiment
    base: float | None
    head: float | None
    compile_base: float | None
    compile_head: float | None
    status: str  # ok, failed or not run, in the candidate
    speedup: JudgedCell | None  # its verdict and that of the cold compile, where both sides have it
    compiled: JudgedCell | None
    declared: Point | None = None  # in the candidate, where a list or a person says what to expect
    marks: list[Mark] = field(default_factory=list)
    undecided: bool = False  # one of its numbers may not decide

    @cached_property
    def change(self) -> float | None:
        if self.undecided or not self.head or not self.base:
            return None
        return ratio_of(self.base, self.head) - 1

    @property
    def compile_change(self) -> float | None:
        return self.compile_head / self.compile_base - 1 if self.compile_head and self.compile_base else None

    @property
    def factor(self) -> float | None:
        """Return the change in units of the noise."""
        return self.speedup.factor if self.speedup and self.change is not None else None

    @property
    def verdict(self) -> str:
        """Return the word for the change of the speedup between the two sides."""
        if self.status != "ok":
            return self.status
        if self.undecided:
            return "inconclusive"
        if self.speedup is None:
            return "new" if self.head is not None else "unchanged"
        return self.speedup.verdict

    @property
    def compile_verdict(self) -> str | None:
        return self.compiled.verdict if self.compiled else None

    @property
    def rank(self) -> tuple[bool, float]:
        """Return whether it moved, and certainty × size, as *Compare* ranks."""
        if self.status != "ok":
            is_news = self.base is not None and not (self.declared and self.declared.known_failure)
            return is_news, math.inf if is_news else 0.0
        cells = [cell for cell in (self.speedup, self.compiled) if cell]
        return max(((cell.moved, cell.score) for cell in cells), default=(False, 0.0))


COLUMNS = DataTable(
    """experiment=experiment.pk case=experiment.case knobs=experiment.knobs verdict base_value=base
    head_value=head change noise factor base_compile_s=compile_base head_compile_s=compile_head
    compile_verdict nights=marks expectation""",
    noise=lambda case: case.speedup and case.speedup.noise,
    expectation=lambda case: (case.declared and case.declared.expectation) or None,
)


@dataclass
class CaseList:
    entry: Entry
    cell: Cell  # of the speedup
    cases: list[Case]  # as sorted and shown
    counts: dict[str, int]
    nights: list[Night]

    @cached_property
    def reach(self) -> float:
        """Return the end of the axis of the cases' changes."""
        return drawn_reach(case.change or 0.0 for case in self.cases)


def read(page: BackendComparison, block: Block) -> CaseList | None:
    """Return the cases of an entry, in 2 statements, those of `BackendComparison.declared` and `between`, 1
    more for each metric that moved; None for one that the table does not have."""
    table, results, filters = page.table, page.results, page.filters
    entry = table.entries.get(block) if table else None
    if table is None or entry is None:
        return None
    speedup, compiled, _memory = entry.cells
    nights = table.nights[-GRID_NIGHTS:]
    before = results[table.base].get(block, {}) if table.base else {}
    after = results[table.head].get(block, {})
    passed, passed_before = passing(after), passing(before)
    ids = {int(case) for case in (*passed, *passed_before, *entry.passes.missing)}
    experiments = by_id(Experiment, sorted(ids))
    by_night = [results[night].get(block, {}) for night in nights]
    timed = [  # and None where the check failed
        values.get(speedup.metric, {})
        | {pk: None for pk, value in values.get(PASSES, {}).items() if value is None}
        for values in by_night
    ]
    marks = _judged(page.stream, nights, list(experiments), speedup.metric, timed)
    judged: dict[str, dict[int, JudgedCell]] = {}
    if table.base:
        names = speedup.metric, compiled.metric
        rows_of = between(table.base, table.head, page.stream, ids, names)
        judged = {name: {row.pk: row.best for row in rows_of(name) if row.best} for name in names}
    declared = {point.experiment.pk: point for point in page.declared if point.known_failure}
    declared |= {point.experiment.pk: point for point in page.declared if point.metric.name == PASSES}
    cases = []
    speedups = [side.get(speedup.metric, {}) for side in (before, after)]
    for (pk, experiment), own_marks in zip(experiments.items(), marks, strict=True):
        ok = passed.get(str(pk))
        base, head, compile_base, compile_head = (
            shown(side, cell.metric, pk) for cell in (speedup, compiled) for side in (before, after)
        )
        status = "not run" if ok is None else "ok" if ok else "failed"
        case = Case(
            experiment,
            base,
            head,
            compile_base,
            compile_head,
            status,
            judged.get(speedup.metric, {}).get(pk),
            judged.get(compiled.metric, {}).get(pk),
            declared=declared.get(pk),
            marks=own_marks,
            undecided=any(math.isnan(side.get(pk) or 0.0) for side in speedups),
        )
        cases.append(case)
    words = [{case.verdict, case.compile_verdict} for case in cases]
    counts = {"all": len(cases), **{word: sum(word in each for each in words) for word in SHOWN}}
    if filters.show:
        cases = [case for case, each in zip(cases, words, strict=True) if filters.show in each]
    return CaseList(entry, speedup, sorted(cases, key=_ORDER[filters.sort or SORTS[0]]), counts, nights)


_ORDER: dict[str, Any] = {
    "certainty": lambda case: (not case.rank[0], -case.rank[1], case.experiment.title),
    "change": lambda case: (case.change if case.change is not None else math.inf, case.experiment.title),
    "speedup": lambda case: (case.head if case.head is not None else math.inf, case.experiment.title),
    "name": lambda case: case.experiment.title.lower(),
}


def shown(values: Values, metric: str, experiment: int) -> float | None:
    """Return the number of an experiment, also one that may not decide."""
    value = values.get(metric, {}).get(experiment)
    if value is None or math.isnan(value):
        return values.get(UNDECIDED + metric, {}).get(experiment)
    return value


def _judged(
    stream: Stream,
    nights: Sequence[Night],
    experiments: Sequence[int],
    metric: str,
    values_of: Sequence[Mapping[int, float | None]],
) -> list[list[Mark]]:
    """Return what to show of each night of each experiment: 1 statement. Of `values_of`, by night, None is
    one that failed, and NaN one that may not decide."""
    if not nights:
        return [[] for _ in experiments]
    ids, runs, values, verdicts = fetch_columns(
        ("experiment_id", "run_id", "value", "verdict"),
        """(
            SELECT s.experiment_id, p.run_id, p.value,
                coalesce(CASE p.verdict_reason WHEN 'suspect' THEN %(suspect)s::int + (p.change < 0)::int END,
                    p.verdict, 0) AS verdict
            FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id AND k.name = %(metric)s
            JOIN hud_point p ON p.series_id = s.id AND p.order_time BETWEEN %(since)s AND %(until)s
                AND p.value IS NOT NULL AND NOT p.rerun
            WHERE s.experiment_id = ANY(%(ids)s::int[]) AND s.stream_id = %(stream)s
        ) judged""",
        {
            "suspect": _SUSPECT,
            "metric": metric,
            "stream": stream.pk,
            "ids": int_array(experiments),
            "since": nights[0].time - timedelta(days=1),  # its first run
            "until": nights[-1].time,
        },
    )
    shown_values = np.array(
        [
            [_FAILED if value is None else value for value in map(values.get, experiments, repeat(_NOT_RUN))]
            for values in values_of
        ]
    ).T
    marks = np.full(shown_values.shape, "unjudged", object)
    marks[np.isnan(shown_values)] = "undecided"
    marks[shown_values == _FAILED] = "failed"
    marks[shown_values == _NOT_RUN] = "not-run"
    row_of = {pk: row for row, pk in enumerate(experiments)}
    place_of = {run: index for index, night in enumerate(nights) for run in night.runs}
    rows = np.array([row_of[pk] for pk in ids.tolist()], int)
    places = np.array([place_of.get(run, -1) for run in runs.tolist()], int)  # -1: of no night, as a rerun
    is_shown = (places >= 0) & (shown_values[rows, places] == values)  # not another point of the night
    marks[rows[is_shown], places[is_shown]] = _MARK_OF[verdicts[is_shown]]
    marks_by_experiment: list[list[Mark]] = marks.tolist()
    return marks_by_experiment


def rows_html(chosen: CaseList, in_stream: str) -> SafeString:
    query = f"?{in_stream}&amp;metric={escape(chosen.cell.metric)}"
    rows = "".join([_row(case, query, chosen.reach) for case in chosen.cases])
    return SafeString(rows or f'<tr><td colspan="8" class="dim">None of {chosen.counts["all"]}.</td></tr>')


def _row(case: Case, query: str, reach: float) -> str:
    verdict, change = case.verdict, case.change
    words = _VERDICTS.get(verdict) or f'<span class="dim">{verdict}</span>'
    compile_verdict = case.compile_verdict or ""
    if verdict == "inconclusive" and case.speedup and case.speedup.reason:
        words += f'<span class="dim">: {escape(case.speedup.why or case.speedup.reason)}</span>'
    if compile_verdict in _TONES and compile_verdict != verdict and case.compiled:
        compile_words = _VERDICTS[compile_verdict].replace(compile_verdict, f"compile time {compile_verdict}")
        if verdict in {"unchanged", "inconclusive"}:
            query = query.rpartition("=")[0] + "=" + escape(case.compiled.metric.name)
            words = compile_words
        else:
            words += f"<br>{compile_words}"
    expected = f" {expectation_html(case.declared)}" if case.declared else ""
    before = f'<span class="faint">{fixed(case.base, 3)} →</span> ' if case.base is not None else ""
    sign = '<span class="u">×</span>' if case.head is not None else ""
    interval = drawn = ""
    if change is not None and case.speedup and (noise := case.speedup.noise):
        interval = f'<span class="pm"> {margin(case.speedup.margin)}</span>'
        drawn = change_interval(change, case.speedup.margin, BEYOND * noise, verdict, reach)
    factor = fixed(case.factor, 1) if case.factor is not None else ""
    compiled = ""
    if case.compile_head is not None:
        tone = _TONES.get(compile_verdict, " faint")
        moved = f'<span class="row-change{tone}">{signed_percent(case.compile_change)}</span>'
        compiled = f'{fixed(case.compile_head, 1)}<span class="u">s</span> {moved}'
    return (
        f'<tr><th scope="row"><a href="{address(case.experiment.pk, "experiment")}{query}">'
        f"{escape(case.experiment.title)}</a></th><td>{words}{expected}</td>"
        f'<td class="num">{before}<b{_PALE if case.undecided else ""}>{fixed(case.head, 3)}</b>{sign}</td>'
        f'<td class="num{_TONES.get(verdict, "")}">{signed_percent(change)} {interval}</td>'
        f'<td class="fpc">{drawn}</td><td class="num" data-label="× noise">{factor}</td>'
        f'<td class="num" data-label="cold compile">{compiled}</td><td>{_grid_html(case)}</td></tr>'
    )


def _grid_html(case: Case) -> SafeString:
    """Return the last nights as a row of cells, drawn here so that it needs no script."""
    cells = "".join(
        f'<rect x="{1 + 10 * index}" y="1.5" width="8" height="15" rx="1.5" class="{mark}"/>'
        + (f'<path class="x" d="M{3 + 10 * index} 7l4 4m0-4l-4 4"/>' if mark == "failed" else "")
        for index, mark in enumerate(case.marks)
    )
    shown = ((case.marks.count(mark), words) for mark, words in MARKS.items() if mark in case.marks)
    counted = ", ".join(f"{count} {words}" for count, words in shown)
    width = 10 * len(case.marks)
    return SafeString(
        f'<svg class="grid" width="{width}" height="18" viewBox="0 0 {width} 18" role="img" '
        f'aria-label="last {len(case.marks)} nights: {counted}">{cells}</svg>'
    )


def dates(nights: Sequence[Night]) -> list[tuple[int, str]]:
    """Return the dates above the cells with their x: every seventh night from the newest."""
    return [(10 * index + 5, day(nights[index].time)) for index in range(len(nights) - 2, 0, -7)]
