"""The table of kernels: groups by cause, bars that add up from the total before to the total after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import tomllib

from hud.judging.kernels.attribution import Attribution, Cause, Change
from hud.judging.kernels.lines import lines_of, without_folders
from hud.tables.formatting import NONE, signed, signed_share
from runner.schema.compilations import Kernel

_MOST_ROWS = 12  # of one group
_MOST_QUIET = 3  # kernels inside the noise that have rows of their own
_MUCH = 0.1  # of the change: so much inside the noise is shown
_LONGEST = 100  # kernels of one point
_SMALL = 0.0005  # of the busy time: rows below are one line
_WORTH_SAYING = 0.003  # of the busy time
_NAME = 34
_ANATOMY = {"registers": "registers", "spills": "spilled", "shared_bytes": "bytes of shared memory"}
_LAUNCHES = {"gaps": "gaps between kernels", "overhead": "call overhead"}
_WIDTH = 1000.0  # of the bars, in their own units

_FILE = Path(__file__).with_name("kernel_sums.toml")
_SUMS: list[dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))["sum"]
_TONES = {"choice": "draw", "unchanged": "same"}
_HEADINGS = {cause: heading for row in _SUMS for cause, heading in row["causes"].items()}


@dataclass(frozen=True)
class KernelBar:
    """A kernel, or with `folded` so many small ones, with its bar in thousandths of the axis."""

    name: str
    change_us: float
    tone: str
    start: float
    width: float
    folded: int = 0
    change: Change | None = None
    share: float | None = None  # of the change of busy time

    @property
    def relative(self) -> float | None:
        one = self.change
        return self.change_us / one.base_us if one and one.base_us and one.head_us is not None else None

    @property
    def config(self) -> str:
        return config_change(self.change.base, self.change.head) if self.change else ""

    @property
    def lines(self) -> Sequence[str]:
        return lines_of(self.change) if self.change else ()

    @property
    def short_lines(self) -> str:
        return without_folders(self.lines)

    @property
    def anatomy(self) -> str:
        return anatomy_change(self.change.base, self.change.head) if self.change else ""


@dataclass(frozen=True)
class CauseGroup:
    cause: Cause
    title: str
    meaning: str
    change_us: float
    share: float | None
    rows: list[KernelBar]


@dataclass(frozen=True)
class Sum:
    """One of the four sums above the table."""

    name: str  # as a cause
    title: str
    icon: str
    tone: str
    change_us: float
    kernels: int
    note: str
    quiet: float | None = None  # share of the change that is inside the noise, where it is much


@dataclass
class KernelTable:
    """All times in µs; pages show `unit`, of which one is `scale` µs."""

    attribution: Attribution
    timed: bool  # False on a CPU, where kernels have no times
    unit: str = "µs"
    scale: float = 1.0
    groups: list[CauseGroup] = field(default_factory=list)
    ticks: list[tuple[float, float]] = field(default_factory=list)  # place, µs
    before: float = 0.0  # places of the totals on the axis
    after: float = 0.0

    @classmethod
    def sums_of(cls, attribution: Attribution) -> KernelTable:
        """Return the table without its rows: the totals and their four sums."""
        base_us = attribution.base.busy_us
        table = cls(attribution, timed=base_us is not None and attribution.head.busy_us is not None)
        if base_us is not None and base_us >= 1000:
            table.unit, table.scale = "ms", 1000.0
        return table

    @classmethod
    def of(cls, attribution: Attribution) -> KernelTable:
        table = cls.sums_of(attribution)
        base_us, head_us = attribution.base.busy_us or 0.0, attribution.head.busy_us or 0.0
        changes_us = (change.change_us for change in attribution.changes)
        totals = [*accumulate(changes_us, initial=base_us), head_us]  # on the way from before to after
        margin = 0.06 * (max(totals) - min(totals)) or 0.01 * max(totals)
        low, length = min(totals) - margin, (max(totals) - min(totals) + 2 * margin) or 1.0

        def at(us: float) -> float:
            return _WIDTH * (us - low) / length

        running = base_us
        for (cause, _group), group in groupby(attribution.changes, key=lambda row: (row.cause, row.group)):
            changes = list(group)
            rows: list[KernelBar] = []
            whole_us = sum(change.change_us for change in changes)
            whole_share = attribution.share(whole_us)
            for together, of_row in _folded(changes, base_us, whole_share or 0.0):
                change_us = sum(change.change_us for change in of_row)
                start, end = sorted((running, running + change_us))
                single = None if together else of_row[0]
                name = together or _plain_name(of_row[0].kernel.name)
                tone = _TONES.get(cause) or ("slower" if change_us > 0 else "faster")
                width = max(at(end) - at(start), 2.0)
                folded, share = 0 if single else len(of_row), attribution.share(change_us)
                rows.append(KernelBar(name, change_us, tone, at(start), width, folded, single, share))
                running += change_us
            title, meaning = _HEADINGS[cause]
            if cause == "moved":
                title = _fusion(*attribution.groups[changes[0].group])
                meaning = "same operators: " + _operators(changes)
            table.groups.append(CauseGroup(cause, title, meaning, whole_us, whole_share, rows))
        table.before, table.after = at(base_us), at(head_us)
        table.ticks = [(at(value), value) for value in (low + length * share for share in (0.25, 0.5, 0.75))]
        return table

    def written(self, us: float | None) -> str:
        """Write µs in the table's unit: ms with 4 digits, µs with 2."""
        return NONE if us is None else f"{us / self.scale:.{self._digits}f}".replace("-", "−")

    def signed(self, us: float | None) -> str:
        """Like `written`, with the sign of a change."""
        return NONE if us is None else signed(us / self.scale, self._digits)

    def signed_part(self, us: float | None) -> str:
        """Write a change as a part of the baseline's busy time."""
        base_us = self.attribution.base.busy_us
        return signed_share(us / base_us if us is not None and base_us else None)

    @property
    def _digits(self) -> int:
        return 4 if self.unit == "ms" else 2

    @property
    def longest(self) -> list[KernelBar]:
        """Return the kernels that take longest, for a page of one point."""
        longest = sorted(self.attribution.changes, key=lambda change: -(change.head_us or 0.0))[:_LONGEST]
        scale = _WIDTH / ((longest[0].head_us if longest else None) or 1.0)
        return [
            KernelBar(
                _plain_name(row.kernel.name), 0.0, "same", 0.0, scale * (row.head_us or 0.0), change=row
            )
            for row in longest
        ]

    @cached_property
    def sums(self) -> list[Sum]:
        """Return the four answers: code, fusion, draw, and what no compiler changed."""
        whole = self.attribution
        sums = []
        for name, title, icon, note, causes in map(dict.values, _SUMS):
            changes = [change for change in whole.changes if change.cause in causes]
            change_us = sum(change.change_us for change in changes)
            tone = "quiet"
            if abs(change_us) >= _WORTH_SAYING * (whole.base.busy_us or 0.0) and self.timed and changes:
                tone = "active" if "choice" in causes else "worse" if change_us > 0 else "better"
            shown = "better" if (icon, tone) == ("worse", "better") else icon
            quiet = whole.share(sum(row.change_us for row in changes if row.cause == "unchanged")) or 0.0
            kernels = len({change.slot for change in changes})
            much = quiet if abs(quiet) > _MUCH else None
            sums.append(Sum(name, title, shown, tone, change_us, kernels, note, much))
        return sums

    @cached_property
    def verdict(self) -> tuple[str, str]:
        """Return the leading cause in words, and its tone."""
        attribution = self.attribution
        if not self.timed:
            other = any(bar.kernels for bar in self.sums[:3])
            return ("other code", "doubt") if other else ("same code", "quiet")
        launches = {
            "gaps": attribution.gaps_change_us or 0.0,
            "overhead": attribution.overhead_change_us or 0.0,
        }
        name, most_us = max(launches.items(), key=lambda item: abs(item[1]))
        leading = max(self.sums, key=lambda bar: abs(bar.change_us))
        base_us, change_us = attribution.base.busy_us or 0.0, attribution.busy_change_us or 0.0
        if abs(most_us) > max(abs(leading.change_us), 0.05 * base_us):
            tone = "worse" if sum(launches.values()) > 0 else "better"
            if abs(change_us) < _WORTH_SAYING * base_us:
                return "launches, not kernels", tone
            tone = tone if change_us * most_us > 0 else "doubt"
            busy, host = ("rose" if us > 0 else "fell" for us in (change_us, most_us))
            return f"device time {busy}, {_LAUNCHES[name]} {host}", tone
        return ("no change", "quiet") if leading.tone == "quiet" else (leading.name, leading.tone)

    @property
    def card_change(self) -> float | None:
        return self.attribution.card_ratio and self.attribution.card_ratio - 1

    @property
    def without_draw_us(self) -> float | None:
        """Return the change at equal choices, None without choices or times."""
        draw = self.attribution.by_cause.get("choice")
        whole = self.attribution.busy_change_us
        return None if draw is None or whole is None else whole - draw


