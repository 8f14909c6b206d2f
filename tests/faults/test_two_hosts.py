"""Two hosts on one machine, each with an agent, a data folder and two stand-in GPUs of its own."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from hud.hosts import registration
from hud.models import Host, Run, State, Task
from tests.faults.installation.site import Site, freeze, only_task, thaw, tree
from tests.support.hosts import Control

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.no_host]

NAMES = ("left", "right")


@pytest.fixture
def pair(site: Site) -> Site:
    """The site with hosts "left" and "right"."""
    gpu_site = replace(site, device="cuda")
    for name in NAMES:
        gpu_site.attach(name, devices="0,1", labels={"site": name}, environment=_two_gpus(site.folder, name))
    return gpu_site


def _two_gpus(folder: Path, name: str) -> dict[str, str]:
    """Puts an nvidia-smi in the path that knows two GPUs of this host's own."""
    programs = folder / f"{name}-programs"
    programs.mkdir()
    rows = "\n".join(f"{number}, NVIDIA H200, GPU-{name}-{number}, 143771, 570.1" for number in (0, 1))
    program = programs / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{rows}\nEND\n")
    program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def cards(site: Site, name: str) -> list[Control]:
    return [site.controls[name].card(f"GPU-{name}-{number}") for number in (0, 1)]


def starts(site: Site) -> list[int]:
    """Of each of the four cards."""
    return [card.starts for name in NAMES for card in cards(site, name)]


def everywhere(site: Site, plan: dict[str, dict[str, str]]) -> None:
    for name in NAMES:
        site.controls[name].plan(plan)


def go(site: Site, name: str) -> None:
    for host in NAMES:
        site.controls[host].go(name)


def ran_on(*ended: Run) -> Counter[str]:
    """How many tasks each host did."""
    return Counter(
        str(task.accelerator.host.name)
        for task in Task.objects.filter(run__in=ended).select_related("accelerator__host")
        if task.accelerator
    )


def host(name: str) -> Host:
    return Host.objects.get(name=name)


def test_two_hosts_share_obey_sleep_and_die(pair: Site) -> None:
    """One story, because each host takes seconds to attach."""
    _work_is_shared(pair)
    _labels_are_respected(pair)
    _drain_and_pause_are_obeyed(pair)
    _one_sleeps_and_one_dies(pair)


def _work_is_shared(site: Site) -> None:
    everywhere(site, {"1": {"wait_for": "all busy"}})
    first = [site.request() for _ in range(4)]
    site.wait(lambda: starts(site) == [1, 1, 1, 1], "work on all four cards")
    more = [site.request() for _ in range(8)]
    with site.measured("8 more tasks on 4 cards"):
        go(site, "all busy")
        ended = site.wait_for_end(*first, *more)
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert sum(starts(site)) == 12


def _labels_are_respected(site: Site) -> None:
    ended = site.wait_for_end(*(site.request(labels={"site": "right"}) for _ in range(3)))
    assert ran_on(*ended) == {"right": 3}


def _drain_and_pause_are_obeyed(site: Site) -> None:
    number = max(starts(site)) + 1
    everywhere(site, {str(at): {"wait_for": "drained"} for at in range(1, number + 1)})
    busy = [site.request(labels={"site": "left"}) for _ in range(2)]
    site.wait(lambda: Task.objects.filter(state="running").count() == 2, "two tasks on the left")
    registration.control("drain", host=host("left"), note="new driver", who="test")
    others = [site.request() for _ in range(3)]
    go(site, "drained")
    assert {run.state for run in site.wait_for_end(*busy)} == {State.SUCCEEDED}, "what runs is finished"
    assert ran_on(*site.wait_for_end(*others)) == {"right": 3}

    pause_s = 2 if site.times.scaled else 20
    until = timezone.now() + timedelta(seconds=pause_s)
    registration.control(
        "pause", host=host("right"), minutes=pause_s / 60, note="I measure by hand", who="test"
    )
    waiting = site.request()
    site.wait(lambda: site.host_state("right") == "paused", "a paused host")
    (ended,) = site.wait_for_end(waiting)
    assert ended.started
    assert ended.started >= until
    site.figure("taken, from the end of a pause", (ended.started - until).total_seconds())
    assert ran_on(ended) == {"right": 1}
    registration.control("resume", host=host("left"), who="test")
    assert ran_on(*site.wait_for_end(site.request(labels={"site": "left"}))) == {"left": 1}


def _one_sleeps_and_one_dies(site: Site) -> None:
    """Four tasks run and four wait; one host freezes and wakes, the other is killed and comes back."""
    number = max(starts(site)) + 1
    everywhere(site, {str(at): {"wait_for": "late"} for at in range(1, number + 1)})
    before = sum(starts(site))
    first = [site.request() for _ in range(4)]
    site.wait(lambda: Task.objects.filter(state="running").count() == 4, "four running tasks")
    site.wait(lambda: sum(starts(site)) == before + 4, "four benchmarks")
    more = [site.request() for _ in range(4)]
    sleepers = tree(site.hosts["left"].pid)
    freeze(sleepers)
    site.hosts["right"].kill()
    everywhere(site, {})
    with site.measured("one frozen, one killed: both given up"):
        site.wait(
            lambda: not Task.objects.filter(run__in=first, state="running", attempt=1).exists(),
            "the broken leases",
        )
    site.hosts["right"].start()
    site.wait(lambda: site.host_state("left") == "lost", "a lost host")
    site.let_last(60)
    go(site, "late")
    thaw(sleepers)
    with site.measured("all finished, from the waking"):
        ended = site.wait_for_end(*first, *more)
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert {only_task(run).attempt for run in ended if run in first} == {2}
    assert {only_task(run).attempt for run in ended if run in more} == {1}
