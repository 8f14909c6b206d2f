"""Attribute the difference between two points to their kernels, and compare what the compiler reports of its
graphs: breaks, recompiles, phases. Numbers only.

A kernel is known by slot, choice and binary (measuring rule C2). A slot on both sides changed its choice, or
its code at the same choice, or its time with the same binary; a slot on one side appeared or vanished, or its
operators moved to other kernels. Each side may have several compilations: a slot then counts with the median
of each choice, as often as that choice came, and the part that both sides share is compared at equal choices.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

import tomllib

from runner.schema.compilations import Compiled, Kernel, Note
from runner.schema.statistics import median

Cause = Literal["code", "spilled", "moved", "appeared", "vanished", "choice", "slower", "faster", "unchanged"]
CAUSES: tuple[Cause, ...] = get_args(Cause)  # in the order in which they are read
RELATIVE_NOISE, NOISE_US_PER_CALL = 0.005, 0.3  # of one kernel on one card (rule C4)
OTHER_CARD_NOISE, LEAST_SHARED = 0.02, 10  # without a known offset; kernels that tell it (rule C5)
MOST_OF_CHANGE, MOST_OF_BUSY = 0.1, 0.003  # that causes may leave unexplained


@dataclass(frozen=True)
class Change:
    """One kernel, or the part of it that has one cause. Times are of all calls in one step."""

    slot: str
    cause: Cause
    base: Kernel | None  # None: not on this side
    head: Kernel | None
    base_us: float | None  # None: absent or never timed, as on a CPU
    head_us: float | None
    portion: float = 1.0  # of the compilations, which may have drawn several choices
    beyond_noise: bool = False
    group: int = 0  # of moved work, from 1: these kernels share operators; 0: none

    @property
    def kernel(self) -> Kernel:
        kernel = self.head or self.base
        assert kernel is not None
        return kernel

    @property
    def change_us(self) -> float:
        return (self.head_us or 0.0) - (self.base_us or 0.0)


@dataclass(frozen=True)
class SideTimes:
    """Means over the compilations of one side, in µs of a step; None: not measured. `overhead_us` is the time
    of a call in which the GPU has not begun or has ended."""

    compilations: int
    kernels_us: float | None
    busy_us: float | None
    gaps_us: float | None
    overlap_us: float
    call_us: float | None
    overhead_us: float | None


@dataclass(frozen=True)
class Attribution:
    """The changes by cause, then the largest first. With `card_ratio` another card runs all kernels that much
    slower, which is no change of a kernel."""

    base: SideTimes
    head: SideTimes
    changes: list[Change]
    busy_change_us: float | None
    gaps_change_us: float | None
    overhead_change_us: float | None
    overlap_change_us: float
    card_ratio: float | None = None
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)  # moved: kernels before and after

    @cached_property
    def by_cause(self) -> dict[Cause, float]:
        """Return the sum of each cause that occurs, in µs."""
        us = {
            cause: [change.change_us for change in self.changes if change.cause == cause] for cause in CAUSES
        }
        return {cause: sum(changes_us) for cause, changes_us in us.items() if changes_us}

    @property
    def remainder_us(self) -> float | None:
        """Return what the kernels do not explain of the change of busy time."""
        if self.busy_change_us is None:
            return None
        return self.busy_change_us - (sum(self.by_cause.values()) - self.overlap_change_us)

    @property
    def adds_up(self) -> bool | None:
        """Return whether the remainder is a small part of the change or of the busy time."""
        if self.remainder_us is None or self.busy_change_us is None or self.base.busy_us is None:
            return None
        of_change_us, of_busy_us = abs(self.busy_change_us), self.base.busy_us
        return abs(self.remainder_us) <= max(MOST_OF_CHANGE * of_change_us, MOST_OF_BUSY * of_busy_us)

    def share(self, change_us: float) -> float | None:
        """Return a part of the change of busy time; None where that is too small to be divided by."""
        whole = self.busy_change_us
        if whole is None or not self.base.busy_us or abs(whole) < 1e-4 * self.base.busy_us:
            return None
        return change_us / whole


def attribute(
    base: Sequence[Compiled],
    head: Sequence[Compiled],
    *,
    same_card: bool = True,
    base_call_us: float | None = None,
    head_call_us: float | None = None,
) -> Attribution:
    """Return what changed from `base` to `head`, each at least one compilation. Raise ValueError without."""
    if not base or not head:
        raise ValueError("each side needs a compilation")
    before, after = _slots(base), _slots(head)
    changes: list[Change] = []
    for slot in dict.fromkeys((*before, *after)):
        changes += _of_slot(slot, before.get(slot, {}), after.get(slot, {}))
    changes, ratio = _judge_noise(changes, same_card=same_card)
    changes, groups = _move(changes)
    changes.sort(key=lambda row: (CAUSES.index(row.cause), row.group, -abs(row.change_us), row.slot))
    old, new = _side(base, before.values(), base_call_us), _side(head, after.values(), head_call_us)
    ends = ((getattr(old, name), getattr(new, name)) for name in ("busy_us", "gaps_us", "overhead_us"))
    busy_us, gaps_us, overhead_us = (
        None if None in (base_us, head_us) else head_us - base_us for base_us, head_us in ends
    )
    overlap_us = new.overlap_us - old.overlap_us
    return Attribution(old, new, changes, busy_us, gaps_us, overhead_us, overlap_us, ratio, groups)


@dataclass
class _Choice:
    """A choice of a slot: in which portion of the side's compilations it came, and its median time."""

    kernel: Kernel
    portion: float
    time_us: float | None
    binaries: set[str]


