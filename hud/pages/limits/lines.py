"""The lines of the page's tables, and the measured ceilings of each arch. Times are in µs of a step."""

from dataclasses import dataclass, field
from itertools import accumulate

from hud.judging.choices import Regret
from hud.models import Experiment, Stream
from hud.points.targets import ceiling_readings
from runner.schema.statistics import median

_SAME_PEAK = {"float16": "bfloat16"}  # the same units multiply both


@dataclass(frozen=True)
class Ceilings:
    """What an arch reaches: medians of the latest seven readings."""

    copy_gbps: float | None = None
    read_gbps: float | None = None
    matmul_tflops: dict[str, float] = field(default_factory=dict)  # by dtype

    @property
    def words(self) -> str:
        parts = [f"copy {self.copy_gbps:,.0f}" if self.copy_gbps else ""]
        parts.append(f"read {self.read_gbps:,.0f}" if self.read_gbps else "")
        shown = " · ".join(filter(None, parts)) + " GB/s" if any(parts) else ""
        products = [f"{dtype} {value:,.0f} TFLOP/s" for dtype, value in sorted(self.matmul_tflops.items())]
        return " · ".join(filter(None, (shown, *products)))

    def peak_tflops(self, dtype: str) -> float | None:
        return self.matmul_tflops.get(dtype) or self.matmul_tflops.get(_SAME_PEAK.get(dtype, ""))


@dataclass(slots=True)
class KernelLine:
    """A kernel of an experiment; times in µs of a step."""

    experiment_id: int
    run: int
    slot: str
    name: str
    kind: str
    origins: list[str]
    calls: float
    time_us: float
    floor_us: float  # at the ceiling, at most its own: a kernel that only reads may beat a copy
    bound: str  # memory or compute
    experiment: Experiment = field(init=False)

    @property
    def lost_us(self) -> float:
        return self.time_us - self.floor_us

    @property
    def share_of_ceiling(self) -> float | None:
        return self.floor_us / self.time_us if self.time_us else None

    @property
    def operators(self) -> str:
        names = [origin.rpartition("aten.")[2] for origin in self.origins]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    @property
    def side(self) -> str:
        return f"run:{self.run}/experiment:{self.experiment_id}"


@dataclass(slots=True)
class ModelLine:
    """The kernels of one experiment together; times in µs of a step."""

    experiment_id: int
    run: int
    busy_us: float
    gaps_us: float
    floor_us: float  # of kernels with a formula
    covered_us: float  # the time of those
    experiment: Experiment = field(init=False)

    @property
    def lost_us(self) -> float:
        return self.covered_us - self.floor_us

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Return tone, start and length of each part of the line's bar."""
        nameless_us = max(self.busy_us - self.covered_us, 0.0)  # of kernels without a formula
        lengths_us = self.floor_us, self.lost_us, nameless_us, self.gaps_us
        starts_us = accumulate(lengths_us, initial=0.0)
        return list(zip(("whole", "slower", "draw", "none"), starts_us, lengths_us, strict=False))

    @property
    def share(self) -> float | None:
        return self.floor_us / self.covered_us if self.covered_us else None

    @property
    def coverage(self) -> float:
        return min(self.covered_us / self.busy_us, 1.0) if self.busy_us else 0.0


@dataclass(slots=True)
class NamelessLine:
    """A kernel without bytes and FLOPs, over all experiments."""

    kernel: str
    kind: str
    time_us: float
    experiments: int


@dataclass(slots=True)
class RegretLine:
    """What unlucky choices cost an experiment; the range is that of its newest compilations."""

    experiment_id: int
    value: float
    note: str | None
    low_us: float | None
    high_us: float | None
    experiment: Experiment = field(init=False)

    @property
    def found(self) -> Regret | None:
        """Return the regret with its interval, where it is known."""
        return Regret.from_note(self.value, self.note)

    @property
    def interval(self) -> str:
        """Return the 95 % interval as the page writes it."""
        found = self.found
        return f"{100 * found.low:.1f} to {100 * found.high:.1f} %" if found else ""


def ceilings_by_arch(stream: Stream) -> dict[str, Ceilings]:
    """Return what each arch reaches, by the readings of a stream."""
    readings = ceiling_readings("series.stream_id = %(stream)s", "NOT rerun", {"stream": stream.pk})
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for arch, case, dtype, value in readings:
        found.setdefault(arch, {}).setdefault((case, dtype if case == "matmul" else ""), []).append(value)
    ceilings = {}
    for arch, values in found.items():
        middles = {place: median(own) for place, own in values.items()}
        products = {dtype: value for (case, dtype), value in middles.items() if case == "matmul"}
        ceilings[arch] = Ceilings(middles.get(("copy", "")), middles.get(("read", "")), products)
    return ceilings
