"""A measurement between the bytes of a file and its row, and the run it belongs to."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from runner.formats.errors import WrongRecord
from runner.formats.scalars import invisible_in, text
from runner.schema.compilations import Compiled
from runner.schema.devices import DEVICE_KINDS, arch_key, device_kind, is_named
from runner.schema.records import Environment, Record, first_runner, object_of
from runner.schema.suite import knobs_key

_SUITES = {"timm_models": "timm"}  # suites that PyTorch's scripts call otherwise
MODES = {"eval": "inference", "train": "training"}  # as torchbench and PyTorch/XLA call them
_VERSION = re.compile(r"\d+\.\d")
TORCH_NAMES = ("torch", "pytorch", "torch_version", "pytorch_version")  # of its version among settings
ZERO_CODE = "value 0 written for a failure"

Identity = tuple[str, str, str, str, str, str, str, str, bool]  # an Experiment's columns in their order


@dataclass(frozen=True)
class RunKey:
    """The identity of a run: an upload makes one run for each key, and its earliest time is the run's."""

    source: str
    external_id: str | None
    host: str
    commit: str
    branch: str
    repo: str
    order_time: datetime | None = field(compare=False)
    order_time_source: str = field(compare=False)
    uid: str | None = None  # of the run that our own export names
    interpreter: str = ""  # of an A/B run: the names of both interpreters
    base_interpreter: str = ""
    point_time: datetime | None = field(default=None, compare=False)  # a record's own place; None: its run's

    def __post_init__(self) -> None:
        """Raise WrongRecord for a name with an invisible character."""
        names = (self.source, self.external_id or "", self.host, self.commit, self.branch, self.repo)
        if character := invisible_in("".join((*names, self.interpreter, self.base_interpreter))):
            raise WrongRecord("", f"a name of its run or host holds the invisible character {character}")


@dataclass(slots=True)
class ParsedMeasurement:
    """One metric of one experiment. A format's `describe` completes it by the conventions of its system; a
    field that nothing fills is ''."""

    case: str
    metric: str
    run: RunKey
    environment: Environment
    suite: str = ""
    mode: str = ""
    dtype: str = ""
    backend: str = ""
    device: str = ""
    device_name: str = ""  # from which `arch` is made
    arch: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    knobs_key: str = "{}"  # the knobs as JSON in their stored form
    dynamic: bool = False
    samples: list[float] = field(default_factory=list)
    status: str = ""
    code: str | None = None
    target: float | None = None
    target_arch: str | None = None
    message: str | None = None  # a warning, or the reason of the status
    quality: str | None = None  # why its value may not decide
    moved_bytes: Any = None  # that each call must move, like `clock` as the record says
    clock: str = ""
    repeat: int = 0  # like `side`, `draw` and `compilation` as `Measurement` has them
    side: int = 0
    draw: int | None = None
    compilation: int | None = None
    compiled: Compiled | None = None  # of one measurement of the compilation
    is_compiled_impossible: bool = False  # a kernel of it takes less time than its bytes
    pointer: str = ""
    line: int | None = None
    warning: str = ""  # for the receipt
    unsaid: tuple[str, ...] = ()  # parameters that would tell this series from others, and nobody gave
    is_appended: bool = False  # to a file of several runs: another value of the same experiment is a repeat
    unit: str = ""  # of samples and target, like `direction` as the record says it; '': the metric's
    direction: str = ""

    @property
    def identity(self) -> Identity:
        return (
            self.suite, self.case, self.knobs_key,
            self.mode, self.dtype, self.backend, self.device, self.arch, self.dynamic,
        )  # fmt: skip

    def zero_is(self, status: str) -> None:
        """Take a value of 0 for this status, as scripts write it that have no value."""
        if self.samples and not any(self.samples):
            self.samples, self.status, self.code = [], status, self.code or ZERO_CODE


def warn_of_backend(measurement: ParsedMeasurement, record: Record) -> None:
    """Warn where nothing says the backend."""
    if not measurement.backend:
        measurement.warning = (
            f"nothing says whether {record.benchmark.name} ran eager or compiled: give it with the upload,"
            " ?backend=eager or ?backend=inductor"
        )


def torch_of(record: Record) -> str:
    """Return the version of torch that a record says among its settings; '' if none."""
    info = info_of(record)
    versions = (text(info.get(name)) for name in TORCH_NAMES if isinstance(info.get(name), str))
    return next(filter(_VERSION.match, versions), "")


def info_of(record: Record) -> dict[str, Any]:
    return record.benchmark.extra_info or {}


def origin_of(record: Record) -> str:
    """Return the suite that the model comes from."""
    return suite_name((record.model.origins or [""])[0])


def suite_name(name: str) -> str:
    return _SUITES.get(name, name)


def knobs_of(record: Record) -> dict[str, Any]:
    """Return a copy of the knobs that our own runner and some formats write apart."""
    return dict(object_of(info_of(record).get("knobs")))


def batch_size(value: Any) -> int | None:
    """Return a batch size, None for one that was not asked for or is no size."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def device_of(record: Record) -> str:
    """Return the kind of device. Some scripts write it as the runner's name, others the device's name in its
    place."""
    name = text(first_runner(record).get("name"))
    return device_kind(text(info_of(record).get("device"))) or (name if name in DEVICE_KINDS else "")


def device_name_of(record: Record) -> str:
    """Return the name of the GPU, or of the CPU that was measured: the first that tells the chip. A runner's
    type may be a label that tells none; its GPU was not measured where the device is the CPU."""
    device, runner = text(info_of(record).get("device")), first_runner(record)
    names = [text(info_of(record).get("arch")), text(runner.get("type"))]
    is_kind = device_kind(device) == device.strip().lower().partition(":")[0]
    names.append("" if is_kind else device)
    names.append("" if device_kind(device) == "cpu" else text(runner.get("gpu_info")))
    named = (name for name in names if is_named(arch_key(name)))
    return next(named, next(filter(arch_key, names), ""))


def stored_knobs(knobs: dict[str, Any]) -> str:
    """Return knobs as JSON in their stored form."""
    return knobs_key({name: _bounded(value) for name, value in knobs.items()})


def _bounded(value: Any) -> Any:
    """Return a number beyond 64 bits as text, since JSON readers disagree about it, and -0.0 as 0.0, which
    equals it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    return str(value) if abs(value) >= 2**63 else value + 0
