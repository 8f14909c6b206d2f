"""Answers of A/B runs: of each metric, at equal choices of the autotuner where both sides
were pinned to draws, else by free pairs; and of the kernels of both sides."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from django.db.models import QuerySet

from hud.judging.choices import ChoiceChange
from hud.judging.pairs import KernelComparison, PairVerdict, compare_kernels, judge_pairs
from hud.models import STATUS_NAMES, Compilation, Experiment, Kernel, Measurement, Metric, Point, Run, Series
from hud.runs.queue import progress_of, read_waiting
from hud.runs.tasks import end_early
from runner.schema import draws as equal_choices
from runner.schema.compilations import Kernels, TimedChoice, draw_obstacle
from runner.schema.metrics import is_of_running, role_of
from runner.schema.records import worst_quality
from runner.schema.statistics import LEAST_PAIRS, pair_middles
from runner.schema.suite import BadRequest
from runner.schema.tasks import Selection, plan
from runner.suites import SUITES

SAME_CHOICE = "same_choice_ratio"  # a metric that is computed from kernels: its answer is theirs
_NOISE_POINTS = 30  # newest points that say something of the noise of a choice
MOST_PLANNED = 6  # draws of a side in a comparison that nobody planned

Cause = Literal["", "code", "choice"]


@dataclass(frozen=True)
class KernelsOfSides:
    """The timed kernels of an experiment on both sides, by slot, and what follows from them."""

    experiment: Experiment
    base: list[Kernels]  # of free processes
    head: list[Kernels]
    found: KernelComparison
    titles: Mapping[str, str]  # by slot
    obstacle: str  # why the draw may hide a change though the code has none; '' if it cannot
    only_base: list[str]  # names of the kernels that one side alone has
    only_head: list[str]


@dataclass(frozen=True)
class MetricComparison:
    """One metric of an experiment on both sides. `base` and `head` are of free processes, by pair.

    `code` is None for what is not measured at equal choices, such as compile time: free pairs judge that.
    `change`, `low` and `high` are relative; of a few wild pairs there is no upper end. `values` are geometric
    means of baseline and candidate, whose ratio is the change; `ratios` are those of each draw, else of each
    pair, and `count` says of how many the answer is. `draws` are those that may decide, else all of them.
    `kernels` are those of its experiment, None where they are not known.
    """

    series: Series
    base: list[float | None]
    head: list[float | None]
    base_status: str  # the first that is not ok, else ok
    head_status: str
    pairs: PairVerdict
    word: equal_choices.CodeWord
    better: bool | None  # None without a confirmed change or without direction
    change: float | None
    low: float | None
    high: float | None
    p: float | None
    values: tuple[float | None, float | None]
    ratios: list[float | None]
    count: int
    cause: Cause = ""  # of a confirmed change at equal choices
    draws: tuple[equal_choices.Draw, ...] = ()
    code: equal_choices.CodeChange | None = None
    kernels: KernelsOfSides | None = None
    obstacle: str = ""  # why an answer at equal choices dismisses nothing
    repeated: int = 0  # processes that were measured again, too far from others with their choices
    quality: str = ""  # of runner.schema.records: why values may not decide

    @property
    def experiment(self) -> Experiment:
        return self.series.experiment

    @property
    def metric(self) -> Metric:
        return self.series.metric

    @property
    def changes(self) -> list[float | None]:
        return [*map(relative, self.ratios)]

    @property
    def detects_percent(self) -> float | None:
        """Return the change that as many draws with this scatter confirm in 95 % of comparisons."""
        if self.code is None or len(self.draws) < 3 or self.count < len(self.draws):
            return None
        scatter = statistics.stdev(draw.log_ratio for draw in self.draws)
        return equal_choices.detects_percent(scatter / math.sqrt(2), len(self.draws))


def relative(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


@dataclass(frozen=True)
class Comparison:
    """The answers of A/B runs that compare the same two sides."""

    metrics: list[MetricComparison]
    kernels: dict[int, KernelsOfSides]  # by experiment


def compare(runs: Sequence[Run], *, series: int | None = None, class_key: str = "") -> Comparison:
    """Judge what the runs measured, by default of every series, in 4 statements."""
    most = _most_draws(runs[0]) if len(runs) == 1 else None
    measured, compiled = Measurement.objects.filter(run__in=runs), Compilation.objects.filter(run__in=runs)
    if series is not None:
        measured, compiled = measured.filter(series=series), compiled.filter(experiment__series=series)
    if class_key:
        measured = measured.filter(environment__class_key=class_key)
    by_series = _measured(runs, measured)
    compared = Series.objects.select_related("metric", "experiment").in_bulk(by_series)
    kernels = _kernels(runs, compiled, most)
    awaits_draws = most is not None and runs[0].finished is None
    metrics = (_metric(compared[pk], rows, kernels, most, awaits_draws) for pk, rows in by_series.items())
    return Comparison(list(metrics), kernels)


class _Process(NamedTuple):
    repeat: int
    side: int
    draw: int | None
    value: float | None
    status: int
    quality: str | None  # why it may not decide


def _measured(runs: Sequence[Run], measured: QuerySet[Measurement]) -> dict[int, list[_Process]]:
    """Return the rows of each series in the order of their processes; numbers of later runs go on."""
    places = {run.pk: index for index, run in enumerate(runs)}
    names = ("series_id", "run_id", "repeat", "side", "draw", "value", "status", "quality")
    rows = list(measured.order_by(*names[:4]).values_list(*names))
    by_series: dict[int, list[_Process]] = {}
    pairs = 1 + max((row[2] for row in rows if row[4] is None), default=0)
    for pk, run, repeat, side, draw, value, status, quality in rows:
        number = None if draw is None else draw + 2 * equal_choices.MAX_DRAWS * places[run]
        own = repeat + pairs * places[run] if draw is None else repeat
        by_series.setdefault(pk, []).append(_Process(own, side, number, value, status, quality))
    return by_series


def _metric(
    series: Series,
    processes: Sequence[_Process],
    kernels: Mapping[int, KernelsOfSides],
    most: int | None,
    awaits_draws: bool,
) -> MetricComparison:
    free = {(process.repeat, process.side): process for process in processes if process.draw is None}
    numbers = range(max((repeat for repeat, _side in free), default=-1) + 1)
    sides_of_pairs = [[free.get((number, side)) for number in numbers] for side in (0, 1)]
    base, head = ([process and process.value for process in side] for side in sides_of_pairs)
    metric = series.metric
    pairs = judge_pairs(
        *([row.value if row and not row.quality else None for row in side] for side in sides_of_pairs),
        direction=metric.direction,  # type: ignore[arg-type]  # the registry's words are the rule's
        kind=metric.kind,  # type: ignore[arg-type]
    )
    statuses = ([process.status for process in processes if process.side == side] for side in (0, 1))
    base_status, head_status = (
        STATUS_NAMES.get(next(filter(None, codes), 0), "failed") if codes else "not_run" for codes in statuses
    )
    by_pairs = MetricComparison(
        series,
        base,
        head,
        base_status,
        head_status,
        pairs,
        word=pairs.change.word,
        better=pairs.better,
        change=pairs.change.change,
        low=_change_of(pairs.change.low),
        high=_change_of(pairs.change.high),
        p=pairs.change.p,
        values=(pairs.base, pairs.head),
        ratios=[b / a if a and b is not None else None for a, b in zip(base, head, strict=True)],
        count=pairs.pairs,
        quality=worst_quality(process.quality for process in processes),
    )
    of_sides = kernels.get(series.experiment_id)
    answer = of_sides and of_sides.found
    pinned = [process for process in processes if process.draw is not None]
    draws, code = equal_choices.answer_of(
        ((row.draw or 0, row.side, row.repeat, row.value, row.quality) for row in pinned), most
    )
    if metric.name == SAME_CHOICE and answer and answer.code.ratio is not None:
        draws, code = (), answer.code
    elif not draws and not (awaits_draws and is_of_running(metric.name)):
        return by_pairs
    cause, better = _cause(code, answer.choice if answer else None, metric.direction)
    at_draws = replace(
        by_pairs,
        word="confirmed" if cause else code.word,
        cause=cause,
        better=better,
        change=relative(code.ratio),
        low=relative(code.low),
        high=relative(code.high),
        p=code.p,
        count=sum(code.draws),
        draws=draws,
        code=code,
        kernels=of_sides,
        obstacle=of_sides.obstacle if of_sides else draw_obstacle([], [], series.experiment.device),
        repeated=sum(equal_choices.round_of(process.repeat)[1] for process in pinned),
    )
    if not draws:
        return at_draws
    values = pair_middles([(draw.base, draw.head) for draw in draws])
    return replace(at_draws, values=values, ratios=[math.exp(draw.log_ratio) for draw in draws])


def _cause(
    code: equal_choices.CodeChange, choice: ChoiceChange | None, direction: str
) -> tuple[Cause, bool | None]:
    """Return the cause of a confirmed change, and whether it is one for the better; None without direction.
    Of code and choices, what is worse counts."""
    cause: Cause = "code" if code.word == "confirmed" else ""
    better = code.ratio is not None and (code.ratio > 1) == (direction == "up") and direction != "none"
    if choice and choice.word == "confirmed" and (not cause or (choice.worse and better)):
        cause, better = "choice", not choice.worse
    return cause, better if cause and direction != "none" else None


def _change_of(log_ratio: float | None) -> float | None:
    return math.expm1(log_ratio) if log_ratio is not None and log_ratio < 700 else None


def _kernels(
    runs: Sequence[Run], compiled: QuerySet[Compilation], most: int | None
) -> dict[int, KernelsOfSides]:
    """Return the kernels of the experiments that have timed ones on both sides, in 2 statements."""
    places = {run.pk: index for index, run in enumerate(runs)}
    in_order = compiled.order_by("experiment", "run", "repeat").exclude(kernels=[])
    rows = list(in_order.select_related("experiment"))
    by_id = Kernel.objects.in_bulk({pk for row in rows for pk in row.kernels})
    titles = {kernel.slot: kernel.name for kernel in by_id.values()}
    of_experiments: dict[int, KernelsOfSides] = {}
    for pk, group in itertools.groupby(rows, key=lambda row: row.experiment_id):
        own = list(group)
        free = [(row.side, timed_choices(row, by_id)) for row in own if row.draw is None]
        base, head = ([kernels for at, kernels in free if at == side and kernels] for side in (0, 1))
        if not base or not head:  # on a CPU nothing times them
            continue
        draws = equal_choices.draws_of(
            (row.draw + 2 * equal_choices.MAX_DRAWS * places[row.run_id], row.side, row.repeat, row.busy_us)
            for row in own
            if row.draw is not None
        )
        pairs: defaultdict[tuple[bool, int, int, int], dict[int, Kernels]] = defaultdict(dict)
        for row in own:
            if row.draw is not None:
                process = equal_choices.round_of(row.repeat)[0]
                key = equal_choices.is_candidate(row.repeat), places[row.run_id], row.draw, process
                pairs[key][row.side] = timed_choices(row, by_id)
        both = [(key[0], (sides[0], sides[1])) for key, sides in sorted(pairs.items()) if len(sides) == 2]
        pinned, candidates = ([sides for at, sides in both if at == wanted] for wanted in (False, True))
        answer = compare_kernels(base, head, draws=draws, most=most, pinned=pinned, candidates=candidates)
        obstacle = draw_obstacle(base, head, own[0].experiment.device)
        only = ([titles[slot] for slot in slots] for slots in (answer.only_base, answer.only_head))
        of_experiments[pk] = KernelsOfSides(own[0].experiment, base, head, answer, titles, obstacle, *only)
    return of_experiments


def timed_choices(
    compilation: Compilation, kernels: Mapping[int, Kernel], untimed_us: float | None = None
) -> Kernels:
    """Return the kernels of a compilation by slot; `kernels` are all of its rows by id. Those without a time
    are left out, unless `untimed_us` stands for it."""
    timed = {}
    for pk, measured_us in zip(compilation.kernels, compilation.times_us, strict=True):
        time_us = untimed_us if measured_us is None else measured_us
        if time_us is not None:
            kernel = kernels[pk]
            choice = kernel.config or kernel.choice
            timed[kernel.slot] = TimedChoice.of(choice, time_us, kernel.offered, kernel.kind)
    return timed


def kernels_of(experiment: int, run: int | None) -> list[Kernels]:
    """Return the kernels of the free compilations of an experiment in a run, also those without a time."""
    rows = list(Compilation.objects.filter(experiment=experiment, run=run, draw=None).exclude(kernels=[]))
    by_id = Kernel.objects.in_bulk({pk for row in rows for pk in row.kernels})
    return [timed_choices(row, by_id, untimed_us=0.0) for row in rows]


def noise_of(points: QuerySet[Point]) -> equal_choices.ChoiceNoise:
    """Return the noise of a process at known choices: of the newest compilations that repeat a variant in one
    environment; assumed where too few do."""
    values: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    names = ("environment", "variants", "values", "value")
    newest = points.filter(variants__isnull=False).order_by("-order_time").values_list(*names)
    for environment, variants, measured, value in newest[:_NOISE_POINTS]:
        for variant, number in zip(variants or [], measured or [value], strict=True):
            if variant and number is not None and number > 0:
                values[environment, variant].append(number)
    return equal_choices.choice_noise(values.values())


def noise_before(experiment: Experiment) -> equal_choices.ChoiceNoise:
    """Return the noise of an experiment's surest clock whose choices were repeated; assumed without one."""
    points = Point.objects.filter(series__experiment=experiment)
    clocks = (noise_of(points.filter(series__metric__name=name)) for name in equal_choices.RUN_TIMES)
    return next((noise for noise in clocks if not noise.assumed), equal_choices.ChoiceNoise())


