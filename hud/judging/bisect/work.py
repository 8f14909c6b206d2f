"""Bisects: which version of torch made a regression, by comparisons in pairs on the host that measured it.

The state is in rows: `manage.py tick` takes the results of the newest step and requests the next one, so that
a bisect goes on after a restart.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from django.db import transaction
from django.db.models.functions import Substr
from django.utils import timezone
from packaging.version import InvalidVersion, Version

from hud.accounts import audit
from hud.hosts.registration import visible_accelerators
from hud.judging.comparison import Comparison, MetricComparison, compare
from hud.judging.regressions import confirm
from hud.judging.regressions.events import record
from hud.judging.regressions.groups import by_key
from hud.models import ACTIVE, Accelerator, Bisect, BisectStep, Regression, Run, State
from hud.points.facts import flat
from hud.problems import Problem
from hud.runs import overlays
from hud.runs.tasks import cancel as cancel_run
from hud.states.bisect import BisectState, StepAnswer, Word, next_step
from runner.schema.protocol import OVERLAYS_ALLOWED
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import BadRequest

logger = logging.getLogger(__name__)
_NIGHTLY = re.compile(r"\.dev(\d{4})(\d{2})(\d{2})")
_COMMIT_DIGITS = 9  # by which commits are compared
_TOLD_APART = ("triton", "python", "compiler", "packages", "variables")  # interpreters of one torch, by these


def hindrance(regression: Regression, attached: Sequence[Accelerator]) -> str:
    """Return why the regression cannot be bisected, '' if it can."""
    try:
        _plan(regression, attached)
    except Problem as error:
        return str(error)
    return ""


def _plan(regression: Regression, attached: Sequence[Accelerator]) -> tuple[Accelerator, list[Build]]:
    accelerator = confirm.accelerator_of(regression, attached)
    if accelerator is None:
        raise Problem(409, "no host that takes tasks has measured it")
    runs = (regression.last_good_run, regression.first_run)
    good, bad = (confirm.torch_of(regression, run) for run in runs)
    ends = [confirm.interpreter_of(regression, run, accelerator.host) for run in runs]
    if good and good == bad and (None in ends or ends[0] == ends[1]):
        raise Problem(409, f"torch is {good[0]} before it and after it")
    builds = _range(ends, builds_of(accelerator))
    if len(builds) < 2:
        count = "no version" if not builds else "one version"
        raise Problem(409, f"host {accelerator.host.name} has {count} of torch; attach it with --python")
    return accelerator, builds


def start(*, regression: Regression, who: str, may_run_code: bool = False) -> Bisect:
    """Start a bisect with the comparison of its two ends; of commits between versions too, where its host
    allows overlays and who asks may run code. Raise Problem 409."""
    with transaction.atomic():
        locked = Regression.objects.select_for_update(of=("self",))
        related = ("series__experiment", "first_run", "last_good_run")
        regression = locked.select_related(*related).get(pk=regression.pk)
        if running := Bisect.objects.filter(regression=regression, state=BisectState.RUNNING).first():
            raise Problem(409, f"bisect {running.pk} of it is running")
        accelerator, builds = _plan(regression, visible_accelerators())
        if may_run_code and OVERLAYS_ALLOWED.items() <= accelerator.labels.items():
            builds = _with_commits(builds)
        versions = [asdict(build) for build in builds]
        bisect = Bisect.objects.create(
            regression=regression, accelerator=accelerator, builds=versions, requested_by=who
        )
        try:
            _go_on(bisect)
        except BadRequest as error:
            raise Problem(409, str(error)) from error
        record(regression, event="bisect", who=who, note=f"{len(builds)} versions of torch")
        audit.note(who=who, action="regression.bisect", subject=f"regression {regression.pk}")
    return bisect


def advance() -> int:
    """Take the results of steps that have ended and request the next ones; return how many went on."""
    count = 0
    for pk in Bisect.objects.filter(state=BisectState.RUNNING).values_list("pk", flat=True):
        with transaction.atomic():
            related = ("regression__series__experiment", "regression__series__metric", "accelerator__host")
            locked = Bisect.objects.select_for_update(of=("self",), skip_locked=True)
            bisect = locked.select_related(*related).filter(pk=pk, state=BisectState.RUNNING).first()
            step = bisect.steps.select_related("run").order_by("pk").last() if bisect else None
            if bisect is None or step is None or (step.run and step.run.state in ACTIVE):
                continue
            if step.run and step.run.state == State.CANCELLED:
                _end(bisect, BisectState.CANCELLED, f"run {step.run.pk} was cancelled")
            else:
                _take(bisect, step)
                try:
                    _go_on(bisect)
                except BadRequest as error:  # the host has been detached, or lost the interpreter
                    _end(bisect, BisectState.CANNOT_TELL, str(error))
            count += 1
    return count


def cancel(*, bisect: Bisect, who: str) -> None:
    """End a bisect, and the run that it waits for."""
    with transaction.atomic():
        bisect = Bisect.objects.select_for_update().get(pk=bisect.pk)
        if bisect.state == BisectState.RUNNING:
            _end(bisect, BisectState.CANCELLED, f"cancelled by {who}")
            for run in Run.objects.filter(pk__in=bisect.steps.values("run"), state__in=ACTIVE):
                cancel_run(run=run, who=who)


def _range(ends: Sequence[str | None], builds: Sequence[Build]) -> list[Build]:
    """Return the builds from the last good run's interpreter to that of the first run that moved, if both are
    there and in this order or have the same torch; else all."""
    places = {build.interpreter: index for index, build in enumerate(builds)}
    good, bad = (places.get(end or "") for end in ends)
    if good is None or bad is None:
        return list(builds)
    if good > bad and builds[good].version == builds[bad].version:
        return list(reversed(builds[bad : good + 1]))
    return list(builds[good : bad + 1] if good < bad else builds)


def _with_commits(builds: list[Build]) -> list[Build]:
    """Return the builds with overlays of the commits between neighbours, or the words why there are none."""
    every = builds[:1]
    for older, newer in pairwise(builds):
        try:
            for commit in overlays.commits_between(older.torch_git, newer.torch_git):
                name = f"{older.interpreter}@{commit}"
                every.append(replace(older, interpreter=name, commits=f"with {commit[:12]}"))
            every.append(replace(newer, commits=f"with {newer.torch_git[:12]}"))
        except BadRequest as error:  # noqa: PERF203 - a range for itself
            every.append(replace(newer, commits=str(error)))
    return every


def _go_on(bisect: Bisect) -> None:
    """Request the next comparison, or end the bisect. Raise BadRequest."""
    state, *places = next_step(len(bisect.builds), answers(bisect))
    if state == BisectState.RUNNING:
        if bisect.accelerator is None:
            raise BadRequest("the accelerator is no longer there")
        base, head = (bisect.builds[index]["interpreter"] for index in places)
        series, who = [bisect.regression.series], bisect.requested_by
        run = confirm.rerun_on(
            bisect.accelerator, series, who=who, interpreter=head, base=base, may_run_code=True
        )
        BisectStep.objects.create(bisect=bisect, base=places[0], head=places[1], run=run)
    else:
        bisect.good, bisect.bad = places
        _end(bisect, state)


def answers(bisect: Bisect) -> list[StepAnswer]:
    """Return the answer of each comparison that has ended, over all pairs of the same two versions."""
    ended: dict[tuple[int, int], StepAnswer] = {}
    for step in bisect.steps.filter(pairs__isnull=False).order_by("pk"):
        sides = step.base, step.head
        attempts = ended[sides].attempts + 1 if sides in ended else 1
        ended[sides] = StepAnswer(*sides, step.word, attempts, _size(step.change))  # type: ignore[arg-type]
    return list(ended.values())


def _take(bisect: Bisect, step: BisectStep) -> None:
    """Store the answer over all comparisons of a step's two versions, now that this one has ended."""
    same = bisect.steps.filter(base=step.base, head=step.head, pairs__isnull=False).exclude(pk=step.pk)
    runs = [row.run_id for row in [*same.order_by("pk"), step] if row.run_id and _has_its_builds(bisect, row)]
    compared = list(Run.objects.select_related("request").filter(pk__in=runs).order_by("pk"))
    comparison = compare(compared, series=bisect.regression.series_id)
    answer = comparison.metrics[0] if comparison.metrics else None
    step.pairs, step.word, step.finished = [], "none", timezone.now()
    if answer:
        step.pairs = [list(pair) for pair in zip(answer.base, answer.head, strict=True)]
        step.change = answer.change
        step.low, step.high = (None if end is None else math.log1p(end) for end in (answer.low, answer.high))
        step.word = _word(bisect, step, answer, comparison)
    step.save()


