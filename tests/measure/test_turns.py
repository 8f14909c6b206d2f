"""Two processes that measure on the same processors take turns, whatever becomes of one of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.launch.failures import TaskFailure
from runner.measure import turns
from runner.measure.forked import run_stage
from runner.measure.state import device
from runner.measure.timing.call_time import TimingPlan, interleaved_timings

CPU = device.Device("cpu", "x86_64", "a processor", 0, 2)
FORK = multiprocessing.get_context("fork")
LEAST_TURNS = 4
Interval = tuple[float, float, int]  # begin, end, number of the loop


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST_TURNS", LEAST_TURNS)


def both(*works: Callable[[], Any]) -> list[Any]:
    """Run both sides in turns and return their answers; None for a side that died."""
    sides = turns.sides()
    answers = [FORK.Pipe(duplex=False) for _work in works]

    def run(side: int) -> None:
        with sides[1 - side]:
            os.environ[turns.TURNS_VARIABLE] = " ".join(map(str, sides[side].files))
        turns.begin()
        answers[side][1].send(works[side]())

    processes = [FORK.Process(target=run, args=(side,)) for side in (1, 0)]
    for process in processes:
        process.start()
    for sharing, (_receiving, sending) in zip(sides, answers, strict=True):
        with sharing:
            sending.close()
    found = []
    for receiving, _sending in answers:
        assert receiving.poll(60)
        try:
            found.append(receiving.recv())
        except EOFError:
            found.append(None)
    for process in processes:
        process.join()
    return found


def spend(intervals: list[Interval], number: int, seconds: float) -> None:
    began = time.perf_counter()
    time.sleep(seconds)  # the work that is timed; nothing waits for it
    intervals.append((began, time.perf_counter(), number))


def measured(loops: int, call_s: float, at_least: int, dies_after: int = 0) -> list[Interval]:
    """Work as a suite does before its loops, in them and after, and return when."""
    intervals: list[Interval] = []

    def call(number: int) -> None:
        spend(intervals, number, call_s)
        if len(intervals) == dies_after:
            os._exit(1)

    for number in range(loops):
        spend(intervals, -1, 0.02)  # compiles
        plan = TimingPlan(at_least, 0.0, warm_calls=1)
        interleaved_timings(partial(call, number), partial(call, number), CPU, plan)
    spend(intervals, -1, 0.02)  # explains
    return intervals


def changes(first: list[Interval], second: list[Interval], number: int) -> int:
    """How often one side follows the other in a loop."""
    rows = sorted(
        (one[0], side) for side, rows in enumerate((first, second)) for one in rows if one[2] == number
    )
    return sum(before[1] != after[1] for before, after in pairwise(rows))


def span(intervals: list[Interval], number: int) -> tuple[float, float]:
    own = [one for one in intervals if one[2] == number]
    return own[0][0], own[-1][1]


def test_only_one_side_works_and_both_are_in_the_same_loop() -> None:
    first, second = both(partial(measured, 2, 0.001, 10), partial(measured, 2, 0.003, 60))
    together = sorted([*first, *second])
    assert all(before[1] <= after[0] for before, after in pairwise(together)), "never both at once"
    for number in (0, 1):
        assert changes(first, second, number) >= 2 * LEAST_TURNS
        (begin, end), (other_begin, other_end) = span(first, number), span(second, number)
        assert max(begin, other_begin) < min(end, other_end)
    assert max(span(first, 0)[1], span(second, 0)[1]) < min(one[0] for one in together if one[2] == 1), (
        "no side is ahead by a loop"
    )


def test_the_other_side_goes_on_when_one_dies_in_its_turn() -> None:
    first, second = both(partial(measured, 2, 0.001, 20, dies_after=25), partial(measured, 2, 0.001, 20))
    assert first is None
    assert sum(one[2] == 1 for one in second) >= 2 * 20
    first, second = both(partial(measured, 1, 0.001, 20), lambda: os._exit(1))
    assert second is None
    assert len(first) >= 2 * 20


def test_the_first_pair_of_a_turn_is_dropped_unless_it_fills_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]  # each side has its own clock, which its calls alone move
    clock = SimpleNamespace(perf_counter=lambda: now_s[0], monotonic=lambda: now_s[0])
    monkeypatch.setattr(turns, "time", clock)

    def samples(call_s: float) -> tuple[int, int]:
        calls: list[float] = []

        def call() -> None:
            now_s[0] += call_s
            calls.append(call_s)

        times = interleaved_timings(call, call, CPU, TimingPlan(20, 0.0, warm_calls=0))
        return len(times.eager), len(calls) // 2

    count = LEAST_TURNS + 1  # of turns, each of ten pairs and one that is dropped
    assert both(partial(samples, 0.0005), partial(samples, 0.0005)) == [(10 * count, 11 * count)] * 2
    whole = turns._TURN_S
    assert both(partial(samples, whole), partial(samples, whole)) == [(20, 20)] * 2


def test_a_stage_that_ends_in_the_others_turn_leaves_it_its_turn(tmp_path: Path) -> None:
    def with_a_stage() -> list[Interval]:
        intervals: list[Interval] = []

        def ends_in_a_while() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            measured(1, 0.001, 20)

        with pytest.raises(TaskFailure, match="SIGALRM"):
            run_stage("call", ends_in_a_while, folder=tmp_path, timeout_s=20)
        spend(intervals, -1, 0.02)
        return intervals

    def long() -> list[Interval]:
        intervals: list[Interval] = []
        spend(intervals, -1, 1.0)
        return intervals

    (after,), (meanwhile,) = both(with_a_stage, long)
    assert meanwhile[1] <= after[0]


def test_no_time_limit_counts_the_others_turn(tmp_path: Path) -> None:
    def with_a_stage() -> float:
        began_s = turns.clock_s()
        run_stage("call", partial(measured, 1, 0.001, 20), folder=tmp_path, timeout_s=1.0)
        return turns.clock_s() - began_s

    def long() -> None:
        spend([], -1, 2.5)

    own_s, _nothing = both(with_a_stage, long)
    assert own_s < 2.5


def test_what_processors_do_in_the_others_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter((1.0, 10.0, 30.0, 32.0))  # before, as the wait begins and ends, after
    monkeypatch.setattr("runner.system.machine.busy_processors_s", lambda: next(busy))
    monkeypatch.setattr(turns, "busy_processors_s", lambda: next(busy))
    sharing, other = turns.sides()
    monkeypatch.setattr(turns, "_sharing", [sharing])
    with sharing, other:
        before = device.cpu_state(1)
        socket.socket(fileno=os.dup(other.files[0])).send(b"more")
        assert sharing.hand_over(b"more") == b"more"
        after = device.cpu_state(1)
    assert before is not None
    assert after is not None
    assert after.busy_s - before.busy_s == 32 - 1 - (30 - 10)
    assert after.at_s - before.at_s < time.monotonic()


def test_processes_that_take_no_turns_do_not_wait() -> None:
    assert turns.loop() is None
    assert turns.waited() == (0.0, 0.0)
    turns.begin()
    turns.resume()