def config_change(base: Kernel | None, head: Kernel | None) -> str:
    """Return ``XBLOCK 512 → 1024, num_warps 8 → 4``; where nothing differs the configuration, if any."""
    before, after = (_settings(kernel.config) if kernel else {} for kernel in (base, head))
    if not before or not after or before == after:
        return ", ".join(f"{name} {value}".strip() for name, value in (before or after).items())
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name, '–')} → {after.get(name, '–')}" for name in names)


def anatomy_change(base: Kernel | None, head: Kernel | None) -> str:
    """Return which candidates spill on the candidate's side alone, above all the baseline's winner, and how
    registers, spills and shared memory differ; '' for nothing known."""
    if not base or not head:
        return ""
    skipped = {config: count for config, count in head.skipped if config not in dict(base.skipped)}
    texts = []
    if winner := skipped.get(base.config, 0):
        texts.append(
            f"the earlier winner now spills {winner} register{'' if winner == 1 else 's'} and was skipped"
        )
    elif skipped:
        counts = f"{len(skipped)} candidate{'' if len(skipped) == 1 else 's'}"
        texts.append(f"{counts} skipped for spilling up to {max(skipped.values())} registers")
    for name, words in _ANATOMY.items():
        before, after = getattr(base, name), getattr(head, name)
        if None not in (before, after) and before != after:
            texts.append(f"{words} {before} → {after}")
    return ", ".join(texts)


