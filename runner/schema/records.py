"""The record: one metric of one experiment, as one JSON object of PyTorch's v3 benchmark shape.

This is the only language between the runner and the web application, and the shape PyTorch's own
scripts write (wiki page "How to integrate with PyTorch OSS benchmark database"). Standard library
only, Python 3.10 syntax: the child runs in interpreters that belong to somebody else.

Where our runner says more than the v3 shape has fields for, it says it here:

* ``benchmark.extra_info``: ``device`` (cuda, cpu), ``arch`` (device name), ``dynamic``, ``knobs`` (object);
* ``metric.extra_info``: ``unit``, ``direction``, ``clock``, ``status`` (one of `STATUSES`), ``code``
  (the upstream system's own word for it), ``reason``, ``target_arch``, ``spread``, and ``unexpected``: why
  the record does not belong to the task that wrote it;
* ``dependencies``: ``{"torch": {"version", "sha"}, "triton": {"version"}, ...}``;
* ``runners[0]``: the host; its ``extra_info`` holds the other facts of `Environment`, and ``pair`` where
  two environments were measured in turn: ``{"number", "side", "base", "new"}``, which pair of its run from
  0, ``base`` or ``new``, and the names of both environments. A process with forced choices of the autotuner
  also has ``draw``, the side whose free process of this pair drew them, ``round``, which of several such
  processes from 0, ``repeated`` (true) where the first try was too far from the others, and ``choices``
  (unknown) where that free process did not tell them. ``process`` is there in the place of ``pair`` where
  the same was repeated in fresh processes: which of them, from 1 for the second.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Json = Any  # what json.loads returns; JSON has no narrower type in Python

# better than the card can be; its quality too: the number stays, and decides nothing
IMPOSSIBLE = "impossible"
# Outcome of a case inside a run, in the order in which a page lists them.
STATUSES = (
    *("ok", "wrong", "cannot_tell", "oom", "crashed", "timed_out", "failed", "unsupported", "not_run"),
    IMPOSSIBLE,
)
UNEXPECTED = "unexpected"  # key of metric.extra_info
_FACTS = ("cuda", "driver", "gpu_uuid", "python", "compiler", "os")  # texts in a runner's extra_info
SUCCESS = frozenset({"ok", "cannot_tell"})  # statuses of what has been measured, and no failure
NEVER_RAN = frozenset({"not_run", "unsupported"})  # neither a failure nor a value
# Why a number may not decide, the worst first. It stays as it was measured, and is in no geometric mean,
# level or verdict. Files in other systems' formats have none.
PARTIAL = "partial"
BUSY_CPU = "busy_cpu"
QUALITIES: Mapping[str, str] = MappingProxyType({
    IMPOSSIBLE: "the card cannot move the bytes in this time",
    PARTIAL: "its file is not whole: it ends too early, or a column stands twice",
    BUSY_CPU: "other processes used the processors that it was measured on",
    "quarantined": "its card had drifted from its own canary",
    "throttled": "the card was slowed while it was measured",
    "imprecise": "the ratio is not known to ±10 % (one standard error)",
    "disagrees": "ratio of medians and median of ratios are more than 3 standard errors apart",
})  # fmt: skip
MOST_ERROR = 0.10  # standard error of a ratio that may decide
MOST_APART = 3.0  # standard errors between both estimates of a ratio


@dataclass
class Benchmark:
    name: str
    mode: str | None = None
    dtype: str | None = None
    extra_info: dict[str, Json] | None = None


@dataclass
class Model:
    name: str
    type: str | None = None
    backend: str | None = None
    origins: list[str] | None = None
    extra_info: dict[str, Json] | None = None


@dataclass
class Metric:
    """`benchmark_values` and `target_value` are numbers, or strings that hold exactly a number."""

    name: str
    benchmark_values: list[float | str] | None = None
    target_value: float | str | None = None
    extra_info: dict[str, Json] | None = None
    unit: Json = None  # where PyTorch's operator_benchmark writes it; ours stands in `extra_info`


@dataclass
class Record:
    benchmark: Benchmark
    model: Model
    metric: Metric
    runners: Json = None  # a list of objects; what else stands there is ignored
    dependencies: Json = None
    inputs: Json = None
    shape: Json = None  # Helion's: the shape of each of the metric's values
    timestamp: float | None = None  # s since 1970, when the run was made
    name: str | None = None
    repo: str | None = None
    head_branch: str | None = None
    head_sha: str | None = None
    workflow_id: int | str | None = None
    job_id: int | str | None = None
    run_attempt: int | str | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the JSON object without fields that are None."""
        content: dict[str, Json] = _without_none(dataclasses.asdict(self))
        return content


