"""Read the outcome of a run; of an A/B run a row for each experiment and metric, and one for the kernels of
each experiment."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hud.judging.comparison import SAME_CHOICE, KernelsOfSides, MetricComparison, compare, relative
from hud.models import ACTIVE, VERDICTS, Point, Run
from hud.points.read import metric_place
from hud.tables.table import EXPERIMENT, DataTable
from runner.schema.draws import RUN_TIMES
from runner.schema.metrics import is_of_running, role_of

_RUNNING = (*RUN_TIMES, SAME_CHOICE)  # a neighbour on the card that hides the first leaves kernels alone
_WORST_FIRST = ("failed", "regressed", "inconclusive", "improved", "unchanged", "new", "not_run")
METRIC = DataTable(
    f"""{EXPERIMENT} metric=metric.name unit=metric.unit direction=metric.direction base new change low high p
    pairs=pairs.pairs draws verdict=word better cause=cause? at_base_draws at_new_draws detects_percent
    repeated base_status new_status=head_status base_values=base new_values=head draw_ratios is_of_running
    quality=quality?""",
    base=lambda line: line.values[0],
    new=lambda line: line.values[1],
    draws=lambda line: line.count if line.draws else None,
    at_base_draws=lambda line: line.code and line.code.at_base,
    at_new_draws=lambda line: line.code and line.code.at_head,
    draw_ratios=lambda line: line.ratios if line.draws else None,
    is_of_running=lambda line: is_of_running(line.metric.name),
)

ANSWER = DataTable(  # in short, of an experiment's headline
    "experiment=experiment.pk metric=metric.name code choice one_sided equal_choice_percent",
    code=lambda line: line.kernels.found.code.word if line.kernels else line.word,
    choice=lambda line: line.kernels and line.kernels.found.choice.word,
    one_sided=lambda line: [*line.kernels.only_base, *line.kernels.only_head] if line.kernels else [],
    equal_choice_percent=lambda line: line.kernels and line.kernels.found.equal_choice_percent,
)
KERNELS = DataTable(  # the three answers of an experiment's kernels: code, choice, and kernels of one side
    f"""{EXPERIMENT} base_compilations new_compilations equal_choices=found.code.word obstacle change low high
    p=found.code.p coverage equal_choice_percent=found.equal_choice_percent not_pinned
    choice=found.choice.word choice_worse=found.choice.worse choice_ratio=found.choice.ratio
    choice_low=found.choice.low choice_high=found.choice.high choice_p=found.choice.p
    choice_best_ratio=found.choice.best_ratio choice_best_p=found.choice.best_p
    same_candidates=found.choice.same_candidates other_candidates
    differing_candidates=found.choice.differing_candidates untimed_candidates=found.choice.untimed
    other_frequencies=found.choice.frequencies other_frequencies_p=found.choice.frequencies_p only_base
    only_new=only_head only_base_us=found.only_base_us only_new_us=found.only_head_us""",
    base_compilations=lambda line: len(line.base),
    new_compilations=lambda line: len(line.head),
    change=lambda line: relative(line.found.code.ratio),
    low=lambda line: relative(line.found.code.low),
    high=lambda line: relative(line.found.code.high),
    coverage=lambda line: line.found.equal_choice_percent and line.found.equal_choice_percent / 100,
    not_pinned=lambda line: {line.titles[slot]: share for slot, share in line.found.unequal_percent.items()},
    other_candidates=lambda line: [line.titles[slot] for slot in line.found.choice.differing],
)


def headlines(metrics: Iterable[MetricComparison]) -> list[MetricComparison]:
    """Return the time that stands for each experiment: the surest of running that decides, else the surest
    that was measured; where none was, another speed or a time of compiling, and never a count."""
    times: defaultdict[int, list[MetricComparison]] = defaultdict(list)
    for line in metrics:
        role = role_of(line.metric.name, ())
        if line.metric.kind == "timing" and line.metric.unit != "B" and role != "diagnostic":
            times[line.experiment.pk].append(line)

    def rank(line: MetricComparison) -> tuple[bool, bool, bool, bool, int]:
        name = line.metric.name
        is_undecided, is_detail = line.word == "inconclusive", role_of(name, ()) != "headline"
        if name in _RUNNING:
            return False, False, False, is_undecided, _RUNNING.index(name)
        return not is_of_running(name), True, is_detail, is_undecided, 0

    return [min(lines, key=rank) for lines in times.values()]


def verdict_of(line: MetricComparison) -> str:
    """Return the answer of a metric in the words of a point's verdict."""
    if line.values[0] is not None and line.values[1] is None:
        return "failed"
    changed = {True: "improved", False: "regressed"}.get(line.better, "inconclusive")  # type: ignore[arg-type]
    return "unchanged" if line.word == "dismissed" else changed


def read(run: Run) -> tuple[list[MetricComparison], list[KernelsOfSides]]:
    """Return the metrics by experiment, in one as its suite is read, and the kernels: 4 statements."""
    comparison = compare([run])

    def place(line: MetricComparison) -> tuple[Any, ...]:
        row = line.experiment
        return row.case, row.title, row.dtype, metric_place(row.suite, line.metric)

    return sorted(comparison.metrics, key=place), list(comparison.kernels.values())


def result_of(run: Run) -> dict[str, Any]:
    """Return in short what came of a run: its state, the worst verdict once it has ended, and of an A/B run
    the most draws or pairs and the answer of each experiment."""
    if run.is_ab:
        lines = headlines(read(run)[0])
        verdicts = {verdict_of(line) for line in lines}
    else:
        lines, codes = [], Point.objects.filter(run=run).values_list("verdict_code", flat=True).distinct()
        verdicts = {VERDICTS[code] for code in codes if code is not None}
    return {
        "state": run.state,
        "verdict": None if run.state in ACTIVE else next(filter(verdicts.__contains__, _WORST_FIRST), None),
        "pairs": max((line.count for line in lines), default=0),
        "verdicts": ANSWER.rows(lines),
    }