_Slot = dict[str, _Choice]  # by choice


def _slots(side: Sequence[Compiled]) -> dict[str, _Slot]:
    """Return each slot's choices, whose kernels name what any compilation skipped there."""
    seen: defaultdict[tuple[str, str], list[Kernel]] = defaultdict(list)
    skipped: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for compiled in side:
        for kernel in compiled.kernels:
            seen[kernel.slot, kernel.choice].append(kernel)
            skipped[kernel.slot].update(kernel.skipped)
    slots: defaultdict[str, _Slot] = defaultdict(dict)
    for (slot, choice), kernels in seen.items():
        times = [kernel.time_us for kernel in kernels if kernel.time_us is not None]
        time_us, portion = median(times) if times else None, len(kernels) / len(side)
        last = kernels[-1]
        if skipped[slot]:
            last = replace(last, skipped=tuple(skipped[slot].items()))
        slots[slot][choice] = _Choice(last, portion, time_us, {kernel.binary for kernel in kernels})
    return slots


def _of_slot(slot: str, before: _Slot, after: _Slot) -> Iterator[Change]:
    """Yield the parts of a slot: what both sides drew alike, then what they drew differently."""
    if not before or not after:
        yield _change(slot, "appeared" if after else "vanished", before.values(), after.values())
        return
    left = dict(before), dict(after)
    for choice in [choice for choice in before if choice in after]:  # in an order that is always the same
        base, head = before[choice], after[choice]
        portion = min(base.portion, head.portion)
        cause: Cause = "unchanged" if base.binaries & head.binaries else "code"
        yield _change(slot, cause, [replace(base, portion=portion)], [replace(head, portion=portion)])
        for side in left:
            rest = side.pop(choice)
            if rest.portion - portion > 1e-9:
                side[choice] = replace(rest, portion=rest.portion - portion)
    if left[0] or left[1]:
        elected = {choice.kernel.config for choice in before.values()}
        skipped = {config for choice in after.values() for config, _spills in choice.kernel.skipped}
        cause = "choice" if elected.isdisjoint(skipped) else "spilled"
        yield _change(slot, cause, left[0].values(), left[1].values())


def _change(slot: str, cause: Cause, before: Collection[_Choice], after: Collection[_Choice]) -> Change:
    (base, base_us, base_portion), (head, head_us, head_portion) = _mean(before), _mean(after)
    return Change(slot, cause, base, head, base_us, head_us, max(base_portion, head_portion))


def _mean(choices: Collection[_Choice]) -> tuple[Kernel | None, float | None, float]:
    """Return the kernel of the most frequent choice, the sum of the times, each as often as it came, and the
    portion of the compilations that drew one of them."""
    most = max(choices, key=lambda choice: choice.portion, default=None)
    times = [choice.time_us * choice.portion for choice in choices if choice.time_us is not None]
    portion = sum(choice.portion for choice in choices)
    return most.kernel if most else None, sum(times) if times else None, portion


def _judge_noise(changes: list[Change], *, same_card: bool) -> tuple[list[Change], float | None]:
    """Tell changes of time from noise, and the same binary's by their direction."""
    ratio, relative = 1.0, RELATIVE_NOISE
    if not same_card:
        same = (change for change in changes if change.cause == "unchanged")
        ratios = [row.head_us / row.base_us for row in same if row.base_us and row.head_us is not None]
        if len(ratios) >= LEAST_SHARED:
            ratio = median(ratios)
        else:
            relative = OTHER_CARD_NOISE
    judged = []
    for change in changes:
        before, after = (change.base_us or 0.0) * ratio, change.head_us or 0.0
        noise = max(relative * max(before, after), NOISE_US_PER_CALL * change.kernel.calls * change.portion)
        beyond, cause = abs(after - before) > noise, change.cause
        if cause == "unchanged" and beyond:
            cause = "slower" if after > before else "faster"
        judged.append(replace(change, cause=cause, beyond_noise=beyond))
    return judged, None if ratio == 1.0 else ratio