def _without_none(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def object_of(value: Json) -> dict[str, Json]:
    """Return a JSON object as it is, {} for anything else."""
    return value if isinstance(value, dict) else {}


def first_runner(record: Record) -> dict[str, Json]:
    """Return what the record says first of where it ran, {} for nothing."""
    runners = record.runners if isinstance(record.runners, list) else []
    return next((entry for entry in runners if isinstance(entry, dict)), {})


def runner_facts(record: Mapping[str, Json]) -> dict[str, Json]:
    """Return `runners[0].extra_info` of our own runner's record, {} if it says nothing."""
    extra: dict[str, Json] = (record.get("runners") or [{}])[0].get("extra_info") or {}
    return extra


def with_runner_fact(record: Mapping[str, Json], name: str, value: Json) -> dict[str, Json]:
    """Return the record with one more fact in `runners[0].extra_info`."""
    runner = (record.get("runners") or [{}])[0]
    return {**record, "runners": [{**runner, "extra_info": {**runner_facts(record), name: value}}]}


def worst_quality(codes: Iterable[str | None]) -> str:
    """Return the worst of these codes, '' without any; what is unknown counts as the least."""
    order = {code: rank for rank, code in enumerate(QUALITIES)}
    return min(filter(None, codes), key=lambda code: order.get(code, len(order)), default="")


def quality_words(code: str | None) -> str:
    """Return a code in words; '' for a value that may decide."""
    return QUALITIES.get(code, code) if code else ""


@dataclass(frozen=True)
class MeasurementWarning:
    """A warning beside a value in words, and the code of its quality if it may not decide."""

    text: str = ""
    quality: str = ""

    def facts(self) -> dict[str, str]:
        """Return what a record says of it."""
        named = {"warning": self.text, "quality": self.quality}
        return {name: text for name, text in named.items() if text}


NO_WARNING = MeasurementWarning()


def joined_warnings(warnings: Iterable[MeasurementWarning]) -> MeasurementWarning:
    """Return all texts, each once, and the worst quality."""
    several = list(warnings)
    texts = dict.fromkeys(warning.text for warning in several if warning.text)
    return MeasurementWarning("; ".join(texts), worst_quality(warning.quality for warning in several))


# The packages of an environment's class: what a baseline may be compared with (docs/measuring.md)
CLASS_PACKAGES = ("transformers", "timm", "torchbenchmark", "torchvision", "numpy")


@dataclass
class Environment:
    """The environment of a measurement, with versions as the packages print them; '' for absent parts."""

    torch: str = ""
    torch_git: str = ""
    triton: str = ""
    cuda: str = ""
    driver: str = ""
    gpu: str = ""  # as torch.cuda.get_device_name() says it
    gpu_uuid: str = ""
    gpu_memory_bytes: int = 0
    python: str = ""
    cpu: str = ""
    cpu_count: int = 0
    compiler: str = ""  # C++ compiler that inductor uses on the CPU
    os: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # transformers, timm, numpy, torch_xla, ...
    variables: dict[str, str] = field(default_factory=dict)  # environment variables that change results

    def fingerprint(self) -> str:
        """Return the identity of this environment: 16 hex digits over every field."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_record_fields(self, host: str, runner_version: str = "") -> dict[str, Json]:
        """Return `runners` and `dependencies` of a v3 record; an export says no version of the runner."""
        versions = {"torch": {"version": self.torch, "sha": self.torch_git}}
        versions["triton"] = {"version": self.triton}
        versions.update({name: {"version": version} for name, version in self.packages.items()})
        facts = {name: getattr(self, name) for name in (*_FACTS, "gpu_memory_bytes", "variables")}
        facts["runner"] = runner_version
        runner = {
            "name": host,
            "type": self.gpu or self.cpu,
            "cpu_info": self.cpu,
            "cpu_count": self.cpu_count,
            "gpu_info": self.gpu,
            "extra_info": {key: value for key, value in facts.items() if value},
        }
        known = {name: entry for name, entry in versions.items() if entry["version"]}
        return {"runners": [runner], "dependencies": known}

    @classmethod
    def from_record(cls, record: Record) -> Environment:
        """Return the environment in a record; missing parts are empty."""
        runner, dependencies = first_runner(record), object_of(record.dependencies)
        facts = object_of(runner.get("extra_info"))
        versions = {name: entry for name, entry in dependencies.items() if isinstance(entry, dict)}
        torch = versions.pop("torch", {})
        triton = versions.pop("triton", {})
        return cls(
            torch=_text(torch.get("version")),
            torch_git=_text(torch.get("sha")),
            triton=_text(triton.get("version")),
            gpu=_text(runner.get("gpu_info")),
            gpu_memory_bytes=_integer(facts.get("gpu_memory_bytes")),
            cpu=_text(runner.get("cpu_info")),
            cpu_count=_integer(runner.get("cpu_count")),
            packages={name: _text(entry.get("version")) for name, entry in versions.items()},
            variables={str(key): _text(value) for key, value in object_of(facts.get("variables")).items()},
            **{name: _text(facts.get(name)) for name in _FACTS},
        )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _integer(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
