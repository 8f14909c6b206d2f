"""The kernels that changed between two points."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from statistics import fmean
from typing import Any, Literal

from hud.judging.compare.sides import OfferedPoint, compilations_of, number_of, offered
from hud.judging.kernels.attribution import (
    Attribution,
    Change,
    NoteChange,
    PartChange,
    attribute,
    note_changes,
    notes_of,
    phase_changes,
)
from hud.judging.kernels.diff import CodeLine, Diff, compare, whole
from hud.judging.kernels.lines import LINES, by_line, lines_of
from hud.judging.kernels.table import anatomy_change
from hud.models import Compilation, Environment, Experiment, Stream, kernels_of
from hud.points.facts import changes
from hud.points.kernels import code_of
from hud.points.sides import BadSide, Side, parse
from hud.sql import by_id, fetch_tuples
from hud.tables.table import DataTable, experiment_of
from runner.schema.compilations import Compiled, Kernel
from runner.schema.replay import OPERANDS

CALL_TIME, COMPILE_TIME = "compiled_latency_ms", "cold_compile_s"
_TABS = 8  # kernels whose code is one click away


KERNELS = DataTable[Change](
    """cause:str kernel:str=kernel.name kind:str=kernel.kind origins:list[str] base_us:float|None
    head_us:float|None change_us:float|None share:float|None beyond_noise:bool portion:float
    group:int|None=group? slot:str base_choice:str|None head_choice:str|None base_config:str|None
    head_config:str|None base_binary:str|None head_binary:str|None base_calls:float|None head_calls:float|None
    base_registers:int|None head_registers:int|None base_spills:int|None head_spills:int|None
    base_shared_bytes:int|None head_shared_bytes:int|None anatomy:str lines:list[str]""",
    anatomy=lambda change: anatomy_change(change.base, change.head),
    lines=lambda change: list(lines_of(change)),
    origins=lambda change: list(change.kernel.origins),
    change_us=lambda row: row.change_us if row.base_us is not None or row.head_us is not None else None,
    share=lambda _one: None,  # `to_rows` adds it, of the change of busy time
    **{
        f"{side}_{name}": lambda change, side=side, name=name: getattr(getattr(change, side), name, None)
        for side in ("base", "head")
        for name in ("choice", "config", "binary", "calls", "registers", "spills", "shared_bytes")
    },
)
POINT = DataTable(
    f"""side:str run:int=run.pk {experiment_of("experiment")} commit:str=run.commit time:str
    host:str=run.host_name torch:str=environment.torch environment:str=environment.fingerprint
    compilations:list[int] variants:list[str]""",
    side=lambda point: str(point.side),
    time=lambda point: point.run.order_time.isoformat(),
    compilations=lambda point: [number_of(row) for row in point.rows],
    variants=lambda point: [row.variant for row in point.rows],
)
TIMES = DataTable("""busy_us:float|None kernels_us:float|None overlap_us:float gaps_us:float|None
    call_us:float|None overhead_us:float|None""")
TOTALS = DataTable("""busy_change_us:float|None gaps_change_us:float|None overhead_change_us:float|None
    remainder_us:float|None adds_up:bool|None card_ratio:float|None""")
_COUNT = DataTable("metric base head")


@dataclass
class KernelPoint:
    """One side: the compilations of an experiment in a run, or one of them."""

    side: Side
    rows: list[Compilation]
    compiled: list[Compiled] = field(default_factory=list)
    experiment: Experiment = field(init=False)
    values: dict[str, float] = field(default_factory=dict)  # of metrics, over the compilations
    numbers: list[int] = field(default_factory=list)  # of all compilations of the point

    @property
    def others(self) -> list[tuple[Side, str]]:
        """Return the other sides that this point offers: all compilations, or one of several."""
        if len(self.numbers) < 2:
            return []
        words: dict[int | None, str] = {None: f"mean of {len(self.numbers)} compilations"}
        words |= {number: f"compilation {number}" for number in self.numbers}
        own = self.side.compilation
        return [(replace(self.side, compilation=one), text) for one, text in words.items() if one != own]

    @property
    def run(self) -> Any:
        return self.rows[0].run

    @property
    def environment(self) -> Environment:
        return self.rows[0].environment

    @property
    def call_us(self) -> float | None:
        call_ms = self.values.get(CALL_TIME)
        return None if call_ms is None else call_ms * 1e3

    @property
    def name(self) -> str:
        """Return ``14 Nov, cb4e520``, with the environment's name for a side of an A/B run."""
        run = self.run
        parts = [f"{run.order_time:%-d %b}", run.commit[:7]]
        if run.is_ab:
            parts.append(run.candidate if self.side.ab == "head" else run.base_interpreter)
        return ", ".join(filter(None, parts))

    @property
    def drawn(self) -> str:
        """Return which compilations these are."""
        numbers = [number_of(row) for row in self.rows]
        if self.side.compilation is not None:
            return f"compilation {numbers[0]}"
        return "1 compilation" if len(numbers) == 1 else f"mean of {len(numbers)} compilations"


