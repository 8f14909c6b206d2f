"""The HTTP client of a host: register, beat, claim, report, deliver, finish.

Standard library only. Every call has a time limit and may be repeated: the HUD answers a repetition the
same. An error answer raises one of the exceptions below, or of `runner.client.connection`.
"""

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import quote

from runner.client.connection import NO_HEADERS, Connection, KeyRefused, Refused
from runner.schema.compilations import InductorValue
from runner.schema.protocol import PROTOCOL, Fingerprint
from runner.schema.records import Json
from runner.schema.tasks import CACHES, Caches, TaskOutcome


class LeaseBroken(Refused):
    """The task is no longer leased to this host; nothing can be written for it any more."""


class WrongOffset(Refused):
    """The log ends at the problem's `size` in bytes, not where the piece begins."""


@dataclass(frozen=True)
class Lease:
    """One task that this host holds, fenced by `token`."""

    task: str
    token: str
    attempt: int
    run: int
    spec: Mapping[str, Json]
    lease_s: float
    beat_s: float
    python: str = "default"
    base_python: str = ""  # the baseline of a pair; '' if the task is no pair
    process: int = 0  # the number of the process among those of its task; of the pair
    caches: Caches = "fresh"
    pinned: Mapping[str, Json] = field(default_factory=dict)  # configurations by slot
    rounds: int = 1  # of pinned processes in a pair at equal choices
    new_options: Mapping[str, InductorValue] = field(default_factory=dict)  # of `python` in a pair


class Hud(Connection):
    """The API of the HUD at an address, for one host."""

    def register(self, token: str, name: str) -> dict[str, Json]:
        """Spend a one-time token; return {"host", "name", "key", "redis_url"}."""
        return self._call("POST", "hosts/register", {"token": token, "name": name})

    def beat(
        self, facts: Mapping[str, Json], labels: Mapping[str, str], devices: Sequence[Mapping[str, Json]]
    ) -> dict[str, Json]:
        """Send a heartbeat; return this host's accelerators, queues and state."""
        said = {"facts": facts, "labels": labels, "devices": devices}
        return self._call("POST", "hosts/beat", {"protocol": PROTOCOL, "sent_at": time.time(), **said})

    def claim(
        self, accelerator: int, nonce: str, fingerprints: Mapping[str, Fingerprint] = MappingProxyType({})
    ) -> Lease | None:
        """Return the next task for an accelerator, or None. The same nonce gets the same task again.

        `fingerprints` are those of the host's interpreters; a task of a run that has begun with another one
        is ended by the HUD, and not returned.
        """
        asked = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": nonce}
        asked["fingerprints"] = {name: asdict(one) for name, one in fingerprints.items()}
        answer = self._call("POST", "tasks/claim", asked)
        if not answer:
            return None
        values = {each.name: answer[each.name] for each in fields(Lease) if answer.get(each.name)}
        values["task"] = str(uuid.UUID(values["task"]))  # it becomes the name of a folder
        if values.get("caches") not in CACHES:
            values["caches"] = "fresh"
        return Lease(**values)

    def progress(self, lease: Lease, event: Mapping[str, Json]) -> bool:
        """Report progress, which extends the lease; return whether to cancel the task. Raise LeaseBroken."""
        report: dict[str, Json] = {name: _count(event.get(name)) for name in ("done", "total")}
        report |= {"phase": str(event.get("phase", ""))[:40], "label": str(event.get("label", ""))[:200]}
        answer = self._call("POST", f"tasks/{lease.task}/progress", report, lease=lease)
        return bool(answer.get("cancel"))

    def results(self, lease: Lease, lines: bytes) -> dict[str, Json]:
        """Deliver v3 records as JSON lines; return the receipt. Raise LeaseBroken or Refused."""
        headers = {"Content-Type": "application/x-ndjson"}
        return self._call("PUT", f"tasks/{lease.task}/results", lines, lease=lease, headers=headers)

    def log(self, lease: Lease, offset: int, piece: bytes) -> int:
        """Append a piece of the log; return the size of the log there. Raise WrongOffset or LeaseBroken."""
        path = f"tasks/{lease.task}/log?offset={offset}"
        return int(self._call("PUT", path, piece, lease=lease)["size"])

    def artifact(self, lease: Lease, kind: str, content: bytes) -> None:
        """Deliver an artifact of the task. Raise LeaseBroken or Refused."""
        path = f"tasks/{lease.task}/artifacts/{quote(kind, safe='')}"
        headers = {"X-Sha256": hashlib.sha256(content).hexdigest()}
        self._call("PUT", path, content, lease=lease, headers=headers)

    def overlay(self, lease: Lease, commit: str) -> bytes:
        """Return the tar of the Python files of a commit. Raise Refused."""
        return self.send(
            "GET", f"/api/v1/tasks/{lease.task}/overlay/{commit}", headers={"X-Task-Token": lease.token}
        )

    def finish(self, lease: Lease, end: TaskOutcome) -> str:
        """End the task; return its new state. Raise LeaseBroken."""
        said: dict[str, Json] = {"status": end.status, "code": end.code[:100], "reason": end.reason[:1000]}
        said["seconds"] = round(end.seconds, 3)
        return str(self._call("POST", f"tasks/{lease.task}/finish", said, lease=lease).get("state", ""))

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Json],
        *,
        lease: Lease | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> dict[str, Json]:
        headers = {**headers, **({"X-Task-Token": lease.token} if lease else {})}
        try:
            return self.call(method, f"/api/v1/{path}", body, headers=headers)
        except KeyRefused:
            raise
        except Refused as error:
            kind = {"lease_broken": LeaseBroken, "log_offset": WrongOffset}.get(error.problem.get("code", ""))
            if lease and error.status == HTTPStatus.NOT_FOUND and error.problem:
                kind = LeaseBroken  # a task of another host does not exist for this one
            if kind is None:
                raise
            raise kind(error.status, error.detail, error.problem) from error


def _count(value: Json) -> int:
    return min(max(0, value), 10**9) if isinstance(value, int) else 0
