"""The choice ledger: which choices of the autotuner are proven, what its draws cost against them, and what
forcing them would return (rules of `docs/judging.md`). Numbers only.

A choice is proven by processes that were given it, as pairs at equal choices are, or by compilations on two
cards. The fastest time seen proves nothing: of many draws one is the fastest by chance. Each process is
therefore predicted without its own time, in the election of the best choice as in that choice's time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from hud.judging.choices import LEAST_COMPILATIONS
from runner.schema.statistics import student_t

Proof = Literal["pairs", "cards", ""]

LEAST_TIMES = 3  # processes that prove a choice
LEAST_CARDS = 2  # of compilations that elected it themselves


@dataclass(frozen=True)
class Process:
    """The choice and µs of each slot in one process. Its own autotuner elected the choices, but for those of
    the slots that were `forced`."""

    run: int
    card: str
    kernels: Mapping[str, tuple[str, float]]
    forced: frozenset[str] | None = None  # None: a compilation that elected all choices


@dataclass(frozen=True)
class ChoiceRecord:
    """A choice of a slot: its mean time, the compilations that elected it, the processes that forced it,
    its cards and runs, and who proved it."""

    choice: str
    time_us: float
    elected: int
    forced: int
    cards: int
    runs: int
    proven_by: Proof


@dataclass(frozen=True)
class SlotRecord:
    """The choices of a slot, the fastest first, the mean time of its compilations, and what the best proven
    choice returns of that, as predicted. Without a proven choice it returns nothing."""

    slot: str
    mean_us: float
    choices: tuple[ChoiceRecord, ...]
    returns_us: float

    @property
    def best(self) -> ChoiceRecord | None:
        return next((record for record in self.choices if record.proven_by), None)


@dataclass(frozen=True)
class Ledger:
    """The slots of a program: those whose choices vary, and the others with a proven one. `cost` is the share
    of the kernels' time that the best proven choices save on average, `spread` half of its 95 % interval.
    `returns` is the lower end of the interval of what is predicted, at least 0. Without a proven choice among
    several all three are 0."""

    compilations: int
    mean_us: float
    slots: tuple[SlotRecord, ...]
    alike: tuple[SlotRecord, ...] = ()
    cost: float = 0.0
    spread: float = 0.0
    returns: float = 0.0

    @property
    def proven(self) -> int:
        """Return how many slots have a proven choice."""
        return sum(1 for record in self.slots if record.best)


def choice_ledger(processes: Sequence[Process]) -> Ledger | None:
    """Return the ledger of the processes that have the newest compilation's slots; None below 10
    compilations. `processes` is oldest first."""
    newest = next((process for process in reversed(processes) if process.forced is None), None)
    alike = [one for one in processes if newest and one.kernels.keys() == newest.kernels.keys()]
    free = [process for process in alike if process.forced is None]
    if newest is None or len(free) < LEAST_COMPILATIONS:
        return None
    slots: list[SlotRecord] = []
    same: list[SlotRecord] = []
    best_us = 0.0
    # what each process adds to the mean of all compilations, and to that with the ledger
    drawn, predicted = [0.0] * len(alike), [0.0] * len(alike)
    for slot in newest.kernels:
        own = [0.0 if one.forced is not None else one.kernels[slot][1] / len(free) for one in alike]
        slot_us = math.fsum(own)
        records = _records(slot, alike)
        best = next((record for record in records if record.proven_by), None)
        given = _predicted(slot, alike, records, len(free)) if best and len(records) > 1 else own
        best_us += best.time_us if best else slot_us
        for index in range(len(alike)):
            drawn[index] += own[index]
            predicted[index] += given[index]
        record = SlotRecord(slot, slot_us, records, slot_us - math.fsum(given))
        if len(records) > 1:
            slots.append(record)
        elif best:
            same.append(record)
    slots.sort(key=lambda record: -record.returns_us)
    mean_us = math.fsum(drawn)
    ledger = Ledger(len(free), mean_us, tuple(slots), tuple(same))
    if mean_us <= 0 or not ledger.proven:
        return ledger
    ratio = math.fsum(predicted) / mean_us
    parts = [after - ratio * before for before, after in zip(drawn, predicted, strict=True)]
    # their sum is 0: what is left of each is the error that it brings
    # any of several proven choices may be the fastest by chance
    rivals = max(sum(bool(choice.proven_by) for choice in record.choices) for record in slots)
    spread = student_t(0.05 / rivals, len(free) - 1) * math.hypot(*parts) / mean_us
    returns = max(0.0, 1 - ratio - spread)
    return replace(ledger, cost=1 - best_us / mean_us, spread=spread, returns=returns)


def _records(slot: str, processes: Sequence[Process]) -> tuple[ChoiceRecord, ...]:
    """Return the choices of a slot, the fastest first."""
    by_choice: defaultdict[str, list[Process]] = defaultdict(list)
    for process in processes:
        if _counts(process, slot):
            by_choice[process.kernels[slot][0]].append(process)
    records = []
    for choice, seen in by_choice.items():
        free = [process for process in seen if process.forced is None]
        proof: Proof = "pairs" if len(seen) - len(free) >= LEAST_TIMES else ""
        if not proof and len(free) >= LEAST_TIMES and len({one.card for one in free}) >= LEAST_CARDS:
            proof = "cards"
        time_us = fmean(process.kernels[slot][1] for process in seen)
        cards, runs = len({process.card for process in seen}), len({process.run for process in seen})
        counts = len(free), len(seen) - len(free), cards, runs
        records.append(ChoiceRecord(choice, time_us, *counts, proof))
    return tuple(sorted(records, key=lambda record: (record.time_us, record.choice)))


def _predicted(
    slot: str, processes: Sequence[Process], records: Sequence[ChoiceRecord], compilations: int
) -> list[float]:
    """Return what each process adds to the mean time with the best proven choice: for a compilation the time
    that the others give it, and for one with that choice how far that was from its own time."""
    proven = {record.choice: record for record in records if record.proven_by}
    parts = []
    for process in processes:
        choice, time_us = process.kernels[slot]
        is_timed = choice in proven and _counts(process, slot)
        others_us = {name: record.time_us for name, record in proven.items()}
        count = proven[choice].elected + proven[choice].forced if is_timed else 0
        if is_timed:
            others_us[choice] = (count * others_us[choice] - time_us) / (count - 1)
        best = min(others_us, key=others_us.__getitem__)
        part = others_us[best] / compilations if process.forced is None else 0.0
        if is_timed and choice == best:
            part += (time_us - others_us[best]) / count
        parts.append(part)
    return parts


def _counts(process: Process, slot: str) -> bool:
    """Return whether a process tells the time of its choice: where it had choices forced, one that it elected
    itself is no draw."""
    return process.forced is None or slot in process.forced
