"""Life of tasks and runs: whatever happens in whatever order, each ends in one true state, once.

A machine of hypothesis does to a small world what hosts, people and accidents do to the real one. The
world is there twice: `Pure`, of `states.py` alone, and `Database`, the real functions over PostgreSQL.
Both must always say the same, and the invariants hold after every step.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hud.hosts import registration
from hud.ingest import deliveries
from hud.models import Accelerator, Audit, Host, Run, Task
from hud.problems import Problem
from hud.runs import logs, requests, tasks
from hud.states import runs as states
from hud.states.runs import TaskState
from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec
from runner.schema.tasks import Selection, plan
from tests.runs.life_pure import CASES, MAX_ATTEMPTS, MAX_RUNS, PLACES, STATUSES, WISHES, Handle, Pure, Said
from tests.support.claims import cpu, options
from tests.support.records import as_lines, task_record


class Database:
    """The world as it is stored."""

    def __init__(self, accelerators: list[Accelerator]) -> None:
        self.accelerators = accelerators
        self.runs: list[int] = []
        self.leases: list[tuple[UUID, UUID, Host]] = []

    def request(self, count: int, watched: bool, labels: dict[str, str]) -> None:
        run = requests.request_run(
            plan(Selection("micro", cases=CASES[:count], device="cpu")),
            options(device="cpu", labels=labels, run_class="person" if watched else "night"),
            title="t",
        )
        self.runs.append(run.pk)

    def claim(self, place: int, nonce: str) -> int | None:
        accelerator = self.accelerators[place]
        claimed = tasks.claim(accelerator=accelerator, nonce=nonce)
        if claimed is None:
            return None
        assert claimed.token
        lease = (claimed.uid, claimed.token, accelerator.host)
        if lease not in self.leases:
            self.leases.append(lease)
        return self.leases.index(lease)

    def write(self, number: int, kind: str) -> bool:
        uid, token, host = self.leases[number]
        if kind == "report":
            task = tasks.leased_task(uid=uid, token=token, host=host)
            return tasks.report(task=task, progress={})
        if kind == "log":
            logs.append(uid=uid, token=token, host=host, offset=0, data=b"hello")
        else:
            deliveries.take_results(uid=uid, token=token, host=host, body=as_lines(self.record(uid)))
        return False

    def record(self, uid: UUID) -> dict[str, Any]:
        return task_record(TaskSpec.from_json(Task.objects.get(uid=uid).spec))

    def finish(self, number: int, status: str) -> str:
        return self._finish(number, status, code="")

    def hand_back(self, number: int) -> str:
        return self._finish(number, "not_run", code=tasks.HANDED_BACK)

    def _finish(self, number: int, status: str, code: str) -> str:
        uid, token, host = self.leases[number]
        return tasks.finish(uid=uid, token=token, host=host, status=status, code=code, reason="").state

    def cancel(self, number: int) -> None:
        tasks.cancel(run=Run.objects.get(pk=self.runs[number]), who="me")

    def lose(self, handle: Handle) -> None:
        silent = Task.objects.filter(run_id=self.runs[handle[0]], position=handle[1])
        silent.update(lease_until=timezone.now() - timedelta(days=1))
        assert tasks.break_leases() == [silent.get().pk]

    def open(self, host: str, how: str) -> None:
        found = Host.objects.get(name=host)
        if how == "resume":
            registration.control("resume", host=found, who="me")
        elif how == "drain":
            registration.control("drain", host=found, who="me")
        else:
            registration.control("pause", host=found, minutes=60, who="me")

    def soil(self, place: int, dirty: bool) -> None:
        accelerator = Accelerator.objects.filter(pk=self.accelerators[place].pk)
        accelerator.update(unavailable_reason="in use" if dirty else "")

    def task_states(self) -> dict[Handle, tuple[str, int, str, int | None]]:
        place: dict[int | None, int | None] = {None: None}
        place.update((item.pk, number) for number, item in enumerate(self.accelerators))
        rows = Task.objects.values_list("run_id", "position", "state", "attempt", "status", "accelerator_id")
        return {
            (self.runs.index(run), position): (state, attempt, status, place[accelerator])
            for run, position, state, attempt, status, accelerator in rows
        }

    def run_states(self) -> list[str]:
        return list(Run.objects.order_by("pk").values_list("state", flat=True))


class Machine(RuleBasedStateMachine):
    """Both worlds, or the pure one alone."""

    accelerators: ClassVar[list[Accelerator]] = []

    def __init__(self) -> None:
        super().__init__()
        self.undo = contextlib.ExitStack()
        self.pure = Pure()
        self.database: Database | None = None
        if self.accelerators:
            self.undo.enter_context(transaction.atomic())
            self.undo.callback(transaction.set_rollback, True)
            self.database = Database(self.accelerators)
        self.ends: dict[Handle, str] = {}  # of tasks
        self.run_ends: dict[int, str] = {}
        self.broken: set[int] = set()  # leases
        self.cancels = self.losses = 0
        self.nonces = map(str, itertools.count())

    def teardown(self) -> None:
        with self.undo:
            if self.database:
                done = list(Audit.objects.values_list("action", flat=True))
                assert done.count("run.request") == len(self.pure.runs)
                assert done.count("run.cancel") == self.cancels
                assert done.count("task.lost") == self.losses

    def do(self, call: Callable[[Any], Any]) -> Said:
        """Does it in both worlds, which must answer the same."""
        said = _said(lambda: call(self.pure))
        if self.database:
            assert _said(lambda: call(self.database)) == said
        return said

    @precondition(lambda self: len(self.pure.runs) < MAX_RUNS)
    @rule(count=st.integers(1, 2), watched=st.booleans(), labels=st.sampled_from(WISHES))
    def request(self, count: int, watched: bool, labels: dict[str, str]) -> None:
        self.do(lambda world: world.request(count, watched, labels))

    @rule(place=st.integers(0, len(PLACES) - 1))
    def claim(self, place: int) -> None:
        nonce = next(self.nonces)
        self.do(lambda world: world.claim(place, nonce))

    @precondition(lambda self: self.pure.leases)
    @rule(pick=st.integers(0, 99))
    def claim_again(self, pick: int) -> None:
        lease = self._lease(pick)
        self.do(lambda world: world.claim(self.pure.leases[lease].place, self.pure.leases[lease].nonce))

    @precondition(lambda self: self.pure.leases)
    @rule(pick=st.integers(0, 99), kind=st.sampled_from(("report", "report", "log", "deliver")))
    def write(self, pick: int, kind: str) -> None:
        lease = self._lease(pick)
        with self._nothing_changes():
            said = self.do(lambda world: world.write(lease, kind))
        assert (said[0] == "said") == self._is_live(lease), "only a live token writes"

    @precondition(lambda self: self.pure.leases)
    @rule(pick=st.integers(0, 99), status=st.sampled_from(STATUSES))
    def finish(self, pick: int, status: str) -> None:
        lease = self._lease(pick)
        with contextlib.nullcontext() if self._is_live(lease) else self._nothing_changes():
            said = self.do(lambda world: world.finish(lease, status))
        assert said[0] != "said" or lease not in self.broken

    @precondition(lambda self: self.pure.leases)
    @rule(pick=st.integers(0, 99))
    def hand_back(self, pick: int) -> None:
        lease = self._lease(pick)
        with contextlib.nullcontext() if self._is_live(lease) else self._nothing_changes():
            said = self.do(lambda world: world.hand_back(lease))
        assert said[0] != "said" or lease not in self.broken

    @precondition(lambda self: self.pure.runs)
    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        number = pick % len(self.pure.runs)
        goes_on = number not in self.run_ends and not self.pure.runs[number].cancelling
        self.cancels += goes_on
        self.do(lambda world: world.cancel(number))

    @precondition(lambda self: self.pure.running())
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        running = self.pure.running()
        handle, _place = running[pick % len(running)]
        self.losses += 1
        self.broken |= {number for number in range(len(self.pure.leases)) if self._is_held(number, handle)}
        self.do(lambda world: world.lose(handle))

    @rule(host=st.sampled_from("ab"), how=st.sampled_from(("drain", "pause", "resume", "resume")))
    def open(self, host: str, how: str) -> None:
        self.do(lambda world: world.open(host, how))

    @rule(place=st.integers(0, len(PLACES) - 1), dirty=st.booleans())
    def soil(self, place: int, dirty: bool) -> None:
        self.do(lambda world: world.soil(place, dirty))

    @invariant()
    def both_say_the_same(self) -> None:
        if self.database:
            assert self.database.task_states() == self.pure.task_states()
            assert self.database.run_states() == self.pure.run_states()

    @invariant()
    def an_end_is_an_end(self) -> None:
        for handle, (state, _attempt, status, _place) in self.pure.task_states().items():
            if state not in {"queued", "running"}:
                assert self.ends.setdefault(handle, f"{state} {status}") == f"{state} {status}"
            else:
                assert handle not in self.ends
        for number, state in enumerate(self.pure.run_states()):
            if state not in {"queued", "running"}:
                assert self.run_ends.setdefault(number, state) == state
            else:
                assert number not in self.run_ends

    @invariant()
    def an_accelerator_runs_one_task(self) -> None:
        places = [place for _handle, place in self.pure.running()]
        assert len(places) == len(set(places))
        if self.database:
            assert Task.objects.filter(state="running").values("accelerator").distinct().count() == len(
                places
            )

    @invariant()
    def no_task_is_tried_too_often(self) -> None:
        assert all(said[1] <= MAX_ATTEMPTS for said in self.pure.task_states().values())

    @invariant()
    def a_run_is_what_its_tasks_are(self) -> None:
        found = self.pure.task_states()
        for number, state in enumerate(self.pure.run_states()):
            of_run = [said for (run, _position), said in found.items() if run == number]
            states = {said[0] for said in of_run}
            ended = not states & {"queued", "running"}
            assert (state in {"queued", "running"}) != ended
            assert (state == "succeeded") == (
                states == {"done"} and {said[2] for said in of_run} <= {"ok", "cannot_tell"}
            )
            assert (state == "cancelled") == (ended and "cancelled" in states)
            assert (state == "queued") == all(said[:2] == ("queued", 0) for said in of_run)

    def _lease(self, pick: int) -> int:
        return pick % len(self.pure.leases)

    def _is_live(self, number: int) -> bool:
        lease = self.pure.leases[number]
        task = self.pure.runs[lease.handle[0]].tasks[lease.handle[1]]
        return task.life.state is TaskState.RUNNING and task.life.token == lease.token

    def _is_held(self, number: int, handle: Handle) -> bool:
        return self._is_live(number) and self.pure.leases[number].handle == handle

    @contextlib.contextmanager
    def _nothing_changes(self) -> Iterator[None]:
        before = self.pure.task_states()
        yield
        assert self.pure.task_states() == before


def _said(call: Callable[[], Any]) -> Said:
    try:
        return "said", call()
    except (states.StaleToken, states.InvalidTransition, Problem) as error:
        return type(error).__name__, None


def play(machine: type[Machine], sequences: int) -> None:
    """Sequences of 50 steps each."""
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(
            max_examples=sequences,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.fixture
def stored() -> type[Machine]:
    """A machine over the database, too."""
    found = []
    for name in ("a", "b"):
        devices = [cpu("micro", name=place) for host, place in PLACES if host == name]
        host = Host.objects.create(name=name)
        beat = registration.beat(
            host=host, protocol=PROTOCOL, sent_at=0.0, facts={}, labels={"site": name}, devices=devices
        )
        found += [beat[device.name] for device in devices]
    accelerators = list(Accelerator.objects.select_related("host").order_by("pk"))
    assert [item.pk for item in found] == [item.pk for item in accelerators]
    return type("StoredMachine", (Machine,), {"accelerators": accelerators})


def test_the_pure_model_ends_in_valid_states() -> None:
    play(Machine, 60)


@pytest.mark.soak
def test_the_pure_model_five_thousand_times() -> None:
    play(Machine, 5_000)


@pytest.mark.django_db
def test_the_database_ends_in_the_same_states(stored: type[Machine]) -> None:
    play(stored, 6)


@pytest.mark.soak
@pytest.mark.django_db
def test_the_database_three_hundred_times(stored: type[Machine]) -> None:
    play(stored, 300)
