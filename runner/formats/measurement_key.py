"""What a system's function is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from runner.formats.errors import Fault
from runner.formats.parameters import Parameters
from runner.formats.unicode import text
from runner.records import Record

# Upstream's names of the suites that are called otherwise here.
_SUITES = {"timm_models": "timm"}
DEVICES = frozenset({"cuda", "cpu", "rocm", "xpu", "mps", "hpu"})


class WrongRecord(ValueError):
    """A record that contradicts itself or its shape; `fault` has its place within the record."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


_Text = Annotated[str, msgspec.Meta(max_length=200)]


class ExportedRun(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The run that a measurement of our export belongs to."""

    uid: UUID
    at: str  # ISO 8601: its place in every series
    at_source: Literal["commit", "run", "upload"]
    source: _Text = ""
    external_id: _Text | None = None
    host: _Text = ""
    commit: _Text = ""
    branch: _Text = ""
    repo: _Text = ""
    environment: _Text = ""  # of a run in pairs
    base_environment: _Text = ""


class Exported(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What our store knew of a measurement that it exported, as it stood there."""

    suite: str
    case: str
    metric: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool
    process: Annotated[int, msgspec.Meta(ge=0, lt=2**15)] = 0
    run: ExportedRun | None = None


@dataclass
class About:
    """What a record measures, in the words of this project. '' where nobody said it."""

    suite: str
    case: str
    metric: str
    mode: str = ""
    dtype: str = ""
    backend: str = ""
    device: str = ""
    arch: str = ""  # key of the arch
    device_name: str = ""  # what the arch was made of
    knobs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False
    target_arch: str | None = None
    zero_means: str = ""  # the status that a value of 0 stands for, '' where it is a value
    scale: float = 1.0  # the registry's unit over the record's
    warning: str = ""  # for the receipt: what was taken without being said
    exported: Exported | None = None


@dataclass(frozen=True)
class Said:
    """A record with the upload's parameters; what the record says wins over a parameter."""

    record: Record
    given: Parameters

    @property
    def info(self) -> dict[str, Any]:
        return self.record.benchmark.extra_info or {}

    @property
    def metric(self) -> str:
        assert self.record.metric is not None
        return self.record.metric.name

    @property
    def model(self) -> str:
        return self.record.model.name

    @property
    def mode(self) -> str:
        return self.record.benchmark.mode or self.given.mode

    @property
    def dtype(self) -> str:
        return self.record.benchmark.dtype or self.given.dtype

    @property
    def backend(self) -> str:
        return self.record.model.backend or self.given.backend

    @property
    def device(self) -> str:
        """Kind of device. Upstream's convention may have it in the runner's name."""
        named = text(self.runner.get("name"))
        return text(self.info.get("device")) or (named if named in DEVICES else "") or self.given.device

    @property
    def device_name(self) -> str:
        """Of the GPU, or of the CPU that was measured; else what is known of the arch."""
        return text(self.info.get("arch")) or text(self.runner.get("type")) or self.given.arch

    @property
    def runner(self) -> dict[str, Any]:
        return first_runner(self.record)

    @property
    def origin(self) -> str:
        """The suite that the model comes from."""
        return suite_name((self.record.model.origins or [""])[0])


def first_runner(record: Record) -> dict[str, Any]:
    """What the record says first of where it ran, {} for nothing."""
    runners = record.runners if isinstance(record.runners, list) else []
    return next((entry for entry in runners if isinstance(entry, dict)), {})


def suite_name(name: str) -> str:
    return _SUITES.get(name, name)


def batch_size(value: Any) -> int | None:
    """A batch size as a record has it; None for one that was not asked for or is no size."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
