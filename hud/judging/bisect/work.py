"""Bisects: which version of torch made a regression, by comparisons in pairs on the host that measured it.

The state is in rows: `manage.py tick` takes the results of the newest step and requests the next one, so that
a bisect goes on after a restart.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.db import transaction
from django.db.models.functions import Substr
from django.utils import timezone
from packaging.version import InvalidVersion, Version

from hud.accounts import audit
from hud.judging.bisect.search import Answer, BisectState, Compare, Word, next_step
from hud.judging.pairs import PairVerdict
from hud.judging.regressions.confirm import (
    accelerator_of,
    interpreter_of,
    judge_metric,
    read_pairs,
    rerun_on,
    torch_of,
)
from hud.judging.regressions.events import record
from hud.models import ACTIVE, Accelerator, Bisect, BisectStep, Measurement, Regression, Run, State
from hud.runs.requests import InvalidRunRequest
from hud.runs.run_states import cancel as cancel_run
from runner.schema.statistics import LEAST_PAIRS

logger = logging.getLogger(__name__)
_NIGHTLY = re.compile(r"\.dev(\d{4})(\d{2})(\d{2})")
_COMMIT_DIGITS = 9  # by which commits are compared


class CannotBisect(Exception):
    """No bisect of the regression can start now; the text says why."""


def hindrance(regression: Regression, attached: Sequence[Accelerator] | None = None) -> str:
    """Return why the regression cannot be bisected, '' if it can."""
    try:
        _plan(regression, attached)
    except CannotBisect as error:
        return str(error)
    return ""


def _plan(
    regression: Regression, attached: Sequence[Accelerator] | None = None
) -> tuple[Accelerator, list[Build]]:
    accelerator = accelerator_of(regression, attached)
    if accelerator is None:
        raise CannotBisect("no host that takes tasks has measured it")
    runs = (regression.last_good_run, regression.first_run)
    good, bad = (torch_of(regression, run) for run in runs)
    ends = [interpreter_of(regression, run, accelerator.host) for run in runs]
    if good and good == bad and (None in ends or ends[0] == ends[1]):
        raise CannotBisect(f"torch is {good[0]} before it and after it")
    builds = _range(ends, builds_of(accelerator))
    if len(builds) < 2:
        found = "no version" if not builds else "one version"
        raise CannotBisect(f"host {accelerator.host.name} has {found} of torch; attach it with --python")
    return accelerator, builds


def start(*, regression: Regression, who: str) -> Bisect:
    """Start a bisect with the comparison of its two ends. Raise CannotBisect."""
    with transaction.atomic():
        locked = Regression.objects.select_for_update(of=("self",))
        related = ("series__experiment", "first_run", "last_good_run")
        regression = locked.select_related(*related).get(pk=regression.pk)
        if running := Bisect.objects.filter(regression=regression, state=BisectState.RUNNING).first():
            raise CannotBisect(f"bisect {running.pk} of it is running")
        accelerator, builds = _plan(regression)
        bisect = Bisect.objects.create(
            regression=regression,
            accelerator=accelerator,
            builds=[build.to_json() for build in builds],
            requested_by=who,
        )
        try:
            _go_on(bisect)
        except InvalidRunRequest as error:
            raise CannotBisect(str(error)) from error
        words = f"{len(builds)} versions of torch"
        record(regression, regression.state, regression.state, event="bisect", who=who, note=words)
        audit.note(who=who, action="regression.bisect", subject=f"regression {regression.pk}")
    return bisect


def advance() -> int:
    """Take the results of steps that have ended and request the next ones; return how many went on."""
    count = 0
    for pk in Bisect.objects.filter(state=BisectState.RUNNING).values_list("pk", flat=True):
        with transaction.atomic():
            related = ("regression__series__experiment", "regression__series__metric", "accelerator__host")
            found = Bisect.objects.select_for_update(of=("self",), skip_locked=True)
            bisect = found.select_related(*related).filter(pk=pk, state=BisectState.RUNNING).first()
            step = bisect.steps.select_related("run").order_by("pk").last() if bisect else None
            if bisect is None or step is None or (step.run and step.run.state in ACTIVE):
                continue
            if step.run and step.run.state == State.CANCELLED:
                _end(bisect, BisectState.CANCELLED, f"run {step.run.pk} was cancelled")
            else:
                _take(bisect, step)
                try:
                    _go_on(bisect)
                except InvalidRunRequest as error:  # the host has been detached, or lost the interpreter
                    _end(bisect, BisectState.CANNOT_TELL, str(error))
            count += 1
    return count


def cancel(*, bisect: Bisect, who: str) -> None:
    """End a bisect, and the run that it waits for."""
    with transaction.atomic():
        bisect = Bisect.objects.select_for_update().get(pk=bisect.pk)
        if bisect.state == BisectState.RUNNING:
            _end(bisect, BisectState.CANCELLED, f"cancelled by {who}")
            for step in bisect.steps.filter(run__state__in=ACTIVE).select_related("run"):
                assert step.run
                cancel_run(run=step.run, who=who)


def _range(ends: Sequence[str | None], builds: Sequence[Build]) -> list[Build]:
    """Return the builds from the last good run's interpreter to that of the first run that moved, if both are
    there and in this order or have the same torch; else all."""
    places = {build.interpreter: place for place, build in enumerate(builds)}
    good, bad = (places.get(end or "") for end in ends)
    if good is None or bad is None:
        return list(builds)
    if good > bad and builds[good].version == builds[bad].version:
        return list(reversed(builds[bad : good + 1]))
    return list(builds[good : bad + 1] if good < bad else builds)


def _go_on(bisect: Bisect) -> None:
    """Request the next comparison, or end the bisect. Raise InvalidRunRequest."""
    known = answers(bisect)
    found = next_step(len(bisect.builds), known)
    if isinstance(found, Compare):
        BisectStep.objects.create(
            bisect=bisect, base=found.base, head=found.head, run=_request(bisect, found)
        )
    elif known[0].word in {"unclear", "none"}:  # the ends: nothing is known of those between
        good, bad = (bisect.builds[place]["torch"] for place in (found.base, found.head))
        what = "has no value" if known[0].word == "none" else "is too noisy"
        _end(bisect, found.state, f"{bad} against {good} {what} in {known[0].attempts} comparisons")
    else:
        bisect.good, bisect.bad = found.base, found.head
        _end(bisect, found.state)


def _request(bisect: Bisect, compare: Compare) -> Run:
    base, head = (bisect.builds[place]["interpreter"] for place in (compare.base, compare.head))
    if bisect.accelerator is None:
        raise InvalidRunRequest("the accelerator is no longer there")
    series = bisect.regression.series
    return rerun_on(bisect.accelerator, series, who=bisect.requested_by, interpreter=head, base=base)


def answers(bisect: Bisect) -> list[Answer]:
    """Return the answer of each comparison that has ended, over all pairs of the same two versions."""
    ended: dict[tuple[int, int], list[BisectStep]] = {}
    for step in bisect.steps.order_by("pk"):
        if step.pairs is not None:
            ended.setdefault((step.base, step.head), []).append(step)
    return [
        Answer(*key, steps[-1].word, len(steps), _size(steps[-1].change))  # type: ignore[arg-type]
        for key, steps in ended.items()
    ]


def _take(bisect: Bisect, step: BisectStep) -> None:
    """Store the pairs of a step that has ended, and the answer over all pairs of its two versions."""
    step.pairs = _pairs(bisect, step)
    same = bisect.steps.filter(base=step.base, head=step.head, pairs__isnull=False).exclude(pk=step.pk)
    pairs = [pair for other in same.order_by("pk") for pair in other.pairs or []] + step.pairs
    verdict = judge_metric(bisect.regression.series.metric, pairs)
    if verdict.change:
        step.change, step.low, step.high = verdict.change.change, verdict.change.low, verdict.change.high
    step.word, step.finished = _word(bisect, step, verdict), timezone.now()
    step.save()


def _word(bisect: Bisect, step: BisectStep, verdict: PairVerdict) -> Word:
    """Return the answer of a step. What the pairs leave open is still "same" if the interval has no room for
    half of the change that is searched for: that of the ends today, or at first that of the regression."""
    if verdict.word == "confirmed" and verdict.better is False:
        return "worse"
    if verdict.word == "dismissed" or verdict.better:
        return "same"
    if not verdict.pairs:
        return "none"
    ends = bisect.steps.filter(word="worse").order_by("pk").first()
    size = _size(ends.change if ends else bisect.regression.change)
    if step.low is None or step.high is None or verdict.pairs < LEAST_PAIRS or not size:
        return "unclear"
    most = -step.low if bisect.regression.series.metric.direction == "up" else step.high
    return "same" if most < size / 2 else "unclear"


def _size(change: float | None) -> float:
    """Return the size of a relative change as a log ratio, 0 if it has none."""
    return abs(math.log1p(change)) if change is not None and change > -1 else 0.0


def _pairs(bisect: Bisect, step: BisectStep) -> list[list[float | None]]:
    """Return the values of a step's pairs; none if its interpreters have another torch by now."""
    measured = Measurement.objects.filter(series=bisect.regression.series_id, run=step.run_id)
    pairs, torches = read_pairs(measured.filter(value__isnull=False))
    for place, found in zip((step.base, step.head), torches, strict=True):
        build = bisect.builds[place]
        if found - {(build["torch"], build["torch_git"])}:
            logger.warning("%s: interpreter %s has another torch", bisect, build["interpreter"])
            return []
    return pairs


