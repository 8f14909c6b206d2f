"""The compilations of an experiment: their choices, how often those came, and what the newest changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

from hud.judging.kernels.attribution import attribute
from hud.judging.kernels.table import KernelTable
from hud.models import Compilation, Series, Stream, kernels_of
from hud.runs.branches import other_branch
from hud.sql import fetch, fetch_named
from hud.tables.table import DataTable

SAME_CHOICE = "same_choice_ratio"
_MOST_MARKS = 600  # of the newest compilations
_OF_CHOICES = 60  # newest compilations whose choices are counted
_FEW_KERNELS = 3  # with more, the choices of one compilation are no longer one fact

_MARK = DataTable(
    f"run number time variant config busy_us value {SAME_CHOICE}=same_choice",
    time=lambda mark: mark.order_time.isoformat(),
)
_CHOICE = DataTable("config n median_us")
_KERNEL = DataTable("kernel=name lost_us choices", choices=lambda kernel: _CHOICE.rows(kernel.choices))


@dataclass(slots=True)
class CountedChoice:
    """A choice of a kernel: how often it came in the newest compilations, with its median time in a step."""

    slot: str
    choice: str
    name: str
    config: str
    n: int
    median_us: float


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel whose configuration differs between compilations, the most frequent first."""

    name: str
    choices: list[CountedChoice]
    lost_us: float  # in the mean compilation, against the best choice seen twice


@dataclass
class Compilations:
    marks: list[Any] = field(default_factory=list)  # each compilation, oldest first
    chosen: list[ChosenKernel] = field(default_factory=list)  # that lose most
    steady: int = 0  # kernels with one choice in all compilations
    counted: int = 0  # compilations in which choices were counted
    table: KernelTable | None = None  # what the newest point changed
    runs: tuple[int, int] = (0, 0)  # of that comparison

    @property
    def few_kernels(self) -> bool:
        """Return whether a configuration is the fact of a whole compilation."""
        return bool(self.marks) and all(mark.kernels <= _FEW_KERNELS for mark in self.marks)

    def to_json(self) -> dict[str, Any]:
        return {"compilations": _MARK.rows(self.marks), "choices": _KERNEL.rows(self.chosen)}


def read(
    experiment_id: int,
    stream: Stream,
    series: Sequence[Series],
    shown: Series | None,
    *,
    base: int | None = None,
    head: int | None = None,
    compare: bool = True,
) -> Compilations:
    """Return the compilations in a stream, in 1 statement if there are none, else in at most 4, with what
    changed from the run `base` to `head`, by default to the newest point from the one before, unless not
    `compare`. `series` are the experiment's, `shown` the one whose values to read.

    A/B runs are left out: they are no points of the series.
    """
    ratio = next((row for row in series if row.metric.name == SAME_CHOICE), None)
    marks = _marks(experiment_id, stream, shown, ratio)
    compilations = Compilations(marks)
    counted = sum(not mark.rerun for mark in marks)
    if not counted:
        return compilations
    compilations.counted = min(counted, _OF_CHOICES)
    for _slot, group in groupby(_choices(experiment_id, stream), key=lambda choice: choice.slot):
        first, *more = group
        if not more:
            compilations.steady += 1
            continue
        choices = sorted([first, *more], key=lambda choice: -choice.n)
        compilations.chosen.append(ChosenKernel(first.name, choices, _lost_us(choices, compilations.counted)))
    compilations.chosen.sort(key=lambda kernel: -kernel.lost_us)
    if compare:
        _compare(experiment_id, compilations, base, head)
    return compilations


def _lost_us(choices: Sequence[CountedChoice], compilations: int) -> float:
    """Return what a kernel loses in the mean compilation against its best choice that was seen twice."""
    known = [choice.median_us for choice in choices if choice.n > 1]
    best_us = min(known, default=0.0)
    return sum(choice.n * (choice.median_us - best_us) for choice in choices) / compilations if known else 0.0


