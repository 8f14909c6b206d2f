"""Records for the expected metrics that a task did not measure, with the status of its end. PyTorch's harness
leaves such rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from runner.schema.metrics import metric_info
from runner.schema.records import STATUSES, SUCCESS, Json
from runner.schema.suite import Expected, TaskSpec, knobs_key

CANCELLED = "cancelled"  # the end of a task that a person stopped; no status of a record
_NEVER_RAN = {"unsupported", "not_run"}  # one record says it of a whole experiment


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended. `status` is one of `STATUSES`, or the text that `should_stop` returned; records have
    the v3 shape (`records.py`)."""

    status: str
    code: str = ""
    reason: str = ""
    seconds: float = 0.0
    exit_code: int | None = None  # None where a signal ended the child, or it never started
    signal: str = ""  # SIGSEGV, …
    leftover: tuple[int, ...] = ()  # pids that not even SIGKILL ended: the accelerator is not free
    records: Sequence[dict[str, Json]] = field(default=(), repr=False)
    unexpected: Sequence[dict[str, Json]] = field(default=(), repr=False)  # of another task, and marked

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TaskOutcome:
        """Read status, code and reason; what is not there is ''."""
        status, code, reason = (str(value.get(name) or "") for name in ("status", "code", "reason"))
        return cls(status, code, reason)

    def to_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in ("status", "code", "reason", "seconds")}


@dataclass(frozen=True)
class TaskResult:
    """A task with its outcome and its records, as outputs, tables and upstream files get it."""

    task: TaskSpec
    outcome: TaskOutcome
    folder: Path  # holds its log if it failed, and its artifacts
    records: list[dict[str, Json]]
    key: str = ""  # of its job
    unexpected: Sequence[dict[str, Json]] = ()  # kept in our own files only

    @property
    def name(self) -> str:
        """Return the key of the job, else the fingerprint of the task."""
        return self.key or self.task.fingerprint()

    def artifacts(self) -> list[Path]:
        """Return the artifacts that are in the task's folder now."""
        return [path for path in (self.folder / "artifacts").rglob("*") if path.is_file()]


def missing(
    task: TaskSpec,
    end: TaskOutcome,
    records: Sequence[Mapping[str, Json]],
    experiments: Sequence[Expected],
    *,
    place: Callable[[], dict[str, Json]] = dict,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Json]]:
    """Return v3 records for the metrics of these experiments that the records lack. Their host is that of the
    records, or without any `place`: arch, runners, dependencies and timestamp. `variables` were the task's
    environment."""
    if end.status == CANCELLED:
        end = TaskOutcome("not_run", CANCELLED, "the task was cancelled")
    if end.status in SUCCESS or end.status not in STATUSES:
        return []
    have: dict[_Key, set[str]] = {}
    for record in records:
        have.setdefault(_key_of(record), set()).add(record["metric"]["name"])
    facts = task.compilation_facts(variables)
    found = []
    like = records[0] if records else None
    for one in experiments:
        there = have.get((one.case, one.backend, knobs_key(one.knobs)), set())
        if there and end.status in _NEVER_RAN and end.code != CANCELLED:
            continue
        for metric in one.metrics:
            if metric not in there:
                like = like or _like(task, place())
                found.append(_record(like, one, metric, end, facts))
    return found


_Key = tuple[str, str, str]  # case, backend, knobs: what tells the experiments of one task apart


def _key_of(record: Mapping[str, Json]) -> _Key:
    model, info = record["model"], record["benchmark"].get("extra_info") or {}
    return model["name"], model.get("backend") or "", knobs_key(info.get("knobs") or {})


def _like(task: TaskSpec, place: dict[str, Json]) -> dict[str, Json]:
    shared = {"device": task.device, "arch": place.pop("arch", ""), "dynamic": task.dynamic}
    return {
        "benchmark": {
            "name": f"Compiler HUD {task.suite}",
            "mode": task.mode,
            "dtype": task.dtype,
            "extra_info": {name: value for name, value in shared.items() if value != ""},
        },
        "model": {"type": "benchmark", "origins": [task.suite]},
        "runners": [],
        "dependencies": {},
        **place,
    }


def _record(
    like: Mapping[str, Json], one: Expected, metric: str, end: TaskOutcome, facts: Mapping[str, Json]
) -> dict[str, Json]:
    benchmark, info = like["benchmark"], metric_info(metric)
    said = {"unit": info.unit, "direction": info.direction, **facts}
    said |= {"status": end.status, "code": end.code, "reason": end.reason}
    extra = {**benchmark["extra_info"], "device": one.device, "knobs": dict(one.knobs)}
    return {
        **like,
        "benchmark": {**benchmark, "extra_info": extra},
        "model": {**like["model"], "name": one.case, "backend": one.backend},
        "metric": {"name": metric, "extra_info": said},
    }