def _end(bisect: Bisect, state: BisectState, reason: str = "") -> None:
    bisect.state, bisect.reason, bisect.finished = state, reason[:500], timezone.now()
    bisect.save()
    one = bisect.regression
    note = f"bisect {bisect.pk}: {bisect.conclusion}"
    record(one, one.state, one.state, event="bisected", note=note[:1000])


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

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @property
    def version(self) -> tuple[str, str]:
        return self.torch, self.torch_git


def builds_of(accelerator: Accelerator) -> list[Build]:
    """Return the interpreters with torch that an accelerator can run, the oldest torch first: those with
    which its host was attached (`--python NAME=PATH`)."""
    pythons: Any = accelerator.host.facts.get("pythons")
    offered = set(accelerator.catalog.get("pythons", []))
    found: dict[str, Build] = {}
    for name, facts in sorted(pythons.items() if isinstance(pythons, dict) else ()):
        if name in offered and isinstance(facts, dict) and facts.get("torch"):
            found[name] = Build(name, str(facts["torch"]), str(facts.get("torch_git", "")))
    dates = _dates(found.values())
    return in_order(
        [
            replace(
                one,
                date=dates.get(one.version, ""),
                differs=_differs(pythons, name, [n for n in found if found[n].version == one.version]),
            )
            for name, one in found.items()
        ]
    )


