"""Regressions are opened by the judge, stay until they are closed, and obey the table of states."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hud.ingest import ingest
from hud.judging import judge, levels
from hud.judging.judge import process_pending
from hud.judging.regressions import events
from hud.judging.regressions.look_back import find, look_back
from hud.judging.verdict import Rule
from hud.models import (
    NIGHTLY,
    VERDICTS,
    Audit,
    Environment,
    Measurement,
    Point,
    Regression,
    RegressionEvent,
    Run,
    Series,
    SeriesState,
    Stream,
)
from hud.problems import Problem
from hud.states.regressions import ACTIVE, Event, RegressionState, next_state
from runner.formats.parameters import Parameters
from tests.judging.change_points.truth import listed_nights
from tests.support.factories import create_measurement, create_run
from tests.support.judgements import telling_points
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
RULE = Rule(direction="up", prior_noise=0.03)


def nights(*values: float, first: int = 0, case: str = "layer_norm", **over: Any) -> None:
    """Upload a value a night, and judge after each as a running HUD does."""
    for day, value in enumerate(values, first):
        record = v3_record(case=case, values=[value], timestamp=1_700_000_000 + day * 86_400, **over)
        ingest(as_list(record), Parameters(driver="580.1"))
        while process_pending():
            pass


def history(*values: float, first: int = 0, case: str = "layer_norm", **over: Any) -> None:
    """Upload the values of as many nights at once, from night `first` on, and judge them."""
    records = [
        v3_record(case=case, values=[value], timestamp=1_700_000_000 + day * 86_400, **over)
        for day, value in enumerate(values, first)
    ]
    ingest(as_list(*records), Parameters(driver="580.1"))
    while process_pending():
        pass


def card(uuid: str) -> dict[str, Any]:
    return {"runners": [{"name": "h200-a", "gpu_info": "NVIDIA H200", "extra_info": {"gpu_uuid": uuid}}]}


def quiet(n: int) -> list[float]:
    return [2500.0 + 5 * (day % 3) for day in range(n)]


def states() -> list[str]:
    return list(Regression.objects.order_by("pk").values_list("state", flat=True))


def test_device_time_of_another_environment_does_not_silence_the_call_time_of_uploads() -> None:
    def upload(day: int, metric: str, value: float, driver: str) -> None:
        record = v3_record(metric=metric, values=[value], timestamp=1_700_000_000 + day * 86_400)
        ingest(as_list(record), Parameters(driver=driver))
        while process_pending():
            pass

    upload(0, "speedup", 3.0, "590.2")
    upload(0, "device_speedup", 3.2, "590.2")  # a rerun by this runner elsewhere
    for day in range(12):
        upload(day, "speedup", 2.0 + 0.005 * (day % 3), "580.1")
    upload(12, "speedup", 1.6, "580.1")
    upload(12, "speedup", 2.0, "590.2")  # call time beside device time
    assert [(one.series.metric.name, one.points) for one in Regression.objects.all()] == [("speedup", 1)]


def test_device_time_that_waits_takes_no_regression_from_call_time() -> None:
    nights(*[2.0 + 0.005 * (day % 3) for day in range(12)], 1.6, metric="speedup")
    ingest(as_list(v3_record(metric="device_speedup", timestamp=1_700_000_000)), Parameters(driver="590.2"))
    Series.objects.update(touched_at=datetime(2023, 11, 1, tzinfo=UTC))
    judge.judge_series(list(Series.objects.filter(metric__name="speedup")))
    assert states() == ["open"]
    while process_pending():
        pass
    assert states() == ["open"]


def test_a_step_stays_listed_for_all_the_nights_that_it_lasts() -> None:
    history(*quiet(20))
    nights(*([2200.0] * 4), first=20)
    history(*([2200.0] * 32), first=24)
    nights(*([2200.0] * 4), first=56)
    one = Regression.objects.get()
    assert one.state == "open"
    assert one.points == 40
    assert one.change == pytest.approx(-0.12, abs=0.01)
    assert one.before == pytest.approx(2505, abs=5)
    assert one.first_run
    assert one.last_good_run
    assert one.first_run.order_time > one.last_good_run.order_time


def test_each_step_of_five_percent_and_more_stays_listed() -> None:
    """A part of what `make bench PART=judgement` simulates."""
    for size in (0.05, 0.1):
        for seed in range(3):
            listed = listed_nights(size, seed, nights=100)
            assert all(listed[2:])


def test_a_further_step_of_an_open_regression_supersedes_its_size() -> None:
    history(*quiet(20))
    nights(*([2200.0] * 6), first=20)
    one = Regression.objects.get()
    assert one.steps == 1
    nights(1900, 1900, 1900, 2200, first=26)
    one = Regression.objects.get()
    assert (one.state, one.steps) == ("open", 2)
    further = RegressionEvent.objects.get(event=Event.MOVED_FURTHER)
    assert (further.before, further.after) == ("open", "open")
    assert further.run
    assert "-24" in further.note
    assert "-12" in further.note
    Series.objects.update(touched_at=Measurement.objects.earliest("order_time").order_time)
    while process_pending():
        pass
    assert RegressionEvent.objects.filter(event=Event.MOVED_FURTHER).count() == 1


def test_a_slow_drift_is_no_step() -> None:
    noise = [3 * ((7 * day) % 5) for day in range(150)]
    values = [2500 * 0.9985 ** max(day - 60, 0) + noise[day] for day in range(130)]
    history(*values[:70])
    nights(*values[70:], first=70)
    assert [(one.kind, one.state) for one in Regression.objects.all()] == [("drift", "open")]
    look_back()
    assert [(one.kind, one.state) for one in Regression.objects.all()] == [("drift", "open")]
    began = find(values, "up")
    assert began
    assert began.first == pytest.approx(60, abs=4), "where it began, whatever it is compared with"
    stepped = [2500.0 + noise[day] - 100 * (day > 80) for day in range(130)]
    found = find(stepped, "up")
    assert found
    assert found.kind == "small step"


def test_a_series_back_at_its_level_for_three_nights_is_resolved_and_opens_again() -> None:
    history(*quiet(20))
    nights(2000, 2000, 2500, 2500, first=20)
    assert states() == ["open"]
    nights(2500, first=24)
    assert states() == ["resolved"]
    nights(2000, 2000, first=25)
    assert states() == ["open"]
    assert list(RegressionEvent.objects.order_by("pk").values_list("after", flat=True))[-2:] == [
        "resolved",
        "open",
    ]


def test_an_accepted_level_is_the_new_baseline() -> None:
    history(*quiet(20))
    nights(*([2000.0] * 6), first=20)
    events.act(regression=Regression.objects.get(), event=Event.ACCEPT, who="mara", note="needed")
    while process_pending():
        pass
    nights(*([2000.0] * 4), first=26)
    assert states() == ["accepted"]
    assert Point.objects.latest("order_time").verdict == "unchanged"
    nights(1500, 1500, first=30)
    assert states() == ["accepted", "open"]
    assert Audit.objects.filter(action="regression.accept").exists()


def test_a_person_cannot_do_what_the_state_does_not_permit() -> None:
    history(*quiet(20))
    nights(2000, 2000, first=20)
    one = Regression.objects.get()
    events.act(regression=one, event=Event.ACCEPT, who="mara")
    with pytest.raises(Problem):
        events.act(regression=one, event=Event.DISMISS, who="mara")
    with pytest.raises(Problem):
        events.act(regression=one, event=Event.AGREED, who="mara")


def test_an_improvement_that_stays_is_the_level_of_what_follows() -> None:
    history(*quiet(20))
    nights(*([3000.0] * 6), 2500, 2500, first=20)
    assert states() == ["open"]
    assert Regression.objects.get().before == pytest.approx(3000)


def test_a_failure_is_a_regression_at_once() -> None:
    history(*quiet(6))
    record = v3_record(case="layer_norm", values=[], timestamp=1_700_000_000 + 6 * 86_400)
    record["metric"]["extra_info"] = {"status": "crashed", "code": "SIGSEGV"}
    ingest(as_list(record), Parameters(driver="580.1"))
    while process_pending():
        pass
    one = Regression.objects.get()
    assert (one.state, one.kind) == ("open", "failure")


def test_what_has_never_worked_is_no_regression() -> None:
    for day in range(2):
        record = v3_record(case="layer_norm", values=[], timestamp=1_700_000_000 + day * 86_400)
        record["metric"]["extra_info"] = {"status": "oom", "code": "out_of_memory"}
        ingest(as_list(record), Parameters(driver="580.1"))
    while process_pending():
        pass
    assert not Regression.objects.exists()
    nights(*quiet(3), first=3)
    assert not Regression.objects.exists()


def test_a_late_point_says_which_verdict_it_superseded() -> None:
    history(*quiet(20))
    nights(2000, first=21)
    assert telling_points().get().verdict == "regressed"
    for day in range(5):  # late: the level was there before
        record = v3_record(case="layer_norm", values=[2000], timestamp=1_699_000_000 + day * 3600)
        ingest(as_list(record), Parameters(driver="580.1"))
    while process_pending():
        pass
    changed = Point.objects.exclude(superseded=None)
    assert Series.objects.filter(touched_at__isnull=False).count() == 0
    assert SeriesState.objects.get().points == 20
    assert {VERDICTS[point.superseded or 0] for point in changed} == {"new", "unchanged"}


def test_judging_in_order_and_all_at_once_end_in_the_same_state() -> None:
    values = [*quiet(15), 2200, 2200, 2500, 2500, 2500, 2900, 2900, 2900, 2900, 2500]
    nights(*values)
    stepwise = SeriesState.objects.get()
    names = ("order_time", "verdict_code", "factor")
    said = list(Point.objects.order_by("order_time").values_list(*names))
    SeriesState.objects.all().delete()
    Point.objects.update(verdict_code=None, factor=None)
    Series.objects.update(touched_at=Measurement.objects.earliest("order_time").order_time)
    while process_pending():
        pass
    again = SeriesState.objects.get()
    assert again.level == stepwise.level
    assert again.recent == stepwise.recent
    assert list(Point.objects.order_by("order_time").values_list(*names)) == said


def judged() -> tuple[list[Any], ...]:
    """Return what judging has stored, without the marks and the silent rows that say what they superseded."""
    names = ("class_key", "order_time", "run", "points", "headline", "recent", "level")
    stored = list(SeriesState.objects.order_by("class_key").values(*names))
    for state in stored:
        del state["level"]["marks"]
    told = ("run", "order_time", "verdict_code", "verdict_reason", "change", "factor", "level_points")
    verdicts = telling_points().values(*told)
    fields = ("class_key", "state", "kind", "since", "points", "change", "first_run", "last_good_run")
    return stored, list(verdicts), list(Regression.objects.order_by("pk").values(*fields))


@pytest.mark.parametrize("seed", range(2))
def test_points_in_any_order_are_judged_as_if_from_the_beginning(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that last, come back and are accepted, an improvement, two classes, and deleted points. Marks are
    close, so that late points are judged from all kinds of them."""
    monkeypatch.setattr(levels, "_EACH", 4)
    chance = random.Random(seed)
    steps = [1.0] * 12 + [0.8] * 4 + [1.0] * 8 + [1.2] * 8 + [1.0] * 8
    values = [2500 * step * chance.gauss(1, 0.006) for step in steps]
    arrivals = sorted(range(40), key=lambda day: day + chance.choice((0, 0, 1.5, 4, 20)))
    resumed = []
    go_back = levels.level_before

    def note(level: levels.Level, time: datetime) -> tuple[levels.Level, datetime | None]:
        resumed.append(go_back(level, time)[1])
        return go_back(level, time)

    monkeypatch.setattr(levels, "level_before", note)
    for count, day in enumerate(arrivals):
        driver = "580.1" if day % 5 else "999.1"
        record = v3_record(values=[values[day]], timestamp=1_700_000_000 + day * 86_400)
        ingest(as_list(record), Parameters(driver=driver))
        if count == 30 and (active := Regression.objects.filter(state="open").first()):
            events.act(regression=active, event=Event.ACCEPT, who="mara")
        if count == 35:
            times = list(Measurement.objects.order_by("order_time").values_list("order_time", flat=True))
            gone = chance.sample(times[20:], 4)
            Point.objects.filter(order_time__in=gone).delete()
            Series.objects.update(touched_at=min(gone))
        while process_pending():
            pass
        if count % 4 == 3:
            found = judged()
            Series.objects.update(touched_at=datetime(1970, 1, 1, tzinfo=UTC))
            while process_pending():
                pass
            assert judged() == found
    assert len([one for one in resumed if one]) > 10


