"""The agent of a host: sends heartbeats, keeps one worker per accelerator alive, delivers the spool.

It runs until SIGTERM or SIGINT, or until an operator detaches the host. Then each running task is given back
to the HUD undone, and every process it started is gone within about twelve seconds. If it is killed instead,
the kernel ends its workers, and they their benchmarks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.client.connection import HudError, KeyRefused, Refused, Unreachable, Untrusted
from runner.host.client import Hud, LeaseBroken
from runner.host.spool import left_over
from runner.schema.protocol import Fingerprint
from runner.suites import SUITES
from runner.system import account, locks, machine
from runner.system.accelerators import Accelerator, ceilings_of, unavailable_reason
from runner.system.interpreters import Fingerprints, Interpreter, canary, torch_facts
from runner.system.processes import adopt_orphans, below_me, dying_with_me, reap, send
from runner.system.task_files import write_json

DETACHED = 1  # exit status
STOP_S = 12.0  # from SIGTERM to SIGKILL of the workers
_LOOK_S = 0.25
_STRAYS_S = 30.0
_ERRORS_S = 300.0  # between two looks at the ECC errors of GPUs
_WATCH_S = 5.0  # between two looks at the packages of the interpreters
_FIRST_BEAT_S = 10.0  # until the HUD says how often
_UNREACHABLE_S = 2.0
_REFUSED_S = 30.0
_FREE_BYTES = 256 * 2**20  # on the disk of the spool; a host with less takes no task
_AGAIN_S = 1.0  # after an unexpected error
_DELIVERY_S = 2.0
_LONGEST_RESTART_S = 30.0
_SHORT_LIFE_S = 5.0  # a worker that ends sooner is started again with growing pauses

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attachment:
    """The registration of this host at a HUD."""

    hud: str  # address
    name: str
    key: str = field(repr=False)
    ca: str = ""  # file of the authority of its certificate; '' one that this machine trusts

    def connect(self) -> Hud:
        return Hud(self.hud, self.key, ca=self.ca)


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of an accelerator's worker, in a file that only its owner may read."""

    host: Attachment
    accelerator: Accelerator
    number: int  # of the accelerator at the hud
    queue: str
    redis_url: str = field(repr=False)  # with the password of this host's Redis user
    data: str  # the agent's data folder
    pythons: Mapping[str, Interpreter]

    def save(self) -> Path:
        path = Path(self.data) / "workers" / f"{self.accelerator.name.replace(':', '-')}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, asdict(self))
        return path

    @classmethod
    def load(cls, path: Path) -> WorkerConfig:
        value = json.loads(path.read_bytes())
        value["host"], value["accelerator"] = Attachment(**value["host"]), Accelerator(**value["accelerator"])
        value["pythons"] = {name: Interpreter(**entry) for name, entry in value["pythons"].items()}
        return cls(**value)


@dataclass
class _Worker:
    config: WorkerConfig
    process: subprocess.Popen[bytes]
    started: float
    pause_s: float  # before the next start, if this one ends soon