def _settings(config: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in config.split())


def _folded(changes: Sequence[Change], busy_us: float, share: float) -> Iterable[tuple[str, list[Change]]]:
    """Yield the rows of a group: the large ones alone, without a name, and the others together. `share` is
    the group's part of the change."""
    if changes[0].cause == "unchanged":
        most = _MOST_QUIET if abs(share) > _MUCH else 0
        yield from (("", [change]) for change in changes[:most])
        for name, is_library in (("library kernels", True), ("compiled kernels", False)):
            of_kind = [change for change in changes[most:] if (change.kernel.kind == "library") == is_library]
            if of_kind:
                yield name, of_kind
        return
    alone = [change for change in changes if abs(change.change_us) >= _SMALL * busy_us][:_MOST_ROWS]
    if len(changes) - len(alone) == 1 or not alone:
        alone = list(changes[:_MOST_ROWS])
    yield from (("", [change]) for change in alone)
    rest = [change for change in changes if change not in alone]
    if rest:
        yield "smaller ones", rest


def short_name(name: str) -> str:
    """Return a Triton kernel's name without the part that all have, and of a long one the end, which tells
    kernels of one kind apart."""
    name = _plain_name(name)
    return name if len(name) <= _NAME else f"…{name[-_NAME:]}"


def _plain_name(name: str) -> str:
    prefix, fused, rest = name.partition("_fused_")
    return rest.strip("_") if fused and prefix.startswith("triton_") else name


def _fusion(before: int, after: int) -> str:
    kernels = f"{before} kernel{'' if before == 1 else 's'}"
    if before < after:
        return f"Fusion lost: {kernels} became {after}"
    return f"Fused: {kernels} became {after}" if before > after else f"{kernels} replaced"


def _operators(changes: Sequence[Change]) -> str:
    origins = (origin for change in changes for origin in change.kernel.origins)
    names = list(dict.fromkeys(origin.removeprefix("aten.") for origin in origins))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def short_config(config: str) -> str:
    """Format a configuration of Triton: ``XBLOCK=4 R0_BLOCK=4096 num_warps=8`` → ``4 × 4096, 8 warps``."""
    settings = _settings(config)
    blocks = " × ".join(value for name, value in settings.items() if name.endswith("BLOCK"))
    warps = settings.pop("num_warps", "")
    if not blocks or not warps:
        return config
    rest = [f"{name}={value}" for name, value in settings.items() if not name.endswith("BLOCK")]
    return ", ".join([blocks, f"{warps} warps", *rest])
