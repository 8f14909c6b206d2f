"""Rows of causes over time: they join and merge, never split, and a merged id leads to the other."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.judging.regressions import events
from hud.judging.regressions.groups import make_causes
from hud.models import Cause, Measurement, Regression, Run, Stream
from hud.problems import Problem
from tests.support.factories import create_experiment, create_measurement, create_regression, create_run

pytestmark = pytest.mark.django_db
NOW = timezone.now()


def regression(case: str, run: Run, **fields: object) -> Regression:
    experiment = create_experiment(suite="timm", case=case, knobs={})
    earlier = Measurement.objects.filter(run=run, series__experiment=experiment).first()
    point = earlier or create_measurement(experiment, metric="speedup", value=1.0, run=run)
    return create_regression(point, **{"change": -0.2, **fields})


def night(state: str = "succeeded", days: int = 1) -> Run:
    stream = Stream.objects.get_or_create(name="nightly")[0]
    return create_run(state, stream=stream, branch="main", commit="c1", order_time=NOW - timedelta(days=days))


def members() -> dict[int, set[int]]:
    sets: dict[int, set[int]] = {}
    for pk, cause in Regression.objects.exclude(cause_row=None).values_list("pk", "cause_row"):
        sets.setdefault(cause, set()).add(pk)
    return sets


def test_a_cause_is_made_when_its_night_is_complete_and_has_all_that_moved_together() -> None:
    run = night("running")
    rows = [regression(case, run) for case in "abc"]
    regression("d", run, state="suspect")
    assert make_causes() == 0, "the night grows"
    Run.objects.update(state="succeeded", finished=timezone.now())
    assert make_causes() == 3
    (own,) = members().values()
    assert own == {one.pk for one in rows}
    assert "inductor" in Cause.objects.get().title
    assert make_causes() == 0


def test_causes_that_belong_together_are_merged_and_the_older_id_stays() -> None:
    run = night()
    for case in "abc":
        regression(case, run)
        make_causes()
    (kept,) = members()
    older, *newer = Cause.objects.order_by("pk")
    assert kept == older.pk
    assert [cause.merged_into_id for cause in newer] == [older.pk]
    _key, secret = create_key(name="t", scopes=["read", "accept"], who="t")
    api = Client(headers={"authorization": f"Bearer {secret}"})
    answer = api.get(f"/api/v1/causes/{newer[0].pk}")
    assert (answer.status_code, answer["Location"]) == (303, f"/api/v1/causes/{older.pk}")
    (listed,) = api.get("/api/v1/causes", {"stream": "nightly", "state": "open"}).json()["items"]
    assert (listed["id"], listed["series"], listed["states"]) == (older.pk, 3, {"open": 3})
    ids = {row["cause_id"] for row in api.get("/api/v1/regressions").json()["items"]}
    assert ids == {older.pk}
    path = f"/api/v1/causes/{newer[0].pk}"
    done = api.post(path, {"event": "accept", "note": "needed"}, content_type="application/json")
    assert (done.status_code, done.json()["states"]) == (200, {"accepted": 3})
    again = api.post(path, {"event": "dismiss"}, content_type="application/json")
    assert again.status_code == 409
    assert api.get("/api/v1/causes", {"state": "open"}).json()["items"] == []
    assert api.get("/api/v1/causes/999999").status_code == 404


def test_one_step_is_one_cause_on_all_archs_and_metrics() -> None:
    """Hosts have runs of their own; what they share is the commits."""
    stream = Stream.objects.get_or_create(name="nightly")[0]
    for arch in ("h200", "b200"):
        good, first = (
            create_run(stream=stream, branch="main", commit=commit, order_time=NOW - timedelta(days=days))
            for commit, days in (("c0", 2), ("c1", 1))
        )
        for metric in ("speedup", "device_latency_ms"):
            experiment = create_experiment(suite="timm", case="mobilenetv2_100", knobs={}, arch=arch)
            point = create_measurement(experiment, metric=metric, value=1.0, run=first)
            create_regression(point, change=-0.2, last_good_run=good)
    other = create_measurement(create_experiment(suite="micro"), value=1.0, run=first)
    create_regression(other, change=-0.2, last_good_run=good)
    make_causes()
    assert sorted(map(len, members().values())) == [1, 4]
    one = Regression.objects.filter(series__experiment__arch="h200").earliest("pk")
    assert len(events.decide(one, "accept", who="mara", note="needed")) == 4
    assert Regression.objects.filter(state="accepted").count() == 4
    counts = Client().get("/regressions.json?stream=nightly").json()["counts"]
    assert counts == {"causes": 1, "series": 1}


def test_one_change_in_three_models_on_two_backends_is_one_cause() -> None:
    stream = Stream.objects.get_or_create(name="nightly")[0]
    good, first = (
        create_run(stream=stream, branch="main", commit=commit, order_time=NOW - timedelta(days=days))
        for commit, days in (("c0", 2), ("c1", 1))
    )
    for backend in ("inductor", "inductor_cudagraphs"):
        for case in ("convnext_base", "mobilenetv3_large_100", "resnet50"):
            experiment = create_experiment(suite="timm", case=case, knobs={}, backend=backend)
            point = create_measurement(experiment, metric="speedup", value=1.0, run=first)
            create_regression(point, change=-0.08, last_good_run=good)
    drifting = create_experiment(suite="timm", case="resnet50", knobs={}, arch="b200")
    drift = create_measurement(drifting, metric="speedup", value=1.0, run=first)
    create_regression(drift, change=-0.05, last_good_run=good, kind="drift")
    make_causes()
    assert sorted(map(len, members().values())) == [1, 6], "a drift has no single commit"
    backends = "inductor, inductor_cudagraphs"
    assert Cause.objects.filter(title=f"6 experiments of timm on {backends} moved together").exists()


def test_a_decision_is_of_the_whole_cause_or_of_none() -> None:
    run = night()
    rows = [regression(case, run) for case in "abc"]
    make_causes()
    Regression.objects.filter(pk=rows[2].pk).update(state="confirmed")
    with pytest.raises(Problem) as refusal:
        events.decide(Regression.objects.get(pk=rows[0].pk), "dismiss", who="mara", note="noise")
    assert refusal.value.status == 409
    assert sorted(Regression.objects.values_list("state", flat=True)) == ["confirmed", "open", "open"]


@pytest.mark.parametrize("seed", range(6))
def test_a_cause_never_splits(seed: int) -> None:
    chance = random.Random(seed)
    runs = [night(days=days) for days in (9, 9, 5)]
    for step in range(12):
        for case in chance.sample("abcdefgh", 2):
            series = Regression.objects.filter(series__experiment__case=case, state="open")
            if not series.exists():
                failure = {"kind": "failure", "change": None} if chance.random() < 0.3 else {}
                regression(f"{case}", chance.choice(runs), **failure)
            elif chance.random() < 0.3:  # it is over; another time it begins again, in any night
                series.update(state="resolved")
        Regression.objects.filter(state="resolved", pk__in=chance.choices(range(99), k=30)).exclude(
            series__in=Regression.objects.filter(state="open").values("series")
        ).update(state="resolved", first_run=chance.choice(runs))
        before = members()
        make_causes()
        after = members()
        for own in before.values():
            assert sum(own <= other for other in after.values()) == 1, step
        assert not set(after) & set(Cause.objects.exclude(merged_into=None).values_list("pk", flat=True)), (
            "a merged one has no members"
        )
        assert not Cause.objects.filter(merged_into__merged_into__isnull=False).exists()
