"""Out of memory, and kernels that spin, on a real GPU: `python -m tests.faults.gpu FOLDER`.

A whole installation for four minutes: web, tick, PostgreSQL, Redis and one host, whose benchmark asks for
more memory than there is, or holds the card with one kernel. FOLDER gets figures.json, samples.jsonl (the
card twice a second), and every log. The exit status is 0 where all is as it must be. `--device cpu` plays
the same on a machine without a GPU. No test framework is needed, so that it runs where only the product's
own requirements are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 280  # for everything; what is not shown by then is not shown
KERNEL_S = 120.0  # of the kernels that are to be ended
ORPHAN_S = 45.0  # of the one that nobody ends
GIB = 200
SLACK_MIB = 300  # a card in use by nobody may differ from itself by this much
TIME_LIMIT_S = 30  # of the task that times out: it has to import torch first


@dataclass
class Fault:
    """What was seen of one fault."""

    name: str
    checks: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def check(self, what: str, holds: object) -> None:
        self.checks[what] = bool(holds)

    @contextlib.contextmanager
    def measured(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - started, 1)

    @property
    def good(self) -> bool:
        return bool(self.checks) and all(self.checks.values())


class Card:
    """The accelerator from outside: its memory and processes, who holds its lock, what the hud says of it."""

    def __init__(self, site: Any) -> None:
        from hud.models import Accelerator
        from tests.support.hosts import Control

        self.site = site
        self.row = Accelerator.objects.get()
        self.lock = self.row.uuid or self.row.name
        self.locks = site.folder / "here" / "locks"
        self.control: Control = site.control.card(self.row.uuid) if self.row.uuid else site.control
        self.idle_mib = self.used_mib()

    def used_mib(self) -> int:
        """Memory in use on the GPU; 0 for a CPU."""
        return int(self._ask("memory.used") or 0)

    def _ask(self, fields: str) -> str:
        if not self.row.uuid:
            return ""
        command = ["nvidia-smi", f"--id={self.row.uuid}", f"--query-gpu={fields}"]
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    @property
    def dirty(self) -> str:
        self.row.refresh_from_db()
        return str(self.row.unavailable_reason)

    @property
    def free(self) -> bool:
        """Nobody holds its lock, and its memory is as it was."""
        from runner.system import locks

        return (
            not locks.processes_with(self.locks, self.lock) and self.used_mib() <= self.idle_mib + SLACK_MIB
        )

    @property
    def loaded(self) -> bool:
        """A benchmark is on the card (a CPU has nothing to show)."""
        return not self.row.uuid or self.used_mib() > self.idle_mib + SLACK_MIB

    def next(self, **plan: Any) -> int:
        """Plans the next start; its number."""
        number = self.control.starts + 1
        self.site.control.plan({str(number): plan, "*": {"kernel_s": 0.2}})
        return number

    def sample(self) -> dict[str, Any]:
        from runner.system import locks

        return {
            "card": self._ask("memory.used,utilization.gpu,clocks.sm"),
            "holds_the_lock": locks.processes_with(self.locks, self.lock),
            "dirty": self.dirty,
            "starts": self.control.starts,
        }


@contextlib.contextmanager
def watched(card: Card, path: Path) -> Iterator[None]:
    """Writes what the card is like, twice a second, as long as the block lasts."""
    from django.db import connection

    done = threading.Event()

    def watch() -> None:
        with path.open("w") as file:
            while not done.wait(0.5):
                with contextlib.suppress(Exception):  # a sample that cannot be taken is no fault
                    file.write(json.dumps({"t_s": round(time.monotonic(), 1), **card.sample()}) + "\n")
        connection.close()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(10)


def out_of_memory(card: Card, fault: Fault) -> None:
    """F9: the task failed for want of memory, once; the card is free, and the next task succeeds."""
    from tests.faults.installation.site import only_task

    start = card.next(allocate_gib=GIB)
    with fault.measured("failed, from the request"):
        (ended,) = card.site.wait_for_end(card.site.request(), timeout_s=90)
    task = only_task(ended)
    fault.said.update(state=ended.state, status=task.status, code=task.code, reason=task.reason)
    fault.check("the run failed, with status oom", (ended.state, task.status) == ("failed", "oom"))
    fault.check("the reason names the memory", f"{GIB}" in task.reason)
    _clean_again(card, fault)
    _next_succeeds(card, fault)
    fault.check("never tried again", (task.attempt, card.control.starts) == (1, start + 1))


def timed_out(card: Card, fault: Fault) -> None:
    """F10: a kernel that outlasts its task's time, of a process that does not hear SIGTERM."""
    start = card.next(kernel_s=KERNEL_S, deaf=True)
    run = card.site.request(timeout_s=TIME_LIMIT_S)
    benchmark = card.control.wait_for_start(start)
    card.site.wait(lambda: card.loaded, "the kernel on the card", TIME_LIMIT_S)
    with fault.measured(f"timed out, from the kernel's start; the limit is {TIME_LIMIT_S} s"):
        (ended,) = card.site.wait_for_end(run, timeout_s=TIME_LIMIT_S + 45)
    _ended_by_us(card, fault, benchmark, ended, "timed_out")
    _next_succeeds(card, fault)