def _differs(pythons: Mapping[str, Mapping[str, Any]], name: str, same: Sequence[str]) -> str:
    """Return the facts of an interpreter that are not those of all the `same`, which have one torch."""
    said = {one: _facts(pythons[one]) for one in same}
    own = said[name]
    keys = sorted({key for facts in said.values() for key in facts})
    differing = [key for key in keys if len({facts.get(key, "") for facts in said.values()}) > 1]
    return ", ".join(f"{key} {own.get(key) or 'none'}" for key in differing)


def _facts(python: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(python[name]) for name in ("triton", "python", "compiler") if python.get(name)}
    for inner in ("packages", "variables"):
        if isinstance(python.get(inner), dict):
            found |= {str(name): str(text) for name, text in python[inner].items()}
    return found


def in_order(builds: Sequence[Build]) -> list[Build]:
    """Return the builds by the day of their commit; by their versions if the day of one is not known."""
    if all(build.date for build in builds):
        return sorted(builds, key=lambda build: (build.date, _version(build), build.interpreter))
    return sorted(builds, key=lambda build: (_version(build), build.date, build.interpreter))


def _version(build: Build) -> Version:
    try:
        return Version(build.torch)
    except InvalidVersion:
        return Version("0")


def _dates(builds: Any) -> dict[tuple[str, str], str]:
    """Return the days of commits: a nightly's from its version, others' from runs of the same commit."""
    commits = {build.torch_git[:_COMMIT_DIGITS]: build for build in builds if build.torch_git}
    known = Run.objects.annotate(start=Substr("commit", 1, _COMMIT_DIGITS)).filter(
        start__in=commits, order_time_source="commit"
    )
    days = dict(known.order_by("-order_time").values_list("start", "order_time"))
    found = {}
    for build in builds:
        nightly = _NIGHTLY.search(build.torch)
        if nightly:
            found[build.version] = "-".join(nightly.groups())
        elif day := days.get(build.torch_git[:_COMMIT_DIGITS]):
            found[build.version] = f"{day:%Y-%m-%d}"
    return found
