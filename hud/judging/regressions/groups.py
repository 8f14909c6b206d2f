"""Group regressions that have one cause, rank them, and keep the groups of each night as rows of `Cause`.

Metrics of one experiment are one row. What moved on a host whose canaries moved is one group, and the last.
Where no canaries were measured, experiments that moved in the same run by about the same factor are one group
if they are most of what that run measured: the host is the likely cause. Experiments of one
suite and backend that moved between the same two commits (without any, runs) are one group too, whatever the
arch: the backend is the likely cause. So are those of one case that moved, or failed, from the same one on.
Such groups that share an experiment are one.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal, TypeVar

from django.db import transaction
from django.db.models import Count, Q
from django.db.models.query import QuerySet
from django.utils import timezone

from hud.models import Cause, Regression, Run, SeriesState, Stream
from hud.points import nights
from hud.points.nights import Night
from hud.states.regressions import SETTLED, TOLD, Canaries, RegressionKind, RegressionState

T = TypeVar("T")
_FEWEST = 3  # experiments in a group
_FEWEST_OF_CASE = 2
_MOST_OF_RUN = 0.5  # share of the experiments of a run that points at its host
_ALIKE = 0.02  # log changes this close to their median are alike, or within a quarter of it
_LONGEST_TITLE = 200
CERTAIN = 10.0  # a change of this many times the noise could not be more certain


_Why = Literal["experiment", "host", "backend", "case"]


@dataclass(frozen=True)
class CauseLines:
    """Regressions with one cause, the most telling first; `words` tell it for several experiments."""

    why: _Why
    lines: list[Regression]
    words: str = ""

    @property
    def first(self) -> Regression:
        return self.lines[0]

    @cached_property
    def experiments(self) -> int:
        return len({line.series.experiment_id for line in self.lines})

    @property
    def ids(self) -> str:
        """Return the ids of all its regressions, as a box of the selection sends them."""
        return " ".join(str(line.pk) for line in self.lines)

    @property
    def is_new(self) -> bool:
        """Return whether only one run shows it so far."""
        return all(line.points <= 1 for line in self.lines)


def _cause_of(why: _Why, lines: list[Regression]) -> CauseLines:
    """Return the cause with what its regressions have in common in words, '' for one experiment."""
    first, words = lines[0], ""
    experiment = first.series.experiment
    if why == "host" and first.canaries == Canaries.MOVED:
        words = first.cause
    elif why == "host":
        host = first.first_run.host_name if first.first_run else ""
        run = f"Most of what run {first.first_run_id} measured moved alike"
        words = f"{run}: look at the host {host}".strip()
    elif why == "backend":
        cases = len({line.series.experiment_id for line in lines})
        backends = dict.fromkeys(line.series.experiment.backend for line in lines)
        where = f"{experiment.suite} on {', '.join(backends)}"
        words = f"{cases} experiments of {where} moved together"
    elif why == "case":
        backends = dict.fromkeys(line.series.experiment.backend for line in lines)
        archs = dict.fromkeys(line.series.experiment.arch or "unknown arch" for line in lines)
        where = ", ".join(archs if len(backends) == 1 < len(archs) else backends)
        words = f"{experiment.title} {'fails' if _is_failure(first) else 'moved'} on {where}"
    return CauseLines(why, lines, words)


def score(regression: Regression) -> float:
    """Return certainty × size in log space: twice as slow ranks like half the bandwidth. Failures lead; what
    pairs confirmed is certain."""
    if _is_failure(regression):
        return math.inf
    factor = CERTAIN if regression.state == RegressionState.CONFIRMED else regression.factor
    certainty = min((factor if factor is not None else CERTAIN) / CERTAIN, 1.0)
    return certainty * abs(_log_change(regression))


def group(
    regressions: Sequence[Regression], experiments_of_run: Mapping[int, int] | None = None
) -> list[CauseLines]:
    """Return the causes of these regressions, which have their experiments, metrics and latest runs, the
    highest score first. `experiments_of_run` is how many each run measured, by default read: 1 statement."""
    measured = experiments_of_runs(regressions) if experiments_of_run is None else experiments_of_run
    by_experiment: dict[int, list[Regression]] = {}
    by_host: dict[str, list[Regression]] = {}
    for row in sorted(regressions, key=lambda regression: (-score(regression), regression.pk)):
        if row.canaries == Canaries.MOVED and row.latest_run and row.latest_run.host_name:
            by_host.setdefault(row.latest_run.host_name, []).append(row)
        else:
            by_experiment.setdefault(row.series.experiment_id, []).append(row)
    leading = [rows[0] for rows in by_experiment.values()]
    causes: list[CauseLines] = []
    taken: set[int] = set()

    def take(why: _Why, alike: list[Regression]) -> None:
        own = [row.series.experiment_id for row in alike]
        taken.update(own)
        causes.append(_cause_of(why, [row for experiment in own for row in by_experiment[experiment]]))

    for alike in _same_run(leading, measured):
        if len(alike) >= _FEWEST:
            take("host", alike)
    moved = [row for row in leading if row.first_run_id is not None and row.series.experiment_id not in taken]
    steps = [alike for alike in by_key(moved, _step) if len(alike) >= _FEWEST]
    of_cases = [alike for alike in by_key(moved, _case) if len(alike) >= _FEWEST_OF_CASE]
    for part in _connected([*steps, *of_cases]):
        is_case = len({row.series.experiment.title for row in part.values()}) == 1
        take("case" if is_case else "backend", [row for row in moved if row.pk in part])
    causes += [CauseLines("experiment", rows) for key, rows in by_experiment.items() if key not in taken]
    causes.sort(key=lambda cause: (-max(map(score, cause.lines)), [line.pk for line in cause.lines]))
    return causes + [_cause_of("host", rows) for rows in by_host.values()]


def _connected(groups: Iterable[list[Regression]]) -> list[dict[int, Regression]]:
    """Return the groups by id, those that share a regression as one."""
    parts: list[dict[int, Regression]] = []
    for alike in groups:
        joined = {row.pk: row for row in alike}
        for part in [part for part in parts if part.keys() & joined.keys()]:
            parts.remove(part)
            joined |= part
        parts.append(joined)
    return parts


def _same_run(
    leading: Sequence[Regression], experiments_of_run: Mapping[int, int]
) -> Iterator[list[Regression]]:
    """Yield the experiments that moved alike in one run, where they are most of the run."""
    known = [row for row in leading if not _is_failure(row) and row.canaries != Canaries.QUIET]
    for members in by_key(known, lambda row: row.first_run_id):
        middle = median(_slowdown(member) for member in members)
        alike = [row for row in members if abs(_slowdown(row) - middle) <= max(_ALIKE, abs(middle) / 4)]
        run = members[0].first_run_id
        if run is not None and len(alike) >= _MOST_OF_RUN * experiments_of_run.get(run, math.inf):
            yield alike


def _step(regression: Regression) -> Hashable:
    experiment, ends = regression.series.experiment, (regression.last_good_run, regression.first_run)
    ends_named = [_commit_or_run(run) for run in ends]
    return experiment.suite, experiment.backend, *ends_named, _form(regression)


def _case(regression: Regression) -> Hashable:
    experiment, start = regression.series.experiment, _commit_or_run(regression.first_run)
    return experiment.suite, experiment.title, start, _form(regression)


def _commit_or_run(run: Run | None) -> Hashable:
    return run and (run.commit or run.pk)


def by_key(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return the items with the same key together, in the order of the first of each."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _is_failure(regression: Regression) -> bool:
    return regression.kind == RegressionKind.FAILURE or regression.change is None


def _form(regression: Regression) -> str:
    if _is_failure(regression):
        return "failure"
    return "drift" if regression.kind == RegressionKind.DRIFT else "step"


def _log_change(regression: Regression) -> float:
    change = regression.change or 0.0
    return math.log1p(change) if change > -1 else -math.inf


def _slowdown(row: Regression) -> float:
    """Return the log change as a slowdown, whatever the metric's direction is."""
    return _log_change(row) if row.series.metric.direction == "down" else -_log_change(row)


