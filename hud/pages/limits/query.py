"""How far kernels are from what their card reaches, and what unlucky choices of the autotuner cost.

A kernel's time at the ceiling is that of its bytes at the measured copy bandwidth or of its FLOPs at the
measured matrix product of its dtype, whichever is longer. Of each experiment the compilation with the median
time in the newest run counts.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from statistics import fmean
from typing import Any

from hud.models import Experiment, Stream
from hud.pages.query_string import one_of, words
from hud.points.targets import ceilings_of
from hud.runs.branches import stored_names
from hud.sql import fetch_models, fetch_named, fetch_tuples
from runner.schema.devices import is_named

REGRET = "autotune_regret"
MOST_KERNELS, MOST_REGRETS, MOST_NAMELESS, MOST_LINES = 20, 15, 20, 30
_ALL = 500  # in JSON and CSV
CHOICES = ("mode", "dtype", "backend", "suite")
_SAME_PEAK = {"float16": "bfloat16"}  # the same units multiply both


@dataclass
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


# The run of compilation c: of the stream's default branch, no rerun and no A/B comparison.
_OF_STREAM = """JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s AND NOT r.rerun
    AND r.base_interpreter = '' AND r.branch = ANY(%(branches)s)"""
_OF_FILTERS = """
    own.arch = %(arch)s AND (%(mode)s = '' OR own.mode = %(mode)s)
    AND (%(dtype)s = '' OR own.dtype = %(dtype)s)
    AND (%(backend)s = '' OR own.backend = %(backend)s) AND (%(suite)s = '' OR own.suite = %(suite)s)
"""
# The kernels of the median compilation of each experiment, with their times at the ceilings in µs of a step:
# at most its own, as a kernel that only reads may beat a copy; NULL for one without bytes and FLOPs.
_KERNELS = f"""
    WITH newest AS (
        SELECT own.id experiment_id, own.dtype, c.*
        FROM hud_experiment own JOIN LATERAL (
            SELECT c.run_id FROM hud_compilation c {_OF_STREAM}
            WHERE c.experiment_id = own.id AND c.busy_us IS NOT NULL
            ORDER BY c.order_time DESC, c.run_id DESC LIMIT 1
        ) last ON true JOIN LATERAL (
            SELECT run_id, kernels, times_us, line_list_id, busy_us, coalesce(gaps_us, 0) gaps_us,
                row_number() OVER (ORDER BY busy_us, repeat) place, count(*) OVER () compilations
            FROM hud_compilation c
            WHERE c.experiment_id = own.id AND c.run_id = last.run_id AND busy_us IS NOT NULL
        ) c ON c.place = (c.compilations + 1) / 2
        WHERE {_OF_FILTERS}
    ), step AS (
        SELECT newest.experiment_id, newest.run_id run, k.slot, k.name, k.kind, k.origins, k.calls,
            spent.time_us::float8 time_us, spent.lines,
            k.bytes / (%(copy)s::float8 * 1e3) memory_us, k.flops / (peak.tflops * 1e6) compute_us
        FROM newest
        LEFT JOIN hud_linelist list ON list.id = newest.line_list_id
        JOIN LATERAL unnest(newest.kernels, newest.times_us, list.lines) spent(id, time_us, lines) ON true
        JOIN hud_kernel k ON k.id = spent.id
        LEFT JOIN unnest(%(dtypes)s::text[], %(peaks)s::float8[]) peak(dtype, tflops)
            ON peak.dtype = newest.dtype
        WHERE spent.time_us IS NOT NULL
    ), kernel AS (
        SELECT *, CASE WHEN coalesce(memory_us, compute_us) IS NOT NULL
            THEN least(time_us, greatest(memory_us, compute_us)) END floor_us
        FROM step
    )
"""  # noqa: S608 — constants  # nosec B608
_NAMELESS = f"""{_KERNELS}
    SELECT name kernel, kind, sum(time_us) time_us, count(DISTINCT experiment_id) experiments
    FROM kernel WHERE floor_us IS NULL
    GROUP BY name, kind ORDER BY time_us DESC, name LIMIT %(nameless)s
"""  # noqa: S608 — constants  # nosec B608
# A kernel of several lines counts for each in equal parts.
_SOURCE = f"""{_KERNELS}
    SELECT CASE WHEN %(by)s = '' THEN line
            ELSE regexp_replace(regexp_replace(line, ':\\d+', ''), '( .+)\\.[^.]+$', '\\1') END line,
        sum(time_us / cardinality(parts)) time_us,
        sum((time_us - floor_us) / cardinality(parts)) lost_us, count(*) kernels,
        count(DISTINCT experiment_id) experiments
    FROM kernel, string_to_array(coalesce(nullif(lines, ''), 'unknown'), E'\\n') parts, unnest(parts) line
    WHERE EXISTS (SELECT FROM kernel WHERE lines <> '')
    GROUP BY 1 ORDER BY time_us DESC, line LIMIT %(lines)s
