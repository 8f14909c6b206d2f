"""How far kernels are from what their card reaches, and what unlucky choices of the autotuner cost.

A kernel's time at the ceiling is that of its bytes at the measured copy bandwidth or of its FLOPs at the
measured matrix product of its dtype, whichever is longer. Of each experiment the compilation with the median
time in the newest run counts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from hud.models import Experiment, Stream
from hud.pages.query_string import words
from hud.points.targets import ceiling_readings
from hud.runs.branches import stored_names
from hud.sql import fetch, fetch_named, fetch_tuples
from runner.schema.devices import is_named
from runner.schema.statistics import median

REGRET = "autotune_regret"
MOST_KERNELS, MOST_REGRETS, MOST_NAMELESS = 20, 15, 20
_ALL = 500  # in JSON and CSV
_OF_SPREAD = 60  # newest compilations whose times are compared
CHOICES = ("mode", "dtype", "backend", "suite")
_SAME_PEAK = {"float16": "bfloat16"}  # the same units multiply both


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of an arch: medians of the latest seven readings."""

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
    def bars(self) -> list[tuple[str, float, float]]:
        return [("slower", 0.0, self.time_us), ("whole", 0.0, self.floor_us)]

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
class RegretLine:
    """The cost of unlucky choices to an experiment; the range is that of its newest compilations."""

    experiment_id: int
    value: float
    spread: float | None  # half of its 95 % interval
    samples: int  # compilations
    note: str | None
    low_us: float | None
    high_us: float | None
    experiment: Experiment = field(init=False)

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval, where it is known."""
        if self.spread is None:
            return None, None
        return max(0.0, self.value - self.spread), self.value + self.spread


# The run of compilation c: of the stream's default branch, no rerun and no A/B comparison.
_OF_STREAM = """JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s AND NOT r.rerun
    AND r.base_interpreter = '' AND r.branch = ANY(%(branches)s)"""
_OF_FILTERS = """
    e.arch = %(arch)s AND (%(mode)s = '' OR e.mode = %(mode)s) AND (%(dtype)s = '' OR e.dtype = %(dtype)s)
    AND (%(backend)s = '' OR e.backend = %(backend)s) AND (%(suite)s = '' OR e.suite = %(suite)s)
"""
# The kernels of the median compilation of each experiment, with their times at the ceilings.
_KERNELS = f"""
    WITH newest AS (
        SELECT e.id experiment_id, e.dtype, c.*
        FROM hud_experiment e JOIN LATERAL (
            SELECT c.run_id FROM hud_compilation c {_OF_STREAM}
            WHERE c.experiment_id = e.id AND c.busy_us IS NOT NULL
            ORDER BY c.order_time DESC, c.run_id DESC LIMIT 1
        ) last ON true JOIN LATERAL (
            SELECT run_id, kernels, times_us, busy_us, coalesce(gaps_us, 0) gaps_us,
                row_number() OVER (ORDER BY busy_us, repeat) place, count(*) OVER () compilations
            FROM hud_compilation c
            WHERE c.experiment_id = e.id AND c.run_id = last.run_id AND busy_us IS NOT NULL
        ) c ON c.place = (c.compilations + 1) / 2
        WHERE {_OF_FILTERS}
    ), step AS (
        SELECT newest.experiment_id, newest.run_id run, k.slot, k.name, k.kind, k.origins, k.calls,
            one.time_us::float8 time_us,
            k.bytes / (%(copy)s::float8 * 1e3) memory_us, k.flops / (peak.tflops * 1e6) compute_us
        FROM newest
        JOIN LATERAL unnest(newest.kernels, newest.times_us) one(id, time_us) ON true
        JOIN hud_kernel k ON k.id = one.id
        LEFT JOIN unnest(%(dtypes)s::text[], %(peaks)s::float8[]) peak(dtype, tflops)
            ON peak.dtype = newest.dtype
        WHERE one.time_us IS NOT NULL
    )
