"""Turns of owners and the share of nights: the pure rules, the SQL of claims beside them, expected starts."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models import F

from hud.models import Accelerator, RunRequest, Task, Turn
from hud.runs import queue, tasks
from hud.states.fair_share import NIGHT_EVERY, RUN_CLASSES, WaitingRun, expected_starts, next_run
from tests.support.claims import attach, end, request

CASES = ("layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu")


def run_of(number: int, owner: str, tasks: int, run_class: str = "person") -> WaitingRun:
    return WaitingRun(number, run_class, owner, float(number), tasks, 10.0, {1})  # type: ignore[arg-type]


def serve(waiting: list[WaitingRun], count: int) -> list[int]:
    """Play one accelerator; return the runs in the order of its tasks."""
    served: dict[tuple[str, str], float] = {}
    order, since_night = [], 0
    for turn in range(count):
        chosen = next_run(waiting, 1, served, since_night)  # type: ignore[arg-type]
        if chosen is None:
            break
        chosen.tasks -= 1
        served[chosen.run_class, chosen.owner] = turn
        since_night = 0 if chosen.run_class == "night" else since_night + 1
        order.append(chosen.run)
    return order


def test_owners_take_turns_task_by_task_however_many_runs_they_have() -> None:
    waiting = [run_of(1, "a", 100), *(run_of(number, "a", 100) for number in (2, 3)), run_of(4, "b", 2)]
    assert serve(waiting, 6) == [1, 4, 1, 4, 1, 1]


def test_people_go_first_and_nights_keep_their_share() -> None:
    waiting = [run_of(1, "n", 9, "night"), run_of(2, "ci", 9, "ci"), run_of(3, "a", 9), run_of(4, "b", 9)]
    order = serve(waiting, 20)
    assert order[:8] == [3, 4, 3, 1, 4, 3, 4, 1]
    assert Counter(order)[1] == 20 // NIGHT_EVERY
    assert 2 not in order[:20]
    assert serve([run_of(1, "n", 3, "night")], 9) == [1, 1, 1], "nobody else waits"


def test_expected_starts_are_within_a_third_of_what_then_happens() -> None:
    """Tasks take between half and one and a half times what is expected of them."""
    errors = []
    for seed in range(60):
        draw = random.Random(seed)
        places = range(draw.randint(1, 4))
        runs = [
            WaitingRun(
                number,
                draw.choice(RUN_CLASSES),
                draw.choice("abcd"),
                float(number),
                draw.randint(1, 12),
                draw.uniform(20, 200),
                {place for place in places if draw.random() < 0.7} or {0},
            )
            for number in range(draw.randint(2, 15))
        ]
        free = {place: draw.uniform(0, 100) for place in places}
        expected = expected_starts([replace(run) for run in runs], free, {}, {})
        truth = play(runs, free, draw)
        assert expected.keys() == truth.keys()
        errors += [abs(expected[run] - truth[run]) / truth[run] for run in truth if truth[run] > 200]
    print(f"{len(errors)} starts, median error {statistics.median(errors):.0%}")
    assert len(errors) > 100
    assert statistics.median(errors) < 0.3


def play(runs: list[WaitingRun], free: dict[int, float], draw: random.Random) -> dict[int, float]:
    served: dict[tuple[str, str], float] = {}
    since_night, free, starts = Counter[int](), dict(free), dict[int, float]()
    while free:
        now, place = min((now, place) for place, now in free.items())
        run = next_run(runs, place, served, since_night[place])  # type: ignore[arg-type]
        if run is None:
            del free[place]
            continue
        run.tasks -= 1
        served[run.run_class, run.owner] = now
        since_night[place] = 0 if run.run_class == "night" else since_night[place] + 1
        starts.setdefault(run.run, now)
        free[place] = now + run.task_s * draw.uniform(0.5, 1.5)
    return starts


def test_a_task_of_unknown_length_hides_what_comes_after_it() -> None:
    first, second = run_of(1, "a", 1), run_of(2, "a", 1)
    first.task_s = float("inf")
    assert expected_starts([first, second], {1: 5.0}, {}, {}) == {1: 5.0}


@pytest.mark.django_db
def test_claims_follow_the_pure_rules() -> None:
    draw = random.Random(7)
    one, two = attach("one"), attach("two")
    waiting: dict[int, WaitingRun] = {}
    for number in range(12):
        run_class, owner = draw.choice(RUN_CLASSES), draw.choice(["olga", "ada", "schedule x"])
        cases = CASES[: draw.randint(1, 4)]
        labels = {"host": draw.choice(["one", "two"])} if draw.random() < 0.4 else {}
        run = request(cases, run_class=run_class, labels=labels)
        RunRequest.objects.filter(run=run).update(
            requested_by=f"{owner}, key hud_{number}" if draw.random() < 0.5 else owner
        )
        places = [one.pk, two.pk] if not labels else [one.pk if labels["host"] == "one" else two.pk]
        waiting[run.pk] = WaitingRun(run.pk, run_class, owner, number, run.tasks.count(), 1.0, places)
    served: dict[tuple[str, str], float] = {}
    since_night = Counter[int]()
    for turn in range(sum(run.tasks for run in waiting.values())):
        accelerator = draw.choice([one, two])
        expected = next_run(list(waiting.values()), accelerator.pk, served, since_night[accelerator.pk])  # type: ignore[arg-type]
        task = tasks.claim(accelerator=accelerator, nonce=f"n{turn}")
        if expected is None:
            assert task is None
            continue
        assert task
        assert task.run_id == expected.run, turn
        expected.tasks -= 1
        served[expected.run_class, expected.owner] = turn
        since_night[accelerator.pk] = 0 if expected.run_class == "night" else since_night[accelerator.pk] + 1
        end(task, accelerator)
    assert set(Turn.objects.values_list("run_class", "owner")) == served.keys()
    assert Accelerator.objects.get(pk=one.pk).since_night == since_night[one.pk]


@pytest.mark.django_db
def test_the_queue_is_in_the_order_of_expected_starts() -> None:
    one = attach("one")
    request(CASES[:3])
    while task := tasks.claim(accelerator=one, nonce="n"):
        end(task, one)
    Task.objects.update(started=F("finished") - timedelta(seconds=50))  # how long they usually take
    big = request(CASES[:3], run_class="person")
    second = request(run_class="person")
    other = request(run_class="person")
    RunRequest.objects.filter(run=other).update(requested_by="ada")
    lines = {line.run: line for line in queue.read().lines}
    assert [run for run, _line in sorted(lines.items(), key=lambda item: item[1].position or 0)] == [
        big.pk,
        other.pk,
        second.pk,
    ]
    assert lines[big.pk].starts_in_s == 0.0