@dataclass(frozen=True)
class Code:
    """The source of one kernel on both sides; '' where it is not stored."""

    change: Change
    base: str
    head: str
    replays: Sequence[tuple[str, int]] = ()  # binaries that can be run alone, the baseline's first; runs

    @cached_property
    def diff(self) -> Diff | None:
        return compare(self.base, self.head) if self.base and self.head else None

    @property
    def lines(self) -> list[CodeLine]:
        """Return the lines of the only side that is stored."""
        return whole(self.base or self.head)


@dataclass(frozen=True)
class Count:
    """A count of the compiler that both sides or one of them reports."""

    metric: str
    title: str
    base: float | None
    head: float | None

    @property
    def change(self) -> str:
        if self.base is None or self.head is None:
            return "new" if self.base is None else "gone"
        return f"{self.head - self.base:+.3g}".replace("-", "−")


@dataclass
class ComparedKernels:
    stream: Stream
    base: KernelPoint
    head: KernelPoint
    attribution: Attribution
    environment: list[str]  # facts that differ
    notes: list[NoteChange]  # of one point: all of them
    phases: list[PartChange]
    counts: list[Count] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)  # the kernels that changed most and have code
    code: Code | None = None  # the one to show
    offered: list[OfferedPoint] = field(default_factory=list)

    @property
    def compile_time(self) -> PartChange:
        return PartChange(
            "Cold compile", self.base.values.get(COMPILE_TIME), self.head.values.get(COMPILE_TIME)
        )

    @property
    def longest_phase_s(self) -> float:
        return max((max(phase.base_s or 0.0, phase.head_s or 0.0) for phase in self.phases), default=0.0)

    @property
    def one_point(self) -> bool:
        """Return whether both sides are the same, so that the page describes one."""
        return str(self.base.side) == str(self.head.side)

    @property
    def tabs(self) -> list[Code]:
        """Return the first kernels with code, and the one that is shown."""
        first = self.codes[:_TABS]
        return first if self.code is None or self.code in first else [*first, self.code]

    @property
    def slots_with_code(self) -> set[str]:
        return {code.change.slot for code in self.codes}

    @property
    def changed_kernels(self) -> int:
        return sum(has_other_code(change) for change in self.attribution.changes)

    @property
    def counts_differing(self) -> int:
        return sum(count.base != count.head for count in self.counts)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a line for each kernel."""
        share = self.attribution.share
        return [{**KERNELS.row(row), "share": share(row.change_us)} for row in self.attribution.changes]

    def to_json(self, by: str = "") -> dict[str, Any]:
        """Return all but the kernels, with lines of source or, `by` class, the classes."""
        attribution = self.attribution
        return {
            "stream": self.stream.name,
            "base": POINT.row(self.base),
            "head": POINT.row(self.head),
            "totals": {"base": TIMES.row(attribution.base), "head": TIMES.row(attribution.head)},
            "causes": {
                cause: {"change_us": change, "share": attribution.share(change)}
                for cause, change in attribution.by_cause.items()
            },
            **TOTALS.row(attribution),
            "lines": LINES.rows(by_line(attribution.changes, by)),
            "environment": self.environment,
            "graph": {"counts": _COUNT.rows(self.counts), "notes": [*map(asdict, self.notes)]},
            "compile": {
                "base_s": self.compile_time.base_s,
                "head_s": self.compile_time.head_s,
                "phases": [*map(asdict, self.phases)],
            },
        }


def read(base: str, head: str, stream: Stream, *, slot: str = "", with_code: bool = True) -> ComparedKernels:
    """Return the comparison of two sides, in at most 11 statements. Raise BadSide for a side without
    compilations; `slot` is the kernel whose code to show."""
    before, after = points = [_point(base, stream, "base"), _point(head, stream, "head")]
    rows = [row for point in points for row in point.rows]
    kernels = kernels_of(rows)
    experiments = by_id(Experiment, [row.experiment_id for row in rows])
    for point in points:
        point.compiled = [row.compiled(kernels) for row in point.rows]
        point.experiment = experiments[point.rows[0].experiment_id]
    titles = _add_values(points)
    uuids = [point.environment.facts.get("gpu_uuid") or "" for point in points]
    attribution = attribute(
        before.compiled,
        after.compiled,
        same_card=uuids[0] == uuids[1],  # two that are known to differ are none
        base_call_us=before.call_us,
        head_call_us=after.call_us,
    )
    totals = before.values.get(COMPILE_TIME), after.values.get(COMPILE_TIME)
    page = ComparedKernels(
        stream,
        before,
        after,
        attribution,
        changes(before.environment, after.environment),
        notes_of(after.compiled) if base == head else note_changes(before.compiled, after.compiled),
        phase_changes(before.compiled, after.compiled, totals_s=totals),
    )
    counts = [
        Count(metric, title, *(point.values.get(metric) for point in points))
        for metric, title in sorted(titles.items(), key=itemgetter(1))
        if metric not in (CALL_TIME, COMPILE_TIME) and any(metric in point.values for point in points)
    ]
    page.counts = sorted(counts, key=lambda count: count.base == count.head)
    if with_code:
        page.offered = offered({before.experiment.pk, after.experiment.pk}, stream)
        numbers = {(offer.run, offer.experiment): offer.numbers for offer in reversed(page.offered)}
        for point in points:
            point.numbers = numbers.get((point.run.pk, point.experiment.pk), [])
        page.codes = _codes(attribution.changes, before.run.pk, after.run.pk, slot)
        wanted = [code for code in page.codes if code.change.slot == slot] or page.codes
        page.code = wanted[0] if wanted else None
    return page


def _point(text: str, stream: Stream, name: Literal["base", "head"]) -> KernelPoint:
    try:
        return KernelPoint(*compilations_of(parse(text), stream, name))
    except BadSide as error:
        raise BadSide(f"{name}: {error}") from error


def _add_values(points: Sequence[KernelPoint]) -> dict[str, str]:
    """Give each point its times and all exact counts, and return the titles of these metrics: 1 statement.
    Call time is the mean of its compilations, since it is compared with the mean of the kernels' times; all
    else is the point's value."""
    rows = fetch_tuples(
        """
        SELECT p.run_id, s.experiment_id, p.environment_id, p.side, t.name, t.title, p.value, p."values"
        FROM hud_series s
        JOIN hud_metric t ON t.id = s.metric_id AND (t.name = ANY(%(times)s) OR t.kind = 'deterministic')
        CROSS JOIN LATERAL (
            SELECT run_id, environment_id, 0 AS side, value, "values" FROM hud_point
            WHERE series_id = s.id AND run_id = ANY(%(runs)s::int[])
            UNION ALL
            SELECT run_id, environment_id, side, value, "values" FROM hud_sidepoint
            WHERE series_id = s.id AND run_id = ANY(%(runs)s::int[])
        ) p
        WHERE s.experiment_id = ANY(%(experiments)s)
        """,
        {
            "times": [CALL_TIME, COMPILE_TIME],
            "runs": [point.run.pk for point in points],
            "experiments": [point.experiment.pk for point in points],
        },
    )
    for point in points:
        first, number = point.rows[0], point.side.compilation
        own = first.run_id, first.experiment_id, first.environment_id, first.side
        for *key, metric, _title, value, values in rows:
            if tuple(key) != own:
                continue
            numbers = [value]
            if values is not None and number is not None:
                numbers = values[number : number + 1]
            elif values is not None and metric == CALL_TIME:
                numbers = values
            if known := [number for number in numbers if number is not None]:
                point.values[metric] = fmean(known)
    return {row[4]: row[5] for row in rows}


def _codes(changes: Sequence[Change], base: int, head: int, slot: str) -> list[Code]:
    """Return the kernels with stored code: new code first, then moved work and choices, the largest first.
    A kernel without a change is among them if its slot is asked for."""
    changed = [change for change in changes if has_other_code(change) or change.slot == slot]
    binaries = {kernel.binary for change in changed for kernel in (change.base, change.head) if kernel}
    texts = code_of(binaries, base, head)

    def text_of(kernel: Kernel | None, run: int) -> str:
        return texts.get((run, kernel.binary), "").partition(OPERANDS)[0] if kernel else ""

    def replays_of(change: Change) -> list[tuple[str, int]]:
        sides = ((change.head, head), (change.base, base))
        keys = [(run, kernel.binary) for kernel, run in sides if kernel]
        runs = {key[1]: key[0] for key in keys if OPERANDS in texts.get(key, "")}
        return [*reversed(runs.items())]

    codes = [
        Code(change, text_of(change.base, base), text_of(change.head, head), replays_of(change))
        for change in changed
    ]
    return [code for code in codes if code.base or code.head]


def has_other_code(change: Change) -> bool:
    return change.cause not in ("unchanged", "slower", "faster")