"""  # noqa: S608 — constants  # nosec B608
_NAMELESS = f"""{_KERNELS}
    SELECT name kernel, kind, sum(time_us) time_us, count(DISTINCT experiment_id) experiments
    FROM step WHERE coalesce(memory_us, compute_us) IS NULL
    GROUP BY name, kind ORDER BY time_us DESC, name LIMIT %(nameless)s
"""  # noqa: S608 — constants  # nosec B608
_STATEMENTS: dict[type, str] = {  # of each kind of line
    KernelLine: f"""{_KERNELS}
        SELECT experiment_id, run, slot, name, kind, ARRAY(SELECT jsonb_array_elements_text(origins)), calls,
            time_us, least(time_us, greatest(memory_us, compute_us)),
            CASE WHEN coalesce(memory_us, 0) >= coalesce(compute_us, 0) THEN 'memory' ELSE 'compute' END
        FROM step WHERE coalesce(memory_us, compute_us) IS NOT NULL
        ORDER BY time_us - greatest(memory_us, compute_us) DESC, slot LIMIT %(kernels)s
        """,  # noqa: S608 — constants  # nosec B608
    ModelLine: f"""{_KERNELS}
        SELECT newest.experiment_id, newest.run_id run, newest.busy_us, newest.gaps_us,
            coalesce(sum(least(time_us, greatest(memory_us, compute_us))
                ) FILTER (WHERE coalesce(memory_us, compute_us) IS NOT NULL), 0) floor_us,
            coalesce(sum(time_us) FILTER (WHERE coalesce(memory_us, compute_us) IS NOT NULL), 0) covered_us
        FROM newest LEFT JOIN step USING (experiment_id)
        GROUP BY 1, 2, 3, 4
        """,  # noqa: S608 — constants  # nosec B608
    RegretLine: f"""
        SELECT e.id experiment_id, newest.*, spread.low_us, spread.high_us
        FROM hud_experiment e
        JOIN hud_series s ON s.experiment_id = e.id AND s.stream_id = %(stream)s
            AND s.metric_id = (SELECT id FROM hud_metric WHERE name = %(regret)s)
        JOIN LATERAL (
            SELECT value, spread, samples, note FROM hud_point
            WHERE series_id = s.id AND value IS NOT NULL AND NOT rerun AND branch = ANY(%(branches)s)
            ORDER BY order_time DESC, run_id DESC LIMIT 1
        ) newest ON true
        LEFT JOIN LATERAL (
            SELECT min(busy_us) low_us, max(busy_us) high_us
            FROM (
                SELECT c.busy_us FROM hud_compilation c {_OF_STREAM}
                WHERE c.experiment_id = e.id AND c.busy_us IS NOT NULL
                ORDER BY c.order_time DESC LIMIT %(of_spread)s
            ) latest
        ) spread ON true
        WHERE {_OF_FILTERS}
        ORDER BY newest.value DESC, e.id LIMIT %(regrets)s
        """,  # noqa: S608 — constants  # nosec B608
}


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


@dataclass(frozen=True)
class LimitsFilters:
    arch: str = words(100, label="Arch", blank=None)
    mode: str = words(40, label="Mode")
    dtype: str = words(40, label="Dtype")
    backend: str = words(100, label="Backend")
    suite: str = words(60, label="Suite")


@dataclass
class LimitsPage:
    filters: LimitsFilters
    arches: list[tuple[str, int, Ceilings]] = field(default_factory=list)  # with experiments
    words: dict[str, list[str]] = field(default_factory=dict)  # of each choice
    kernels: list[KernelLine] = field(default_factory=list)
    models: list[ModelLine] = field(default_factory=list)
    regrets: list[RegretLine] = field(default_factory=list)
    nameless: list[Any] = field(default_factory=list)  # kernels without bytes and FLOPs, over all experiments

    @property
    def varying(self) -> list[str]:
        """Return the words that tell the page's experiments apart, besides their titles and suites."""
        free = [name for name in self.words if name != "suite" and not getattr(self.filters, name)]
        return [name for name in free if len(self.words[name]) > 1]

    @property
    def ceilings(self) -> Ceilings:
        return next((one for arch, _n, one in self.arches if arch == self.filters.arch), Ceilings())

    @property
    def time_us(self) -> float:
        return sum(model.busy_us for model in self.models)

    @property
    def lost_us(self) -> float:
        return sum(model.lost_us for model in self.models)

    @property
    def coverage(self) -> float:
        return sum(model.covered_us for model in self.models) / self.time_us if self.time_us else 0.0

    @property
    def mean_regret(self) -> float | None:
        values = [one.value for one in self.regrets]
        return sum(values) / len(values) if values else None

    @property
    def longest_regret(self) -> float:
        """Return the end of the axis of all regrets: that of the longest interval."""
        ends = [one.value + (one.spread or 0.0) for one in self.regrets]
        return max([0.02, *ends])

    @property
    def longest_us(self) -> float:
        return max((model.busy_us + model.gaps_us for model in self.models), default=0.0)

    @property
    def longest_kernel_us(self) -> float:
        return max((kernel.time_us for kernel in self.kernels), default=0.0)