def _move(changes: Sequence[Change]) -> tuple[list[Change], dict[int, tuple[int, int]]]:
    """Join kernels that vanished and appeared with common operators; return the kernels of each group too."""
    joined: list[tuple[set[str], list[int]]] = []  # operators and the places of their kernels
    for index, change in enumerate(changes):
        if change.cause in ("appeared", "vanished") and change.kernel.origins:
            origins, places = set(change.kernel.origins), [index]
            for other in [each for each in joined if not each[0].isdisjoint(origins)]:
                joined.remove(other)
                origins |= other[0]
                places += other[1]
            joined.append((origins, places))
    both = [places for _origins, places in joined if len({changes[index].cause for index in places}) == 2]
    moved, groups = list(changes), {}
    for number, places in enumerate(sorted(both, key=min), start=1):
        causes = [changes[index].cause for index in places]
        groups[number] = causes.count("vanished"), causes.count("appeared")
        for index in places:
            moved[index] = replace(changes[index], cause="moved", group=number)
    return moved, groups


def _side(side: Sequence[Compiled], slots: Iterable[_Slot], call_us: float | None) -> SideTimes:
    """Return the means. The kernels' is made of the medians that the changes are made of."""
    means = [time_us for slot in slots if (time_us := _mean(slot.values())[1]) is not None]
    kernels_us = sum(means) if means else None
    overlap_us = _mean_of(compiled.overlap_us for compiled in side) or 0.0
    busy_us = _mean_of(compiled.busy_us for compiled in side)
    gaps_us = _mean_of(compiled.gaps_us for compiled in side)
    if busy_us is None and kernels_us is not None:
        busy_us = kernels_us - overlap_us
    overhead_us = None if call_us is None or busy_us is None else call_us - busy_us - (gaps_us or 0.0)
    return SideTimes(len(side), kernels_us, busy_us, gaps_us, overlap_us, call_us, overhead_us)


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# ---- graphs

_PHASES = tomllib.loads(Path(__file__).with_name("phases.toml").read_text("utf-8"))  # of each part


@dataclass(frozen=True)
class NoteChange:
    """A reason that one side gives more often. Counts are means over the compilations."""

    kind: str  # graph break, recompile, CUDA-graph skip
    reason: str
    place: str
    base: float
    head: float


@dataclass(frozen=True)
class PartChange:
    """A part of compile time in seconds; None: the side does not report it."""

    name: str
    base_s: float | None
    head_s: float | None

    @property
    def change_s(self) -> float | None:
        return None if self.base_s is None or self.head_s is None else self.head_s - self.base_s


NOTES = {"graph break": "graph_breaks", "recompile": "recompiles", "CUDA-graph skip": "cudagraph_skips"}


def note_changes(base: Sequence[Compiled], head: Sequence[Compiled]) -> list[NoteChange]:
    """Return the reasons that came on one side only or in another number, the largest difference first."""
    changes = []
    for kind, name in NOTES.items():
        before, after = (_counts([getattr(compiled, name) for compiled in side]) for side in (base, head))
        changes += [
            NoteChange(kind, *key, before[key], after[key])
            for key in dict.fromkeys((*before, *after))
            if before[key] != after[key]
        ]
    return sorted(changes, key=lambda change: -abs(change.head - change.base))


def notes_of(side: Sequence[Compiled]) -> list[NoteChange]:
    """Return all reasons of one side, as of a point that is compared with itself, the most frequent first."""
    return [replace(change, base=change.head) for change in note_changes([], side)]


def _counts(notes: Sequence[Iterable[Note]]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for compilation in notes:
        for note in compilation:
            counts[note.reason, note.place] += note.count / len(notes)  # type: ignore[assignment]
    return counts


def phase_changes(
    base: Sequence[Compiled], head: Sequence[Compiled], *, totals_s: tuple[float | None, float | None]
) -> list[PartChange]:
    """Return the parts of compile time that either side reports, in order, then the rest of the totals."""
    parts = [PartChange(name, _mean_s(base, name), _mean_s(head, name)) for name in _PHASES]
    there = [part for part in parts if part.base_s is not None or part.head_s is not None]
    if there and None not in totals_s:
        rest = [
            (total or 0.0) - sum(getattr(part, side) or 0.0 for part in there)
            for total, side in zip(totals_s, ("base_s", "head_s"), strict=True)
        ]
        there.append(PartChange("Other", *rest))
    return there


def _mean_s(side: Sequence[Compiled], part: str) -> float | None:
    """Return how long a part takes in the mean of the compilations that report phases."""
    known = [compiled.phases_s for compiled in side if compiled.phases_s]
    own, inside = (
        sum(phases.get(name, 0.0) for phases in known for name in names)
        for names in (_PHASES[part]["phases"], _PHASES[part].get("inside", ()))
    )
    is_known = any(name in phases for phases in known for name in _PHASES[part]["phases"])
    return max(own - inside, 0.0) / len(known) if is_known else None
