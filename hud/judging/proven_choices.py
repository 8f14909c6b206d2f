"""The choice ledgers of an arch with one torch and Triton, from stored compilations."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hud.judging.ledger import ChoiceRecord, Ledger, Process, SlotRecord, choice_ledger
from hud.models import BinaryList, Experiment, Kernel, Stream
from hud.runs.branches import stored_names
from hud.sql import by_id, fetch_named
from hud.tables.table import EXPERIMENT, DataTable, under

SUBJECT = ("arch", "torch", "triton")
_HISTORY = 200  # newest compilations of an experiment

# The newest compilations of each experiment, with what they were made by. One whose own tuner was given no
# choice has neither a draw nor slots left to it.
_NEWEST = """
    FROM hud_experiment e JOIN LATERAL (
        SELECT c.*, v.torch, coalesce(v.facts->>'triton', '') triton,
            coalesce(nullif(v.facts->>'gpu_uuid', ''), r.host_name) card,
            c.draw IS NULL AND c.unpinned IS NULL elects
        FROM hud_compilation c
        JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s AND r.branch = ANY(%(branches)s)
        JOIN hud_environment v ON v.id = c.environment_id
        WHERE c.experiment_id = e.id AND c.busy_us IS NOT NULL AND NOT c.impossible
        ORDER BY c.order_time DESC, c.run_id DESC LIMIT %(history)s
    ) c ON true
"""
# What chose alike every time has no choice that the draw costs.
_SUBJECTS = f"""
    SELECT arch, torch, triton, count(*) experiments, max(newest) newest FROM (
        SELECT e.arch, c.torch, c.triton, max(c.order_time) newest {_NEWEST}
        WHERE c.elects GROUP BY e.id, 1, 2, 3 HAVING count(DISTINCT c.variant) > 1
    ) varying GROUP BY 1, 2, 3 ORDER BY experiments DESC, newest DESC, 1, 2, 3
"""  # noqa: S608 — constants  # nosec B608
_PROCESSES = f"""
    SELECT * FROM (
        SELECT e.id experiment, c.run_id run, c.card, c.elects, c.unpinned, c.kernels, c.times_us, c.busy_us,
            c.binary_list_id, c.binary_places, c.order_time, c.repeat, c.side,
            min(c.variant) FILTER (WHERE c.elects) OVER own <> max(c.variant) FILTER (WHERE c.elects) OVER own
                varies
        {_NEWEST}
        WHERE e.arch = %(arch)s AND c.torch = %(torch)s AND c.triton = %(triton)s
            AND (%(suite)s = '' OR e.suite = %(suite)s) AND (%(backend)s = '' OR e.backend = %(backend)s)
        WINDOW own AS (PARTITION BY e.id)
    ) process WHERE varies ORDER BY experiment, order_time, run, side, repeat
"""  # noqa: S608 — constants  # nosec B608


@dataclass(frozen=True)
class ExperimentLedger:
    """An experiment's ledger; None with too few compilations."""

    experiment: Experiment
    ledger: Ledger | None
    elected: int  # compilations
    busy_us: tuple[float, float]  # of these, the shortest and the longest
    kernels: Mapping[tuple[str, str], Kernel]  # by slot and choice
    binaries: Mapping[tuple[str, str], str]  # of these, the newest

    @property
    def known(self) -> Ledger | None:
        """Return the ledger if a choice is proven."""
        return self.ledger if self.ledger and self.ledger.proven else None

    @property
    def slots(self) -> list["SlotRow"]:
        return [SlotRow(self, record) for record in self.ledger.slots] if self.ledger else []

    @property
    def all_slots(self) -> list["SlotRow"]:
        """Return the slots of an export, also those whose choices never varied."""
        alike = self.ledger.alike if self.ledger else ()
        rows = (SlotRow(self, record) for record in alike)
        return [*self.slots, *(row for row in rows if row.kernel.config)]


@dataclass(frozen=True)
class SlotRow:
    """A slot of an experiment, with the words of its kernel."""

    of: ExperimentLedger
    record: SlotRecord

    @property
    def kernel(self) -> Kernel:
        return self.kernel_of(self.record.best or self.record.choices[0])

    @property
    def candidates(self) -> int:
        """Return how many the autotuner had to choose from, at least those that it took."""
        return max(len(self.kernel.offered), self.kernel.candidates, len(self.record.choices))

    def kernel_of(self, choice: ChoiceRecord) -> Kernel:
        return self.of.kernels[self.record.slot, choice.choice]

    def choices(self) -> list[dict[str, Any]]:
        return [{**asdict(choice), "config": self.kernel_of(choice).config} for choice in self.record.choices]