@dataclass
class Agent:
    attachment: Attachment
    data: Path
    accelerators: Mapping[str, Accelerator]  # by name
    pythons: Mapping[str, Interpreter]
    labels: Mapping[str, str]
    _facts: dict[str, Any] = field(default_factory=dict)
    _looked: dict[str, Fingerprint] = field(default_factory=dict)  # as interpreters were when they were asked
    _known: bool = False  # whether the interpreters have been asked for their torch
    _news: threading.Event = field(default_factory=threading.Event)  # set to send the next heartbeat now
    _answer: dict[str, Any] = field(default_factory=dict)
    _messages: dict[str, str] = field(default_factory=dict)  # the last of each subject
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _look_for_strays: float = 0.0  # the time of the next look
    _look_for_errors: float = 0.0
    _signalled: threading.Event = field(default_factory=threading.Event)
    _detached: bool = False

    def __post_init__(self) -> None:
        self._hud = self.attachment.connect()
        self._fingerprints = Fingerprints(self.data / "fingerprints.json", self.pythons)

    def run(self, *, stay: bool = False) -> int:
        """Work until a signal (return 0) or until detached (DETACHED, or `stay` until a signal). Call it
        in the main thread."""
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_signal: self._signalled.set())
        self._facts = machine.facts()
        for step in (self._watch_interpreters, self._beat, self._deliver):
            threading.Thread(target=self._repeat, args=(step,), daemon=True).start()
        self._repeat(self._supervise)
        self._end_workers()
        if stay:
            self._signalled.wait()
        return DETACHED if self._detached and not stay else 0

    def _repeat(self, step: Callable[[], None]) -> None:
        failure = ""
        while not self._stopping:
            try:
                step()
                failure = ""
            except Exception as error:  # noqa: PERF203 - a full disk must not end a host's heartbeats
                if repr(error) != failure:
                    logger.exception("%s failed and is tried again", step.__name__.strip("_"))
                failure = repr(error)
                time.sleep(_AGAIN_S)

    @property
    def _stopping(self) -> bool:
        return self._detached or self._signalled.is_set()

    def _watch_interpreters(self) -> None:
        self._ask_interpreters()
        self._try_notes()
        self._known = True
        time.sleep(_WATCH_S)

    def _ask_interpreters(self) -> None:
        """Ask each interpreter whose packages have changed for its torch, on the CPU: another process may be
        using the GPU. Nothing is measured before all have answered once."""
        now = self._fingerprints.look()
        found: dict[str, dict[str, Any]] = dict(self._facts.get("pythons", {}))
        changed = [
            name for name in self.pythons if name not in found or self._looked.get(name) != now.get(name)
        ]
        for name in changed:
            try:
                found[name] = torch_facts("cpu", self.pythons[name])
            except RuntimeError as error:
                logger.warning("interpreter %s", error)
                found[name] = {"error": str(error)[:500]}
            if name in now:
                found[name]["fingerprint"] = asdict(now[name])
        if changed:
            self._looked = now
            self._tell(pythons=found, lacking=_lacking(found))

    def _try_notes(self) -> None:
        """Compile once by each new interpreter, while the accelerator is free, to know which notes of its
        torch can be taken."""
        accelerator = next(iter(self.accelerators.values()), None)
        for name, facts in self._facts.get("pythons", {}).items():
            if accelerator is None or facts.keys() & {"error", "notes"}:
                continue
            try:
                folder, what = locks.default_folder(), "a first compilation"
                lock = locks.acquire(folder, accelerator.lock, what=what, wait_s=0.0)
            except (locks.Busy, OSError):  # tried again at the next look
                return
            python = self.pythons[name]
            variables = {**python.environment, "CUDA_VISIBLE_DEVICES": accelerator.visible}
            with os.fdopen(lock):
                notes = canary(accelerator.device, Interpreter(python.path, variables))
            self._tell(pythons={**self._facts["pythons"], name: {**facts, "notes": notes}})

    def _tell(self, **facts: Any) -> None:
        """Send these facts, too, with a heartbeat now."""
        self._facts = {**self._facts, **facts}
        self._news.set()

    def _devices(self) -> list[dict[str, Any]]:
        pids = [worker.process.pid for worker in list(self._workers.values())]
        free_bytes = shutil.disk_usage(self.data).free
        reasons, unusable = dict[str, str](), set[str]()
        for item in self.accelerators.values():
            try:
                reasons[item.name] = unavailable_reason(item, pids)
            except OSError as error:  # noqa: PERF203 - few; a host without locks sends heartbeats too
                reasons[item.name] = str(error)
                unusable.add(str(error))
        self._log_change("; ".join(sorted(unusable)), about="locks")
        full = f"only {free_bytes >> 20} MiB free in {self.data}" if free_bytes < _FREE_BYTES else ""
        return [
            {
                **asdict(item),
                "dirty": (full or reasons[item.name])[:300],
                "suites": self._suites(),
                "pythons": sorted(self.pythons),
            }
            for item in self.accelerators.values()
        ]

    def _suites(self) -> list[str]:
        """Return the suites that can run here: all until the interpreters have answered, none without torch,
        else those for which an interpreter has the packages."""
        pythons = self._facts.get("pythons", {})
        usable = not pythons or any("error" not in facts for facts in pythons.values())
        listed = {name for name, suite in SUITES.items() if suite.cases}  # others need a file of a command
        return sorted(listed - set(self._facts.get("lacking", {}))) if usable else []

    def _beat(self) -> None:
        self._news.wait(self._send_heartbeat())
        self._news.clear()

    def _send_heartbeat(self) -> float:
        """Send a heartbeat; return the seconds until the next."""
        if not self._messages:  # later a call that fails is logged anyway
            self._log_change(f"waiting for {self._hud.url} to answer")
        try:
            if time.monotonic() >= self._look_for_errors:
                self._look_for_errors = time.monotonic() + _ERRORS_S
                self._facts = {**self._facts, "gpu_errors": machine.gpu_errors()}
            facts = {**self._facts, "ceilings": ceilings_of(self.accelerators.values(), self.data)}
            answer = self._hud.beat(facts, self.labels, self._devices())
        except Refused as error:
            is_of_hud = error.problem.get("status") == error.status  # and not of a proxy before it
            if is_of_hud and isinstance(error, KeyRefused):
                return self._end_as_detached(str(error))
            self._log_change(f"{'the hud' if is_of_hud else 'a proxy'} refuses this host: {error}")
            return _REFUSED_S
        except (Unreachable, Untrusted) as error:
            self._log_change(str(error))
            return random.uniform(0.5, 1.0) * _UNREACHABLE_S  # noqa: S311 - spreads the hosts
        self._answer = answer
        if answer.get("state") == "detached":
            return self._end_as_detached("an operator has detached it")
        note = f" ({answer['note']})" if answer.get("note") else ""
        self._log_change(
            f"{self.attachment.name} is {answer.get('state', 'online')}{note} at {self._hud.url}"
            + _redis_problem(str(answer.get("redis_url", "")))
        )
        return float(answer.get("beat_s") or _FIRST_BEAT_S)

    def _end_as_detached(self, why: str) -> float:
        name, url = self.attachment.name, self._hud.url
        self._log_change(f"{name} is no host of {url} any more ({why}): it ends; attach with a new token")
        self._detached = True
        return 0.0

    def _log_change(self, text: str, *, about: str = "hud") -> None:
        """Log a message unless it is the same as the last about its subject; '' says that all is well."""
        if text and text != self._messages.get(about):
            logger.info("%s", text)
        self._messages[about] = text

    def _supervise(self) -> None:
        """Start missing workers, end idle ones whose configuration has changed, kill strays."""
        configs = self._worker_configs()
        for name, worker in list(self._workers.items()):
            code = worker.process.poll()
            if code is not None:
                self._look_for_strays = 0.0
                self._replace(name, worker, code)
            elif configs and configs.get(name) != worker.config and not _is_busy(worker):
                worker.process.terminate()
        for name, config in configs.items():
            if name not in self._workers:
                self._workers[name] = self._start(config, pause_s=_LOOK_S)
        self._kill_strays()
        time.sleep(_LOOK_S)

    def _worker_configs(self) -> dict[str, WorkerConfig]:
        """Return the configuration of each worker by accelerator; empty until the HUD has answered."""
        numbers = self._answer.get("accelerators", {}) if self._known else {}
        return {
            name: WorkerConfig(
                host=self.attachment,
                accelerator=self.accelerators[name],
                number=int(number),
                queue=str(self._answer["queues"][name]),
                redis_url=str(self._answer["redis_url"]),
                data=str(self.data),
                pythons=self.pythons,
            )
            for name, number in numbers.items()
            if name in self.accelerators
        }

    def _start(self, config: WorkerConfig, *, pause_s: float) -> _Worker:
        slot = list(self.accelerators).index(config.accelerator.name)
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.host.worker", str(config.save())],
            cwd=machine.REPOSITORY,
            env={**os.environ, **account.of_slot(slot, self.data, len(self.accelerators))},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=dying_with_me(),  # noqa: PLW1509 - one system call, loaded before
        )
        logger.info("worker of %s is process %s", config.accelerator.name, process.pid)
        return _Worker(config, process, time.monotonic(), pause_s)

    def _replace(self, name: str, worker: _Worker, code: int) -> None:
        """Start the successor of a dead worker, with a growing pause if it ended soon."""
        age_s = time.monotonic() - worker.started
        if age_s > _SHORT_LIFE_S:
            worker.pause_s = _LOOK_S
        elif age_s < worker.pause_s:
            return
        logger.warning("worker of %s ended with %s after %.0f s", name, code, age_s)
        config = self._worker_configs().get(name, worker.config)
        self._workers[name] = self._start(config, pause_s=min(2 * worker.pause_s, _LONGEST_RESTART_S))

    def _kill_strays(self) -> None:
        """Kill what dead workers left: it has become our child. Our own helpers share our session. To look
        through /proc takes milliseconds, so an agent whose workers live does it rarely."""
        if time.monotonic() < self._look_for_strays:
            return
        workers = [worker.process.pid for worker in self._workers.values()]
        strays = [process for process in below_me(besides=workers) if process.session != os.getsid(0)]
        self._look_for_strays = 0.0 if strays else time.monotonic() + _STRAYS_S
        for process in strays:
            if not process.dead:
                logger.warning("killed process %s, which a dead worker had left behind", process.pid)
                send([process.pid], signal.SIGKILL)
            elif process.parent == os.getpid():
                reap(process.pid)

    def _end_workers(self) -> None:
        """Send SIGTERM, so that each worker gives its task back and ends; SIGKILL after STOP_S."""
        processes = [worker.process for worker in self._workers.values()]
        for process in processes:
            process.terminate()
        until = time.monotonic() + STOP_S
        for process in processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:  # noqa: PERF203 - few processes
                process.kill()
                process.wait()
        self._workers.clear()
        send([process.pid for process in below_me() if not process.dead], signal.SIGKILL)

    def _deliver(self) -> None:
        """Deliver leftover folders, and keep their leases while the HUD does not take them.

        Of a task that was killed with its worker only the log is sent: its lease ends by itself, then another
        host may have it.
        """
        for folder in left_over(self.data):
            try:
                if folder.outcome is not None:
                    folder.deliver(self._hud)
                else:
                    self._hud.log(folder.lease, 0, b"")  # an ended lease is known without a log too
                    folder.send_log(self._hud)
            except LeaseBroken as error:  # noqa: PERF203 - few folders, each delivered or kept by itself
                folder.refuse(str(error))
            except (HudError, OSError) as error:
                self._log_change(f"task {folder.lease.task} waits in the spool: {error}")
                with contextlib.suppress(HudError):
                    self._hud.progress(folder.lease, {"phase": "deliver"})
            except Exception as error:  # noqa: BLE001 - a spoilt folder must not hold up others
                self._log_change(f"task {folder.lease.task} cannot be delivered: {error!r}")
            finally:
                folder.release()
        time.sleep(_DELIVERY_S)


def _redis_problem(url: str) -> str:
    """Return a message if the Redis of the HUD is a socket of another machine, or ''."""
    path = Path(urlsplit(url).path)
    if not url.startswith("unix:") or path.exists():
        return ""
    return f", but its Redis is a socket of its own machine ({path}): there REDIS_URL must name a server"


def _is_busy(worker: _Worker) -> bool:
    try:
        holder = locks.holder(locks.default_folder(), worker.config.accelerator.lock)
    except OSError:  # a heartbeat has said so
        return True
    return holder is not None and holder.pid == worker.process.pid


def _lacking(pythons: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return, by suite, why it cannot run here although there is torch."""
    usable = [facts for facts in pythons.values() if "error" not in facts]
    return {
        suite.name: f"no interpreter has {' and '.join(suite.packages)}"
        for suite in SUITES.values()
        if usable and all(set(suite.packages) - set(facts.get("modules", suite.packages)) for facts in usable)
    }