def test_a_series_without_a_state_as_after_an_upgrade_is_judged_by_its_history() -> None:
    history(*quiet(20))
    SeriesState.objects.all().delete()
    nights(2000, first=20)
    assert telling_points().get().level_points == 20
    assert states() == ["open"]


def test_the_cost_does_not_grow_with_series_or_history(django_assert_max_num_queries: Any) -> None:
    for case in ("a", "b", "c", "d"):
        history(*quiet(3), case=case)
    for case in ("a", "b", "c", "d"):
        record = v3_record(case=case, values=[2500], timestamp=1_700_000_000 + 4 * 86_400)
        ingest(as_list(record), Parameters(driver="580.1"))
    with django_assert_max_num_queries(17):
        assert process_pending() == 4


@pytest.mark.parametrize(
    ("place", "value", "verdict", "state"),
    [
        ({}, 2445, "regressed", "open"),
        ({}, 2505, "unchanged", "dismissed"),
        ({"host_name": "h200-b"}, 2445, "inconclusive", "suspect"),
        ({"interpreter": "nightly"}, 2505, "unchanged", "suspect"),
        ({"gpu_uuid": "GPU-b"}, 2445, "inconclusive", "suspect"),
    ],
)
def test_a_repeat_in_the_same_place_is_a_second_opinion_and_no_part_of_the_level(
    place: dict[str, str], value: float, verdict: str, state: str
) -> None:
    history(*quiet(20), **card("GPU-a"))
    nights(2445, first=20, **card("GPU-a"))
    assert states() == ["suspect"]
    suspect = Point.objects.latest("order_time")
    environment, place = suspect.environment, {"host_name": "h200-a", **place}
    if uuid := place.pop("gpu_uuid", ""):
        facts = {**environment.facts, "gpu_uuid": uuid}
        environment = Environment.objects.create(
            fingerprint=uuid, class_key=environment.class_key, facts=facts
        )
    experiment, later = suspect.series.experiment, suspect.order_time + timedelta(hours=1)
    run = create_run(experiment=experiment, order_time=later, **place)
    metric = suspect.series.metric.name
    create_measurement(experiment, metric=metric, value=value, run=run, environment=environment, judged=False)
    before = SeriesState.objects.get()
    for touched_at in (later, datetime(1970, 1, 1, tzinfo=UTC)):
        Series.objects.update(touched_at=touched_at)
        while process_pending():
            pass
        assert states() == [state]
        assert Point.objects.get(run=run).verdict == verdict
        after = SeriesState.objects.get()
        assert (after.run_id, after.points, after.recent) == (suspect.run_id, before.points, before.recent)
    nights(*quiet(2), first=22, **card("GPU-a"))
    assert SeriesState.objects.get().points == before.points + (0 if state == "open" else 2)


