"""A whole installation as real processes: web, tick, PostgreSQL, Redis, and hosts with a stand-in job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.db import connection, transaction

from hud.accounts.keys import create_key
from hud.models import TERMINAL, Accelerator, Host, Run, Task
from hud.runs import requests
from runner.schema.tasks import Selection
from runner.system.processes import read_process
from tests.support.claims import options
from tests.support.hosts import Control, HostProcess, alive
from tests.support.servers import ROOT, Hud, RedisServer, end_process, start_process
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Times:
    """The life of a task in seconds, as all processes are told it. The defaults are the real ones."""

    lease_s: float = 45
    beat_s: float = 10
    late_s: float = 30
    lost_s: float = 60
    tick_s: float = 5
    grace_s: float = 60
    ring_s: float = 15
    same_card_s: float = 0  # every card takes what it finds

    @property
    def environment(self) -> dict[str, str]:
        return {f"HUD_{name.upper()}": str(value) for name, value in self.__dict__.items()}

    @property
    def scaled(self) -> bool:
        return self != Times()

    @property
    def forgiving(self) -> dict[str, str]:
        """For a tick that breaks no lease, in tests whose hosts are never silent by themselves: a busy
        machine may be slower than a scaled lease lasts."""
        return {"HUD_GRACE_S": "3600"} if self.scaled else {}

    @property
    def recovery_s(self) -> float:
        """From a silence that begins to the next attempt's claim, at most."""
        return self.lease_s + self.grace_s + 2 * self.tick_s + self.ring_s

    @property
    def patience_s(self) -> float:
        """How long a test waits: the bound, and as much again because the machine may be busy."""
        return 60 + 2 * self.recovery_s


SCALED = Times(lease_s=4, beat_s=0.5, late_s=1.5, lost_s=3, tick_s=0.3, grace_s=1, ring_s=1)