def _marks(experiment_id: int, stream: Stream, shown: Series | None, ratio: Series | None) -> list[Any]:
    """Return each compilation, oldest first, with the value of the shown metric, `same_choice`, its time by
    that of the same choices in history, and the `config` of few kernels. Reruns are in no count."""
    marks = fetch_named(
        """
        SELECT c.run_id run, c.repeat, coalesce(c.number, c.repeat) number, c.order_time, r.branch,
            c.variant, cardinality(c.kernels) kernels,
            CASE WHEN cardinality(c.kernels) <= %(few)s THEN coalesce((
                SELECT string_agg(k.config, '; ' ORDER BY array_position(c.kernels, k.id))
                FROM hud_kernel k WHERE k.id = ANY(c.kernels) AND k.config <> ''), '') ELSE '' END config,
            c.busy_us,
            -- a point of one compilation has no list of them
            (coalesce(p.values, ARRAY[p.value]))[coalesce(c.number, c.repeat) + 1] AS value,
            (coalesce(same.values, ARRAY[same.value]))[coalesce(c.number, c.repeat) + 1] same_choice, r.rerun
        FROM hud_compilation c
        JOIN hud_run r ON r.id = c.run_id AND r.base_interpreter = '' AND r.stream_id = %(stream)s
        LEFT JOIN hud_point p ON (p.series_id, p.order_time, p.run_id, p.environment_id)
            = (%(series)s, r.order_time, c.run_id, c.environment_id)
        LEFT JOIN hud_point same ON (same.series_id, same.order_time, same.run_id, same.environment_id)
            = (%(ratio)s, r.order_time, c.run_id, c.environment_id)
        WHERE c.experiment_id = %(experiment)s AND c.kernels <> '{}'
        ORDER BY c.order_time DESC, c.run_id DESC, c.repeat DESC LIMIT %(limit)s
        """,
        {
            "experiment": experiment_id,
            "stream": stream.pk,
            "series": shown.pk if shown else None,
            "ratio": ratio.pk if ratio else None,
            "few": _FEW_KERNELS,
            "limit": _MOST_MARKS,
        },
    )
    return marks[::-1]


def _choices(experiment_id: int, stream: Stream) -> list[CountedChoice]:
    """Return the choices of each slot, which a compilation has once, those of reruns left out."""
    return fetch(
        CountedChoice,
        """
        SELECT k.slot, k.choice, min(k.name), min(k.config), count(*)::int,
            (percentile_cont(0.5) WITHIN GROUP (ORDER BY own.time_us))::real
        FROM (
            SELECT kernels, times_us FROM hud_compilation c
            JOIN hud_run r ON r.id = c.run_id AND r.base_interpreter = '' AND NOT r.rerun
            WHERE c.experiment_id = %(experiment)s AND r.stream_id = %(stream)s AND c.kernels <> '{}'
            ORDER BY c.order_time DESC, c.run_id DESC, c.repeat DESC LIMIT %(limit)s
        ) newest CROSS JOIN LATERAL unnest(newest.kernels, newest.times_us) own(id, time_us)
        JOIN hud_kernel k ON k.id = own.id
        WHERE own.time_us IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
        """,
        {"experiment": experiment_id, "stream": stream.pk, "limit": _OF_CHOICES},
    )


def _compare(experiment_id: int, compilations: Compilations, base: int | None, head: int | None) -> None:
    """Compare two points whose kernels are known: 2 statements, none with a single point."""
    newest = [mark for mark in reversed(compilations.marks) if not mark.rerun]
    own = [mark.run for mark in newest if not other_branch(mark.branch)]
    runs: list[int] = list(dict.fromkeys(own or [mark.run for mark in newest]))
    if len(runs) < 2:
        return
    if base not in runs or head not in runs or base == head:
        head, base = runs[:2]
    seen = tuple(
        (mark.run, mark.repeat, mark.variant, mark.busy_us)
        for mark in compilations.marks
        if mark.run in (base, head)
    )
    compilations.table = _sums(experiment_id, base, head, seen)
    compilations.runs = base, head


@lru_cache(maxsize=64)
def _sums(experiment_id: int, base: int, head: int, _seen: tuple[Any, ...]) -> KernelTable:
    """Return the sums of what changed from run `base` to `head`: 2 statements. Kept, since each change of the
    charts loads the page again; `_seen` tells whether compilations came or went since."""
    rows = Compilation.objects.filter(experiment=experiment_id, run__in=(base, head)).order_by("repeat")
    sides: dict[int, list[Compilation]] = {base: [], head: []}
    for row in rows.select_related("environment", "binary_list"):
        side = sides[row.run_id]
        if not side or side[0].environment_id == row.environment_id:
            side.append(row)
    kernels = kernels_of([row for side in sides.values() for row in side])
    compiled = ([row.compiled(kernels) for row in side] for side in sides.values())
    cards = {side[0].environment.facts.get("gpu_uuid") or "" for side in sides.values()}
    return KernelTable.sums_of(attribute(*compiled, same_card=len(cards) == 1))