def cancelled(card: Card, fault: Fault) -> None:
    """F10: somebody cancels while a kernel holds the card."""
    from hud.runs import tasks

    start = card.next(kernel_s=KERNEL_S)
    run = card.site.request()
    benchmark = card.control.wait_for_start(start)
    card.site.wait(lambda: card.loaded, "the kernel on the card", 60)
    with fault.measured("cancelled, from the click"):
        tasks.cancel(run=run, who="test")
        (ended,) = card.site.wait_for_end(run, timeout_s=60)
    _ended_by_us(card, fault, benchmark, ended, "cancelled")
    _next_succeeds(card, fault)


def orphaned(card: Card, fault: Fault, orphan_s: float = ORPHAN_S, *, end_it: bool = False) -> None:
    """F10: the host's processes are killed, and one that nobody can find any more keeps the card busy,
    for `orphan_s` or, with `end_it`, until what it prevents has been seen."""
    from runner.system import locks
    from tests.faults.installation.site import only_task
    from tests.support.hosts import alive

    site = card.site
    start = card.next(orphan_s=orphan_s, spin=True)
    run = site.request()
    card.control.wait_for_start(start)
    orphan = site.control.stray
    site.wait(lambda: card.loaded, "the orphan's kernel on the card", 60)
    site.host.kill()
    site.host.start()
    with fault.measured("marked dirty, from the kill"):
        site.wait(lambda: str(orphan) in card.dirty, "a dirty accelerator", 60)
    fault.said.update(dirty=card.dirty, lock_of=locks.processes_with(card.locks, card.lock), orphan=orphan)
    fault.check("the orphan alone holds the lock", fault.said["lock_of"] == [orphan])
    with fault.measured("given up, while the orphan holds the card"):
        site.wait(lambda: only_task(run).state == "queued", "the broken lease", 60)
    fault.check("the task waits while the orphan holds the card", alive(orphan) and card.dirty)
    if end_it:
        os.kill(orphan, signal.SIGKILL)
    with fault.measured("the orphan's end"):
        site.wait(lambda: not alive(orphan), "the orphan's end", orphan_s + 30)
    fault.check("nothing ran beside it", card.control.starts <= start + 1)
    with fault.measured("clean and succeeded, from the orphan's end"):
        (ended,) = site.wait_for_end(run, timeout_s=60)
    fault.check("the second attempt succeeded", (ended.state, only_task(run).attempt) == ("succeeded", 2))
    site.wait(lambda: not card.dirty, "a clean accelerator", 30)
    _next_succeeds(card, fault)


def _ended_by_us(card: Card, fault: Fault, benchmark: int, ended: Any, state: str) -> None:
    from tests.support.hosts import alive

    fault.said.update(state=ended.state, reason=ended.reason)
    fault.check(f"the run is {state}", ended.state == state)
    fault.check("its process is dead", not alive(benchmark))
    _clean_again(card, fault)


def _clean_again(card: Card, fault: Fault) -> None:
    with fault.measured("the card is free, from the run's end"):
        card.site.wait(lambda: card.free, "a free card", 60)
    fault.said["card"] = {"idle_mib": card.idle_mib, "after_mib": card.used_mib()}
    fault.check("the card is free afterwards", card.free)