def test_a_suspect_is_confirmed_by_another_run_and_never_by_its_own() -> None:
    """A run whose tasks went to two cards has two points of a series."""
    level = levels.Level()
    for number, value in enumerate(quiet(20)):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
        levels.advance(level, levels.SeriesPoint(number, 1, at, (value,)), RULE)
    suspect = levels.SeriesPoint(20, 1, datetime(2026, 2, 1, tzinfo=UTC), (2445.0,))
    for environment in (1, 2):
        found = levels.advance(level, replace(suspect, environment_id=environment), RULE)
        assert (found.verdict, found.reason) == ("inconclusive", "suspect")
        assert level.move
        assert (level.move.points, level.move.is_sure, level.move.agreed_run) == (1, False, None)
    assert levels.advance(level, replace(suspect, run_id=21), RULE).verdict == "regressed"
    assert level.move
    assert (level.move.points, level.move.is_sure, level.move.agreed_run) == (2, True, 21)


def test_who_agreed_with_a_suspect_is_written_down() -> None:
    history(*quiet(20), **card("GPU-a"))
    nights(2445, first=20, **card("GPU-a"))
    (one,) = Regression.objects.all()
    assert one.state == "suspect"
    nights(2445, first=21, **card("GPU-a"))
    runs = list(Run.objects.order_by("order_time").values_list("pk", flat=True))[-2:]
    events = one.events.order_by("pk").values_list("event", "after", "run")
    assert list(events) == [("seen", "suspect", runs[0]), ("agreed", "open", runs[1])]