@dataclass
class Site:
    """`request()` starts runs as the page does; `host` and `control` are the first host's."""

    hud: Hud
    redis: RedisServer
    times: Times
    folder: Path
    figure: Callable[[str, float], None]
    device: str = "cpu"  # of its runs, and of the first host
    checkout: Path = ROOT  # of the processes that start next, other than the web
    hosts: dict[str, HostProcess] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    _tick: subprocess.Popen[bytes] | None = None
    _tick_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a process of the project that takes part."""
        settings = connection.settings_dict
        return {
            **os.environ,
            **self.times.environment,
            "DATABASE_URL": f"postgresql://hud@/{settings['NAME']}?host={settings['HOST']}",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }

    def start(self, *, host: bool = True, forgiving: bool = False) -> None:
        """Start all of it, or all but the first host."""
        self.start_tick(**(self.times.forgiving if forgiving else {}))
        self.start_web()
        if host:
            self.attach("here", devices="cpu" if self.device == "cpu" else "0")
        self.have_tick(forgiving=forgiving)

    def let_last(self, real_s: float, *, scaled_s: float = 0) -> None:
        """Lets a fault last. Its length is what is tested, so nothing is waited for."""
        time.sleep(
            scaled_s if self.times.scaled else real_s
        )  # an outage that ends by the clock, as real ones

    def start_web(self, **variables: str) -> None:
        self.hud.start(**self.times.environment, **variables)

    def start_tick(self, **variables: str) -> None:
        self._tick_variables = variables
        command = [sys.executable, "manage.py", "tick", "--skip-checks"]
        log = self.folder / "tick.log"
        self._tick = start_process(command, log, {**self.environment, **variables}, self.checkout)

    def stop_tick(self) -> None:
        if self._tick:
            end_process(self._tick, signal.SIGTERM)
            self._tick = None

    def have_tick(self, *, forgiving: bool) -> None:
        """Wait for a tick that may break leases, or, scaled, have a `forgiving` one. Starting one takes a
        second or two, so that of the test before stays where it will do."""
        variables = self.times.forgiving if forgiving else {}
        if self._tick_variables != variables:
            self.stop_tick()
            self.start_tick(**variables)
        if not variables:
            self.wait(self.trusts_silence, "a tick that may break leases")

    def attach(
        self,
        name: str,
        *,
        devices: str = "cpu",
        labels: Mapping[str, str] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
        through: str = "",
    ) -> HostProcess:
        """A host with a key of its own, and devices of this machine as its own; `environment` is that of
        its processes and of its benchmarks, `through` another address of the web."""
        key, self.keys[name] = create_key(
            name=name, scopes=["host"], who="test", host=Host.objects.create(name=name)
        )
        folder = self.folder / name
        self.controls[name] = Control(folder / "control")
        variables = {"STANDIN": str(folder / "control"), **environment}
        python = ",".join(
            [f"default={self.controls[name].python}", *(f"{one}={text}" for one, text in variables.items())]
        )
        arguments = ["-m", "runner", "attach", "--hud", through or self.hud.url, "--key", self.keys[name]]
        arguments += ["--name", name, "--data", str(folder / "data"), "--devices", devices]
        arguments += ["--python", python, *(f"--label={one}={text}" for one, text in labels.items())]
        self.hosts[name] = HostProcess(folder, arguments, environment, self.checkout)
        self.hosts[name].start()
        there = Accelerator.objects.filter(host=key.host, present=True)
        self.wait(lambda: there.exists() and all(item.catalog["suites"] for item in there), f"host {name}")
        names = [item.name for item in there]
        host = self.hosts[name]
        self.wait(
            lambda: all(f"worker of {one} is process" in host.log for one in names), f"workers of {name}"
        )
        return host

    @property
    def host(self) -> HostProcess:
        return self.hosts["here"]

    @property
    def control(self) -> Control:
        return self.controls["here"]

    @property
    def data(self) -> Path:
        """Of the first host's agent."""
        return self.folder / "here" / "data"

    def request(
        self, *cases: str, timeout_s: int = 600, labels: Mapping[str, str] = MappingProxyType({})
    ) -> Run:
        """A new run of cases of `micro` on any such device; the doorbell is rung after the commit."""
        with transaction.atomic():
            run = requests.request_suite(
                Selection("micro", self.device, cases=cases or ["layer_norm"]),
                options(device=self.device, labels=labels, compilations=1),
            )
            for task in run.tasks.all():
                task.spec["timeout_s"] = timeout_s
                task.save()
        return run

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float | None = None) -> None:
        wait_for(condition, what, timeout_s or self.times.patience_s)

    def wait_for_end(self, *requested: Run, timeout_s: float | None = None) -> list[Run]:
        """Until all these runs have ended; the runs as they are then."""
        ids = [run.pk for run in requested]
        ended = Run.objects.filter(pk__in=ids, state__in=TERMINAL)
        self.wait(lambda: ended.count() == len(ids), f"the end of runs {ids}", timeout_s)
        return list(ended.order_by("pk"))

    def wait_for_changes(self, times: int, look: Callable[[], object], what: str) -> None:
        """Until what `look` sees has changed so often: by the product's own clock, not by ours."""
        for _ in range(times):
            before = look()
            self.wait(lambda before=before: look() != before, what)  # type: ignore[misc]

    def ask(self, path: str) -> tuple[int, Any]:
        """Status and JSON of the web's answer; it is here within ten seconds whatever goes on."""
        try:
            with urllib.request.urlopen(self.hud.url + path, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def host_state(self, name: str) -> str:
        """What the web says of a host."""
        _status, answer = self.ask("/api/v1/hosts")
        return next(str(host["state"]) for host in answer["items"] if host["name"] == name)

    def trusts_silence(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) = 2 FROM hud_heartbeat"
                " WHERE name IN ('tick', 'web') AND trusted_from <= clock_timestamp()"
            )
            return bool(cursor.fetchone()[0])

    @contextlib.contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Notes how long a block took, from the fault to the true state."""
        started = time.monotonic()
        yield
        self.figure(what, time.monotonic() - started)

    def have_torch(self, version: str) -> None:
        """Put another torch in place of the first host's, and wait for a beat that tells of it: a claim that
        was on its way meanwhile still names the one before."""
        self.control.install_torch(version)
        self.wait_for_torch(version)

    def wait_for_torch(self, version: str) -> None:
        self.wait(lambda: self._torch() == version, f"a beat with torch {version}")

    def _torch(self) -> object:
        """Return the torch of the first host as its last beat names it."""
        return Host.objects.get(name="here").facts["pythons"]["default"]["torch"]

    def begin_anew(self) -> None:
        """Forget the runs, the second host and the stand-in's plan of a test whose faults are over."""
        for name in set(self.hosts) - {"here"}:
            self.hosts.pop(name).close()
            del self.controls[name], self.keys[name]
            Host.objects.filter(name=name).delete()
        self.wait(lambda: not any(map(alive, self.control.pids)), "the end of the benchmarks")
        self.wait(lambda: not list((self.data / "spool").glob("*")), "an empty spool")
        if version := self.control.forget():
            self.wait(lambda: self._torch() != version, "a beat without the torch of this test")
        Run.objects.all().delete()
        self.wait(lambda: self.host_state("here") == "online", "the host")

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.stop_tick()
        self.hud.stop()


def tree(pid: int) -> list[int]:
    """A process and everything below it, parents first."""
    found = [pid]
    for number in found:  # grows while it is walked
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            found += map(int, children)
    return found


def worker_of(host: HostProcess) -> int:
    """Pid of a host's worker."""
    for pid in tree(host.pid):
        with contextlib.suppress(OSError):
            if (
                b"runner.host.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
                and _parent(pid) == host.pid
            ):
                return pid
    raise AssertionError(f"{host.log}\nhas no worker")


def _parent(pid: int) -> int:
    process = read_process(pid)
    return process.parent if process else 0


def freeze(pids: list[int]) -> None:
    """SIGSTOP, parents first, so that none of them notices its children."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(pids: list[int]) -> None:
    for pid in reversed(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def only_task(run: Run) -> Task:
    return Task.objects.get(run=run)