def _next_succeeds(card: Card, fault: Fault) -> None:
    with fault.measured("the next task"):
        (after,) = card.site.wait_for_end(card.site.request(), timeout_s=60)
    fault.check("the next task succeeds", after.state == "succeeded")
    fault.check("the card was never shared", not card.site.control.shared)


FAULTS: dict[str, Callable[[Card, Fault], None]] = {
    "F9 out of memory": out_of_memory,
    "F10 a spinning kernel times out": timed_out,
    "F10 a spinning kernel is cancelled": cancelled,
    "F10 an orphan's kernel holds the card": orphaned,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="gets the figures and logs")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    faults = [Fault(name) for name in FAULTS]
    broken: list[str] = []
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_S)
    started = time.monotonic()
    try:
        broken = _play(options.device, folder, faults)
    except BaseException:  # noqa: BLE001 - whatever it was, the figures are written
        broken.append(traceback.format_exc())
    took_s = round(time.monotonic() - started, 1)
    good = not broken and all(fault.good for fault in faults)
    figures = {"good": good, "seconds": took_s, "faults": list(map(asdict, faults)), "broken": broken}
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    _print(figures)
    return 0 if good else 1


def _too_late(*_signal: object) -> None:
    raise TimeoutError(f"not done within {LIMIT_S} s")


def _play(device: str, folder: Path, faults: list[Fault]) -> list[str]:
    """Every fault in turn, as far as it goes; returns which invariants are broken at the end."""
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    from hud.server import embedded
    from tests.faults.installation.invariants import violations
    from tests.faults.installation.site import Site, Times
    from tests.support.servers import Hud, RedisServer, quick_postgres

    data = Path(settings.HUD_DATA)
    shutil.rmtree(folder / "site", ignore_errors=True)
    (folder / "site").mkdir()
    redis = RedisServer(data)
    with embedded.running([quick_postgres(data)], folder / "logs"):
        redis.start()
        call_command("migrate", verbosity=0)
        database = f"postgresql://hud@/{connection.settings_dict['NAME']}?host={settings.DATABASES['default']['HOST']}"
        # leases are short here: what is measured is the card
        times = Times(lease_s=15, beat_s=3, late_s=10, lost_s=20, tick_s=1, grace_s=16, ring_s=5)
        site = Site(Hud(data, database), redis, times, folder / "site", lambda *_: None, device=device)
        try:
            site.start()
            card = Card(site)
            with watched(card, folder / "samples.jsonl"):
                for fault in faults:
                    _try(card, fault)
            return violations(
                controls=site.controls.values(), keys=site.keys.values(), folders=[folder / "site", data]
            )
        finally:
            with contextlib.suppress(Exception):
                _keep_logs(site, data, folder)
            site.close()
            redis.stop()
            connection.close()


def _try(card: Card, fault: Fault) -> None:
    try:
        FAULTS[fault.name](card, fault)
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001 - the next fault is tried all the same
        fault.check("it could be played to its end", holds=False)
        fault.said["error"] = traceback.format_exc()


def _keep_logs(site: Any, data: Path, folder: Path) -> None:
    """What every process said, and the benchmarks' own logs as the hud has them."""
    from hud.models import Task

    logs = folder / "logs"
    for path in [*data.glob("*.log"), *site.folder.rglob("*.log")]:
        shutil.copy(path, logs / path.name)
    shutil.copytree(data / "tasklogs", logs / "tasks", dirs_exist_ok=True)
    shown = ("run_id", "state", "status", "code", "reason", "attempt", "started", "finished", "log_bytes")
    rows = list(Task.objects.order_by("pk").values(*shown))
    (folder / "tasks.json").write_text(json.dumps(rows, indent=1, default=str) + "\n")


def _print(figures: dict[str, Any]) -> None:
    for fault in figures["faults"]:
        print(f"\n{fault['name']}")
        for what, holds in fault["checks"].items():
            print(f"  {'yes' if holds else 'NO '}  {what}")
        for what, seconds in fault["seconds"].items():
            print(f"  {seconds:6.1f} s  {what}")
        print(f"  {json.dumps(fault['said'], default=str)}")
    for text in figures["broken"]:
        print(f"broken: {text}")
    print(f"\n{'all is as it must be' if figures['good'] else 'NOT all is as it must be'}", end="")
    print(f", {figures['seconds']} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