def _word(bisect: Bisect, step: BisectStep, answer: MetricComparison, comparison: Comparison) -> Word:
    """Return the answer of a step. What it leaves open is still "same" if the interval has no room for half
    of the change that is searched for: that of the ends today, or at first that of the regression."""
    if answer.word == "confirmed" and answer.better is False:
        return "worse"
    if answer.better or (
        answer.word == "dismissed" and not confirm.obstacle(bisect.regression, answer, comparison)
    ):
        return "same"
    if not answer.count:
        return "none"
    ends = bisect.steps.filter(word="worse").order_by("pk").first()
    size = _size(ends.change if ends else bisect.regression.change)
    is_unclear = answer.word != "inconclusive" or answer.count < LEAST_PAIRS or not size
    if is_unclear or step.low is None or step.high is None:
        return "unclear"
    most = -step.low if bisect.regression.series.metric.direction == "up" else step.high
    return "same" if most < size / 2 else "unclear"


def _size(change: float | None) -> float:
    """Return the size of a relative change as a log ratio, 0 if it has none."""
    return abs(math.log1p(change)) if change is not None and change > -1 else 0.0


def _has_its_builds(bisect: Bisect, step: BisectStep) -> bool:
    """Return whether the interpreters of a step still had the torch that it compares."""
    compared = [bisect.builds[index] for index in (step.base, step.head)]
    own = [{(build["torch"], build["torch_git"])} for build in compared]
    other = [*map(set.difference, confirm.torches_of(bisect.regression, [step.run_id]), own)]
    if any(other):
        logger.warning("%s: run %s had other versions of torch: %s", bisect, step.run_id, other)
    return not any(other)