def test_what_is_beyond_doubt_is_open_at_once() -> None:
    history(*quiet(20), **card("GPU-a"))
    nights(2000, first=20, **card("GPU-a"))
    (one,) = Regression.objects.all()
    assert list(one.events.values_list("event", "before", "after")) == [("seen", "", "open")]


@pytest.mark.parametrize("state", list(RegressionState))
def test_every_state_has_a_way_on(state: RegressionState) -> None:
    ways = [event for event in Event if next_state(state, event)]
    assert ways
    assert (state in ACTIVE) == any(event in ways for event in (Event.AGREED, Event.RECOVERED))


def test_another_card_is_named_and_no_regression() -> None:
    history(*quiet(8), **card("GPU-a"))
    nights(2000, first=8, **card("GPU-b"))
    assert telling_points().get().verdict_reason == "other_card"
    assert not Regression.objects.exists()
    nights(2000, first=9, **card("GPU-c"))
    assert states() == ["open"]  # two new cards that agree


def test_a_series_of_one_run_has_no_regression() -> None:
    nights(2500, 2000)
    assert telling_points().get().verdict_reason == "few_runs"
    assert not Regression.objects.exists()


def young(*values: float, reference: float = 40) -> list[Regression]:
    """Return what a stream with these nights opens, judged by a reference stream until it has a level."""
    nightly = Stream.objects.get_or_create(name=NIGHTLY)[0]
    Stream.objects.create(name="rc", reference=nightly)
    for stream, first, line in (
        (NIGHTLY, 0, [reference * (1 + 0.001 * (day % 3)) for day in range(20)]),
        ("rc", 30, values),
    ):
        for day, value in enumerate(line, first):
            record = v3_record("compiled_latency_ms", [value], timestamp=1_700_000_000 + day * 86_400)
            ingest(as_list(record), Parameters(driver="580.1", stream=stream))
            while process_pending():
                pass
    return list(Regression.objects.order_by("pk"))