def experiments_of_runs(regressions: Iterable[Regression]) -> dict[int, int]:
    """Return how many experiments each run measured in which one of these first moved: 1 statement."""
    states = SeriesState.objects.filter(run__in={row.first_run_id for row in regressions} - {None})
    counted = states.values("run").annotate(experiments=Count("series__experiment", distinct=True))
    return dict(counted.values_list("run", "experiments"))


def of_cause(row: Regression) -> QuerySet[Regression]:
    """Return the regressions of this one's cause that wait for somebody, of a suspect those that wait for a
    second result, of a settled one those that are settled as it is, and itself."""
    same = Q(cause_row=row.cause_row_id)
    if row.cause_row_id is None:
        same &= Q(series__experiment=row.series.experiment_id, series__stream=row.series.stream_id)
    states = [row.state] if row.state in {RegressionState.SUSPECT, *SETTLED} else TOLD
    return Regression.objects.filter(Q(pk=row.pk) | same & Q(state__in=states))


def make_causes() -> int:
    """Give regressions of complete nights a cause; return how many. Nothing may wait to be judged."""
    now = timezone.now()
    pending = Regression.objects.filter(state__in=TOLD, cause_row=None, first_run__isnull=False)
    began = dict(pending.values_list("first_run", "series__stream"))
    return sum(
        _make_causes_of(stream, night)
        for stream in Stream.objects.filter(pk__in=set(began.values()))
        for night in nights.read(stream)
        if night.is_default(now) and not began.keys().isdisjoint(night.runs)
    )


def _make_causes_of(stream: Stream, night: Night) -> int:
    """Group the regressions that began in a night. A group joins the oldest cause that one of them has; other
    causes of the group are merged into that one. What began again keeps the cause of its earlier night."""
    with transaction.atomic():
        Stream.objects.select_for_update(no_key=True).get(pk=stream.pk)
        began = Run.objects.filter(pk__in=night.runs).earliest("order_time").order_time
        related = ("series__experiment", "series__metric", "first_run", "last_good_run", "latest_run")
        members = Regression.objects.select_related(*related).filter(
            Q(cause_row=None) | Q(cause_row__night__range=(began, night.time)),
            series__stream=stream,
            first_run__in=night.runs,
            state__in=TOLD,  # of known failures none is active
        )
        everything = list(members.order_by("pk"))
        without = sum(one.cause_row_id is None for one in everything)
        for cause in sorted(group(everything), key=lambda cause: len(cause.lines)):
            experiment = cause.first.series.experiment
            named = ", ".join((experiment.title, experiment.suite, experiment.backend))
            title = (cause.words or named)[:_LONGEST_TITLE]
            known = {line.cause_row_id for line in cause.lines if line.cause_row_id}
            if not known:
                known.add(Cause.objects.create(stream=stream, night=began, title=title).pk)
            stays, *others = sorted(known)
            Cause.objects.filter(pk=stays).update(title=title)
            Regression.objects.filter(cause_row__in=others).update(cause_row=stays)
            Cause.objects.filter(Q(pk__in=others) | Q(merged_into__in=others)).update(merged_into=stays)
            for regression in everything:
                if regression in cause.lines or regression.cause_row_id in others:
                    regression.cause_row_id = stays
            Regression.objects.filter(pk__in=[line.pk for line in cause.lines]).update(cause_row=stays)
    return without