def plan_of(run: Run, suite: str, cases: Sequence[str]) -> dict[str, Any]:
    """Return the plan of a run whose request is about to be rolled back. `cases` were asked for, all of the
    suite where none were; `left_out` are those without a task, each with the reason. An A/B run has `pairs`,
    and one at equal choices the change that it confirms in 95 %, how often it confirms one of 3 %, and
    whether the noise is assumed, as it is of several experiments. What is no such is None."""
    progress, waiting, asked = progress_of(run), read_waiting(run), run.request
    draws, rounds = asked.selection.get("draws"), asked.selection["repeats"]
    of_a_task = 2 if run.is_ab else 1  # processes
    power: dict[str, Any] = dict.fromkeys(("detects_percent", "power", "noise_assumed"))
    if draws:
        noise = noise_before(asked.experiment) if asked.experiment else equal_choices.ChoiceNoise()
        of_a_task = equal_choices.comparison_processes(2, rounds) - equal_choices.comparison_processes(0)
        power = {
            "detects_percent": round(equal_choices.detects_percent(noise.noise, 2 * draws, rounds), 2),
            "power": round(equal_choices.power(noise.noise, 2 * draws, repeats=rounds).confirmed, 3),
            "noise_assumed": noise.assumed,
        }
    planned = asked.selection["cases"]
    wanted = cases or [case.name for case in SUITES[suite].cases] if suite else []
    left_out = []
    for case in sorted({*wanted} - {*planned}):
        try:
            plan(Selection(suite, asked.device, cases=[case]))
            reason = "not with this choice"
        except BadRequest as error:
            reason = str(error)
        left_out.append({"case": case, "reason": reason})
    return {
        **power,
        "pairs": (draws or rounds) if run.is_ab else None,
        "cases": planned,
        "left_out": left_out,
        "tasks": progress.total,
        "processes": progress.total * of_a_task,
        "seconds": progress.eta_s,
        "queue_position": waiting and waiting.position,
        "starts_in_s": waiting and waiting.starts_in_s,
        "stream": run.stream.name,
    }