def read(filters: LimitsFilters, stream: Stream, *, everything: bool = False) -> LimitsPage:
    """Return the page, in 7 statements, 2 without kernels; without an arch that with the most experiments."""
    combinations = fetch_tuples(
        f"""
        SELECT e.arch, e.mode, e.dtype, e.backend, e.suite, count(*) FROM hud_experiment e
        WHERE EXISTS (SELECT FROM hud_compilation c {_OF_STREAM}
            WHERE c.experiment_id = e.id AND c.busy_us IS NOT NULL)
        GROUP BY 1, 2, 3, 4, 5
        """,  # noqa: S608 — constants  # nosec B608
        {"stream": stream.pk, "branches": stored_names()},
    )
    counts: Counter[str] = Counter()
    for arch, *_words, count in combinations:
        counts[arch] += count
    if not filters.arch and counts:
        arch = max(sorted(counts), key=lambda name: (is_named(name), counts[name]))
        filters = replace(filters, arch=arch)
    page = LimitsPage(filters)
    measured = ceilings_by_arch(stream)
    page.arches = [
        (arch, count, measured.get(arch, Ceilings()))
        for arch, count in counts.most_common()
        if is_named(arch) or arch in ("", filters.arch)
    ]
    own = [one[1:5] for one in combinations if one[0] == filters.arch]
    page.words = {name: sorted({one[place] for one in own}) for place, name in enumerate(CHOICES)}
    if not own:
        return page
    peaks = {dtype: page.ceilings.peak_tflops(dtype) for dtype in page.words["dtype"]}
    params = {
        **{name: getattr(filters, name) for name in ("arch", *CHOICES)},
        "stream": stream.pk,
        "branches": stored_names(),
        "copy": page.ceilings.copy_gbps,
        "dtypes": list(peaks),
        "peaks": list(peaks.values()),
        "kernels": _ALL if everything else MOST_KERNELS,
        "regrets": _ALL if everything else MOST_REGRETS,
        "nameless": MOST_NAMELESS,
        "regret": REGRET,
        "of_spread": _OF_SPREAD,
    }
    page.kernels = fetch(KernelLine, _STATEMENTS[KernelLine], params)
    page.models = fetch(ModelLine, _STATEMENTS[ModelLine], params)
    page.nameless = fetch_named(_NAMELESS, params)
    page.regrets = fetch(RegretLine, _STATEMENTS[RegretLine], params)
    page.models.sort(key=lambda model: -model.lost_us)
    lines: Sequence[KernelLine | ModelLine | RegretLine] = (*page.kernels, *page.models, *page.regrets)
    experiments = Experiment.objects.in_bulk({line.experiment_id for line in lines})
    for line in lines:
        line.experiment = experiments[line.experiment_id]
    return page