"""  # noqa: S608 — constants  # nosec B608
# Lines of experiments `one`, and the columns of each
_KERNEL_LINES = f"""JOIN ({_KERNELS}
        SELECT *, time_us - floor_us lost_us, floor_us / nullif(time_us, 0) share,
            CASE WHEN coalesce(memory_us, 0) >= coalesce(compute_us, 0) THEN 'memory' ELSE 'compute' END bound
        FROM kernel WHERE floor_us IS NOT NULL ORDER BY lost_us DESC, slot LIMIT %(kernels)s
    ) line ON line.experiment_id = own.id
    ORDER BY line.lost_us DESC, line.slot"""  # noqa: S608 — constants  # nosec B608
_OF_KERNEL = "run slot name kind calls lines time_us floor_us lost_us share bound"
# covered_us: the time of kernels with a formula
_EXPERIMENT_LINES = f"""JOIN ({_KERNELS}, covered AS (
        SELECT newest.experiment_id, newest.run_id run, newest.busy_us, newest.gaps_us,
            coalesce(sum(floor_us), 0) floor_us,
            coalesce(sum(time_us) FILTER (WHERE floor_us IS NOT NULL), 0) covered_us
        FROM newest LEFT JOIN kernel USING (experiment_id) GROUP BY 1, 2, 3, 4)
        SELECT *, covered_us - floor_us lost_us, floor_us / nullif(covered_us, 0) share,
            coalesce(least(covered_us / nullif(busy_us, 0), 1), 0) coverage
        FROM covered
    ) line ON line.experiment_id = own.id
    ORDER BY line.lost_us DESC, own.id"""  # noqa: S608 — constants  # nosec B608
_OF_EXPERIMENT = "run busy_us gaps_us floor_us covered_us lost_us share coverage"
# The cost of unlucky choices; spread: half of its 95 % interval
_REGRET_LINES = f"""
    JOIN hud_series s ON s.experiment_id = own.id AND s.stream_id = %(stream)s
        AND s.metric_id = (SELECT id FROM hud_metric WHERE name = %(regret)s)
    JOIN LATERAL (
        SELECT value, spread, samples, note FROM hud_point
        WHERE series_id = s.id AND value IS NOT NULL AND NOT rerun AND branch = ANY(%(branches)s)
        ORDER BY order_time DESC, run_id DESC LIMIT 1
    ) line ON true
    WHERE {_OF_FILTERS}
    ORDER BY line.value DESC, own.id LIMIT %(regrets)s
"""  # noqa: S608 — constants  # nosec B608
_OF_REGRET = "value spread samples note"


def _experiments(columns: str, lines: str, params: Mapping[str, Any], **computed: str) -> list[Any]:
    """Return experiments with these columns of their lines: 1 statement."""
    computed |= {name: f"line.{name}" for name in columns.split()}
    return fetch_models(Experiment, lines, params, computed=computed)


def ceilings_by_arch(stream: Stream) -> dict[str, Ceilings]:
    """Return what each arch reaches, by the readings of a stream."""
    ceilings: defaultdict[str, Ceilings] = defaultdict(Ceilings)
    for arch, case, dtype, value in ceilings_of("series.stream_id = %(stream)s", stream=stream.pk):
        if case == "matmul":
            ceilings[arch].matmul_tflops[dtype] = value
        elif case in ("copy", "read"):
            setattr(ceilings[arch], f"{case}_gbps", value)
    return ceilings


@dataclass(frozen=True)
class LimitsFilters:
    arch: str = words(100, label="Arch", blank=None)
    mode: str = words(40, label="Mode")
    dtype: str = words(40, label="Dtype")
    backend: str = words(100, label="Backend")
    suite: str = words(60, label="Suite")
    by: str = one_of("class", is_hidden=True)  # the lines of source, else one by one


@dataclass
class LimitsPage:
    filters: LimitsFilters
    arches: list[tuple[str, int, Ceilings]] = field(default_factory=list)  # with experiments
    words: dict[str, list[str]] = field(default_factory=dict)  # of each choice
    kernels: list[Any] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)  # the kernels of each experiment together
    regrets: list[Any] = field(default_factory=list)
    lines: list[Any] = field(default_factory=list)  # of source, over all experiments
    nameless: list[Any] = field(default_factory=list)  # kernels without bytes and FLOPs, over all experiments

    @property
    def varying(self) -> list[str]:
        """Return the words that tell the page's experiments apart, besides their titles and suites."""
        free = [name for name in self.words if name != "suite" and not getattr(self.filters, name)]
        return [name for name in free if len(self.words[name]) > 1]

    @property
    def ceilings(self) -> Ceilings:
        return next((ceilings for arch, _n, ceilings in self.arches if arch == self.filters.arch), Ceilings())

    @property
    def time_us(self) -> float:
        return fsum(model.busy_us for model in self.models)

    @property
    def lost_us(self) -> float:
        return fsum(model.lost_us for model in self.models)

    @property
    def coverage(self) -> float:
        return fsum(model.covered_us for model in self.models) / self.time_us if self.time_us else 0.0

    @property
    def mean_regret(self) -> float | None:
        return fmean(line.value for line in self.regrets) if self.regrets else None

    @property
    def longest_us(self) -> float:
        return float(max((model.busy_us + model.gaps_us for model in self.models), default=0.0))

    @property
    def longest_kernel_us(self) -> float:
        return float(max((kernel.time_us for kernel in self.kernels), default=0.0))


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
    own = [combination[1:5] for combination in combinations if combination[0] == filters.arch]
    page.words = {name: sorted({row[index] for row in own}) for index, name in enumerate(CHOICES)}
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
        "by": filters.by,
        "lines": _ALL if everything else MOST_LINES,
        "regret": REGRET,
    }
    origins = "ARRAY(SELECT jsonb_array_elements_text(line.origins))"
    page.kernels = _experiments(_OF_KERNEL, _KERNEL_LINES, params, origins=origins)
    page.models = _experiments(_OF_EXPERIMENT, _EXPERIMENT_LINES, params)
    page.lines = fetch_named(_SOURCE, params)
    page.nameless = fetch_named(_NAMELESS, params)
    page.regrets = _experiments(_OF_REGRET, _REGRET_LINES, params)
    return page
