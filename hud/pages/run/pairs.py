"""The A/B comparison of a run: a row for each experiment and metric, and one for the kernels of each
experiment."""

from hud.judging.comparison import Comparison, compare, relative
from hud.models import Run
from hud.points.read import metric_place
from hud.tables.table import EXPERIMENT, DataTable

METRIC = DataTable(
    f"""{EXPERIMENT} metric=metric.name unit=metric.unit direction=metric.direction base new change low high p
    pairs=pairs.pairs draws verdict=word better cause at_base_draws at_new_draws detects_percent repeated
    base_status new_status=head_status base_values=base new_values=head draw_ratios""",
    base=lambda line: line.values[0],
    new=lambda line: line.values[1],
    draws=lambda line: len(line.draws) or None,
    cause=lambda line: line.cause or None,
    at_base_draws=lambda line: line.code and line.code.at_base,
    at_new_draws=lambda line: line.code and line.code.at_head,
    draw_ratios=lambda line: line.ratios if line.draws else None,
)


KERNELS = DataTable(  # the three answers of an experiment's kernels: code, choice, and kernels of one side
    f"""{EXPERIMENT} base_compilations new_compilations equal_choices=found.code.word change low high
    p=found.code.p coverage equal_choice_percent=found.equal_choice_percent not_pinned
    choice=found.choice.word choice_worse=found.choice.worse choice_ratio=found.choice.ratio
    choice_best_ratio=found.choice.best_ratio same_candidates=found.choice.same_candidates other_candidates
    differing_candidates=found.choice.differing_candidates untimed_candidates=found.choice.untimed
    other_frequencies=found.choice.frequencies other_frequencies_p=found.choice.frequencies_p only_base
    only_new=only_head only_base_us=found.one_sided.base_us only_new_us=found.one_sided.head_us""",
    base_compilations=lambda line: len(line.base),
    new_compilations=lambda line: len(line.head),
    change=lambda line: relative(line.found.code.ratio),
    low=lambda line: relative(line.found.code.low),
    high=lambda line: relative(line.found.code.high),
    coverage=lambda line: line.found.equal_choice_percent and line.found.equal_choice_percent / 100,
    not_pinned=lambda line: {line.titles[slot]: share for slot, share in line.found.unequal_percent.items()},
    other_candidates=lambda line: [line.titles[slot] for slot in line.found.choice.differing],
)


def read(run: Run) -> Comparison:
    """Return the comparison, its metrics by experiment, and inside one as its suite is read: 4 statements."""
    comparison = compare([run])
    comparison.metrics.sort(
        key=lambda line: (
            line.experiment.case,
            line.experiment.title,
            line.experiment.dtype,
            metric_place(line.experiment.suite, line.metric),
        ),
    )
    return comparison
