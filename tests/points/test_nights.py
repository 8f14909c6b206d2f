"""Runs grouped into nights, without a database; and which points of a night count."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.models import Run, SeriesState, Stream
from hud.points import nights
from hud.points.nights import Night, NightRun, Subject, group
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_run,
    create_task,
)

MONDAY = datetime(2026, 11, 16, 2, tzinfo=timezone.utc)
SUBJECT = Subject("h200", "inference", "bfloat16")
_quiet = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_hours = st.integers(0, 40).map(lambda steps: MONDAY + timedelta(hours=3 * steps))
_runs = st.lists(
    st.tuples(_hours, st.sampled_from(["", "a" * 40, "b" * 40, "main-3"]), st.booleans()), max_size=30
).map(
    lambda rows: [
        NightRun(number, time, time, commit, active)
        for number, (time, commit, active) in enumerate(sorted(rows), 1)
    ]
)


def began(night: Night, runs: Sequence[NightRun]) -> list[datetime]:
    return sorted(run.began for run in runs if run.pk in night.runs)


@_quiet
@given(_runs)
def test_every_run_is_in_one_night_and_nights_are_in_order(runs: list[NightRun]) -> None:
    found = group(runs)
    assert sorted(itertools.chain(*(night.runs for night in found))) == [run.pk for run in runs]
    assert [night.time for night in found] == sorted(night.time for night in found)


@_quiet
@given(_runs)
def test_a_night_has_one_commit_and_the_next_night_of_it_begins_later(runs: list[NightRun]) -> None:
    commits = {run.pk: run.commit for run in runs}
    found = group(runs)
    for night in found:
        assert {commits[run] for run in night.runs} == {night.commit}
        times = began(night, runs)
        if night.commit:
            assert times[-1] - times[0] <= timedelta(hours=24)
        else:
            assert all(after - before < timedelta(hours=6) for before, after in itertools.pairwise(times))
    for commit in set(commits.values()):
        same = [began(night, runs) for night in found if night.commit == commit]
        for before, after in itertools.pairwise(same):
            if commit:
                assert after[0] - before[0] > timedelta(hours=24)
            else:
                assert after[0] - before[-1] >= timedelta(hours=6)


@_quiet
@given(_runs, _hours)
def test_it_is_the_default_when_complete_or_36_hours_after_its_start(
    runs: list[NightRun], now: datetime
) -> None:
    active = {run.pk for run in runs if run.active}
    for night in group(runs):
        assert night.complete == active.isdisjoint(night.runs)
        is_old = now - began(night, runs)[0] > timedelta(hours=36)
        assert night.is_default(now) == (night.complete or is_old)


@_quiet
@given(_runs)
def test_no_two_nights_have_one_name(runs: list[NightRun]) -> None:
    found = group(runs)
    names = [night.side for night in found]
    same_minute = {night.side for night in found if names.count(night.side) > 1}
    for name in same_minute:  # of two commits that began in one minute and came back another day
        assert len({night.began for night in found if night.side == name}) == 1


@_quiet
@given(_runs, st.integers(0, 10))
def test_a_later_run_changes_no_earlier_night(runs: list[NightRun], kept: int) -> None:
    def members(of: Sequence[NightRun]) -> list[tuple[int, ...]]:
        return [night.runs for night in group(of)]

    later = members(runs)
    for earlier in members(runs[:kept]):
        assert any(night[: len(earlier)] == earlier for night in later)


def test_a_commits_time_is_not_when_its_runs_began() -> None:
    first = NightRun(1, MONDAY, MONDAY + timedelta(days=2), "c0ffee", active=False)
    again = first._replace(pk=2, began=first.began + timedelta(days=3))
    assert [night.runs for night in group([first, again])] == [(1,), (2,)]


@pytest.mark.django_db
def test_reruns_comparisons_and_other_streams_and_branches_are_in_none() -> None:
    stream = Stream.objects.get(name="nightly")
    own = create_run(stream=stream, order_time=MONDAY)
    create_run(stream=stream, order_time=MONDAY, retry_of=own)
    create_run(stream=stream, order_time=MONDAY, interpreter="new", base_interpreter="old")
    create_run(stream=stream, order_time=MONDAY, branch="slow")
    create_run(order_time=MONDAY)
    assert [night.runs for night in nights.read(stream)] == [(own.pk,)]


@pytest.mark.django_db
def test_a_night_grows_until_every_planned_task_has_ended() -> None:
    stream = Stream.objects.get(name="nightly")
    first = create_run(stream=stream, order_time=MONDAY, commit="c0ffee")
    create_task(first, state="done")
    create_task(first, state="failed")
    second = create_run("running", stream=stream, order_time=MONDAY + timedelta(hours=1), commit="c0ffee")
    create_task(second, state="done")
    create_task(second)
    (night,) = nights.read(stream)
    assert not night.complete
    assert nights.progress(night) == [("micro", 3, 4)]
    second.state, second.finished = "cancelled", MONDAY
    second.save()
    assert nights.read(stream)[0].complete


def speedup(stream: Stream, value: float, *, hours: float, host: str, **fields: Any) -> int:
    """A point of one series in the night of Monday; return its run."""
    experiment = create_experiment(suite="huggingface", case="a", knobs={})
    run = create_run(
        stream=stream, commit="c0ffee", host_name=host, order_time=MONDAY + timedelta(hours=hours)
    )
    create_measurement(experiment, metric="device_speedup", value=value, run=run, **fields)
    return run.pk


def shown(stream: Stream) -> float | None:
    of_night = nights.read(stream)
    (result,) = nights.results(of_night[-1:], SUBJECT, stream)
    (value,) = result["huggingface", "inductor"]["device_speedup"].values()
    return value


@pytest.mark.django_db
def test_of_several_points_that_of_the_levels_host_counts_else_the_newest() -> None:
    stream = Stream.objects.get(name="nightly")
    first = speedup(stream, 1.0, hours=0, host="a")
    speedup(stream, 2.0, hours=1, host="b")
    assert shown(stream) == 2.0
    state = SeriesState.objects.create(
        series=create_experiment(suite="huggingface", case="a", knobs={}).series.get(),
        class_key="x",
        level={"last_run": first},
        run_id=first,
        environment=create_environment(),
        order_time=MONDAY,
        recent=[1.0],
    )
    assert shown(stream) == 1.0
    speedup(stream, 3.0, hours=2, host="a")
    assert shown(stream) == 3.0
    state.level = {"last_run": None}
    state.save()
    assert shown(stream) == 3.0


@pytest.mark.django_db
def test_a_changed_point_is_seen_at_once() -> None:
    stream = Stream.objects.get(name="nightly")
    run = speedup(stream, 1.0, hours=0, host="a")
    assert shown(stream) == 1.0
    experiment = create_experiment(suite="huggingface", case="a", knobs={})
    again = Run.objects.get(pk=run)
    create_measurement(experiment, metric="device_speedup", value=3.0, run=again, repeat=1)
    assert shown(stream) == 2.0


@pytest.mark.django_db
def test_a_night_of_a_wrong_clock_is_none() -> None:
    """Uploads of a jump of the clock stay dated as they were, and the page goes on without them."""
    now = datetime.now(timezone.utc)
    runs = [create_run(order_time=now + timedelta(days=days)) for days in (-1, 0, 400)]
    found = nights.read(runs[0].stream)
    assert [night.runs for night in found] == [(runs[0].pk,), (runs[1].pk,)]