def test_what_moved_while_a_stream_was_young_is_no_part_of_its_level() -> None:
    (regression,) = young(40.0, 40.1, 40.1, 42.5, 42.5, 42.2, 42.4)
    assert (regression.state, regression.points) == ("open", 4)
    assert regression.before == pytest.approx(40.1)
    by_reference = Point.objects.filter(level_stream__name=NIGHTLY).order_by("order_time")
    assert [point.verdict for point in by_reference] == ["unchanged"] * 3 + ["regressed"] * 2


@pytest.mark.parametrize("values", [(60, 20, 60, 60, 60, 60, 60, 60, 60), (40, 60, 60, 60, 60, 60, 60, 60)])
def test_the_level_of_a_reference_opens_nothing(values: tuple[float, ...]) -> None:
    assert young(*values) == []
    newest = Point.objects.filter(series__stream__name="rc").latest("order_time")
    assert (newest.verdict, newest.level, newest.level_stream) == ("unchanged", 60, None)


def test_a_look_back_finds_a_small_step_and_closes_it_again() -> None:
    noise = [2500.0 + 2 * ((7 * day) % 5) for day in range(80)]
    history(*noise[:30], *(value * 0.985 for value in noise[30:60]))
    assert not Regression.objects.exists()
    look_back()
    one = Regression.objects.get()
    assert (one.kind, one.state) == ("small step", "open")
    assert one.change == pytest.approx(-0.015, abs=0.004)
    assert one.points == pytest.approx(30, abs=3)
    assert look_back() == 0
    history(*noise[60:80], first=60)
    look_back()
    assert states() == ["resolved"]


def test_a_small_step_that_is_older_than_a_look_stays_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hud.judging.regressions.look_back.MOST_POINTS", 40)
    noise = [2500.0 + 2 * ((7 * day) % 5) for day in range(76)]
    history(*noise[:20], *(value * 0.985 for value in noise[20:36]))
    look_back()
    assert states() == ["open"]
    history(*(value * 0.985 for value in noise[36:76]), first=36)
    look_back()
    assert states() == ["open"]


def test_a_series_that_improved_briefly_and_is_back_has_no_small_step() -> None:
    noise = [2500.0 + 2 * ((7 * day) % 5) for day in range(60)]
    assert find([*noise[:30], *(value * 1.02 for value in noise[30:36]), *noise[36:]], "up") is None
    assert find([*noise[:30], *(value * 1.02 for value in noise[30:])], "up") is None
    found = find([*noise[:30], *(value * 1.02 for value in noise[30:])], "down")
    assert found
    assert found.first == pytest.approx(30, abs=3)