def planned_draws(series: Sequence[Series]) -> int:
    """Return the draws of each side after which a comparison of these series ends at the latest; 0 if none of
    them is measured at equal choices."""
    running = [row for row in series if is_of_running(row.metric.name) or row.metric.name == SAME_CHOICE]
    if not running:
        return 0
    noise = max(noise_of(Point.objects.filter(series=row)).noise for row in running)
    draws = min(MOST_PLANNED, math.ceil(equal_choices.draws_to_decide(noise) / 2))
    return max(draws, LEAST_PAIRS) if len(running) < len(series) else draws  # a draw has a free pair, too


def _most_draws(run: Run) -> int | None:
    """Return the draws of both sides after which a run ends at the latest, None without a plan."""
    planned: int | None = run.request_or_empty.selection.get("draws")
    return 2 * planned if planned else None


def end_if_clear(run: Run) -> None:
    """End a run at equal choices whose answer is clear before all of its draws are taken: in the headline
    metrics, and where a gate asked, in the surest time of running, of which a gate takes its answer."""
    is_gate = run.request_or_empty.run_class == "ci"
    most = _most_draws(run)
    if most is None or most <= 2 * equal_choices.LEAST_DRAWS:
        return
    rows: defaultdict[int, dict[str, MetricComparison]] = defaultdict(dict)
    for metric in compare([run]).metrics:
        rows[metric.experiment.pk][metric.metric.name] = metric
    headline: list[MetricComparison] = []
    for names in rows.values():
        measured = {name: row for name, row in names.items() if row.code and row.count}
        surest = [name for name in equal_choices.RUN_TIMES if is_gate and name in measured]
        wanted = surest[:1] or [name for name in measured if role_of(name, names) == "headline"]
        headline += [measured[name] for name in wanted]
    if headline and all(equal_choices.enough(row.draws, most) for row in headline):
        end_early(run=run, reason="the answer is clear")