def _end(bisect: Bisect, state: BisectState, reason: str = "") -> None:
    bisect.state, bisect.reason, bisect.finished = state, reason[:500], timezone.now()
    bisect.save()
    record(bisect.regression, event="bisected", note=f"bisect {bisect.pk}: {bisect.conclusion}"[:1000])


# ---- the versions of torch that a host has


@dataclass(frozen=True)
class Build:
    """An interpreter with torch, by its name on the host. `date` is the day of torch's commit, '' unknown;
    `differs` what tells it from others with the same torch, such as its Triton."""

    interpreter: str
    torch: str
    torch_git: str
    date: str = ""
    differs: str = ""
    commits: str = ""  # the overlay in front of it, or why commits before it have none

    @property
    def version(self) -> tuple[str, str]:
        return self.torch, self.torch_git


def builds_of(accelerator: Accelerator) -> list[Build]:
    """Return the interpreters with torch that an accelerator can run, the oldest torch first: those with
    which its host was attached (`--python NAME=PATH`). The day of a nightly's commit is in its version, that
    of others is known from runs of the same commit."""
    offered = accelerator.catalog.get("pythons", [])
    pythons = [
        (name, (facts["torch"], facts.get("torch_git", "")), facts)
        for name, facts in accelerator.host.facts.get("pythons", {}).items()
        if name in offered and facts.get("torch")
    ]
    known = Run.objects.annotate(start=Substr("commit", 1, _COMMIT_DIGITS)).filter(
        start__in={git[:_COMMIT_DIGITS] for _name, (_torch, git), _facts in pythons if git},
        order_time_source="commit",
    )
    days = dict(known.order_by("-order_time").values_list("start", "order_time"))
    builds = []
    for same in by_key(pythons, lambda python: python[1]):
        described = [flat({key: facts[key] for key in _TOLD_APART if facts.get(key)}) for *_, facts in same]
        keys = sorted({key for facts in described for key in facts})
        differing = [key for key in keys if len({facts.get(key, "") for facts in described}) > 1]
        for (name, (torch, git), _python), facts in zip(same, described, strict=True):
            nightly, day = _NIGHTLY.search(torch), days.get(git[:_COMMIT_DIGITS])
            date = "-".join(nightly.groups()) if nightly else f"{day:%Y-%m-%d}" if day else ""
            differs = ", ".join(f"{key} {facts.get(key) or 'none'}" for key in differing)
            builds.append(Build(name, torch, git, date, differs))
    return in_order(builds)


def in_order(builds: Sequence[Build]) -> list[Build]:
    """Return the builds by the day of their commit; by their versions if the day of one is not known."""
    builds = sorted(builds, key=lambda build: (_version(build), build.date, build.interpreter))
    return sorted(builds, key=lambda build: build.date) if all(build.date for build in builds) else builds


def _version(build: Build) -> Version:
    try:
        return Version(build.torch)
    except InvalidVersion:
        return Version("0")