EXPERIMENTS = DataTable[ExperimentLedger](
    f"{EXPERIMENT} compilations=elected busy_low_us busy_high_us mean_us cost spread returns slots proven",
    busy_low_us=lambda row: row.busy_us[0],
    busy_high_us=lambda row: row.busy_us[1],
    mean_us=lambda row: row.ledger and row.ledger.mean_us,
    slots=lambda row: len(row.slots),
    proven=lambda row: row.ledger.proven if row.ledger else 0,
    **{
        name: lambda row, name=name: row.known and getattr(row.known, name)
        for name in ("cost", "spread", "returns")
    },
)
SLOTS = DataTable[SlotRow](
    f"""experiment=of.experiment.pk {under("record", "slot mean_us returns_us")} kernel=kernel.name
    kind=kernel.kind origins=kernel.origins offered=kernel.offered candidates best config binary choices""",
    best=lambda row: row.record.best and row.record.best.choice,
    config=lambda row: row.record.best and row.kernel.config,
    binary=lambda row: row.record.best and row.of.binaries[row.record.slot, row.record.best.choice],
    choices=lambda row: row.choices(),
)


@dataclass(frozen=True)
class LedgerFilters:
    arch: str = ""
    torch: str = ""
    triton: str = ""
    suite: str = ""
    backend: str = ""


@dataclass
class Ledgers:
    """The ledgers of a torch and Triton on an arch, the largest cost first."""

    filters: LedgerFilters
    subjects: list[Any] = field(default_factory=list)  # each arch, torch and triton with varying choices
    lines: list[ExperimentLedger] = field(default_factory=list)

    @property
    def known(self) -> list[Ledger]:
        return [line.known for line in self.lines if line.known]

    def to_json(self) -> dict[str, Any]:
        subject = {name: getattr(self.filters, name) for name in SUBJECT}
        slots = [row for line in self.lines for row in line.all_slots]
        return {**subject, "items": EXPERIMENTS.rows(self.lines), "slots": SLOTS.rows(slots)}


def read(filters: LedgerFilters, stream: Stream) -> Ledgers:
    """Return the ledgers, in 5 statements, 1 where no choice varies; by default those with the most
    experiments."""
    params = {"stream": stream.pk, "branches": stored_names(), "history": _HISTORY}
    subjects = fetch_named(_SUBJECTS, params)
    asked = [(name, getattr(filters, name)) for name in SUBJECT if getattr(filters, name)]
    fitting = (one for one in subjects if all(getattr(one, name) == value for name, value in asked))
    chosen = next(fitting, None)
    if chosen is None:
        return Ledgers(filters, subjects)
    filters = replace(filters, **{name: getattr(chosen, name) for name in SUBJECT})
    by_experiment: defaultdict[int, list[Any]] = defaultdict(list)
    for row in fetch_named(_PROCESSES, {**params, **asdict(filters)}):
        by_experiment[row.experiment].append(row)
    rows = [row for own in by_experiment.values() for row in own]
    kernels = by_id(Kernel, {pk for row in rows for pk in row.kernels})
    binaries = by_id(BinaryList, {row.binary_list_id for row in rows})
    experiments = by_id(Experiment, by_experiment)
    lines = [_line(experiments[pk], own, kernels, binaries) for pk, own in by_experiment.items()]
    lines.sort(
        key=lambda line: (-line.known.cost if line.known else 0.0, line.experiment.title, line.experiment.pk)
    )
    return Ledgers(filters, subjects, lines)


def _line(
    experiment: Experiment,
    rows: list[Any],
    kernels: Mapping[int, Kernel],
    lists: Mapping[int, BinaryList],
) -> ExperimentLedger:
    processes = []
    binaries: dict[tuple[str, str], str] = {}
    for row in rows:
        for pk, index in zip(row.kernels, row.binary_places, strict=True):
            number = lists[row.binary_list_id].binaries[index]
            binaries[kernels[pk].slot, kernels[pk].choice] = f"{number % 2**64:016x}"
        timed = {
            kernels[pk].slot: (kernels[pk].choice, time_us)
            for pk, time_us in zip(row.kernels, row.times_us, strict=True)
            if time_us is not None
        }
        forced = None if row.elects else frozenset(timed) - frozenset(row.unpinned or ())
        processes.append(Process(row.run, row.card, timed, forced))
    own = {(kernels[pk].slot, kernels[pk].choice): kernels[pk] for row in rows for pk in row.kernels}
    elected_us = [row.busy_us for row in rows if row.elects]
    ends = min(elected_us), max(elected_us)
    return ExperimentLedger(experiment, choice_ledger(processes), len(elected_us), ends, own, binaries)
