"""The receipt of an upload, which every step of ingestion completes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hud.models import Run
from runner.formats.format import Skipped
from runner.formats.measurement import ParsedMeasurement

_MAX_SKIPPED = 1000  # entries that a receipt lists; it has the number of all
_MAX_WARNINGS = 100


@dataclass
class Receipt:
    """The result of an upload. `skipped` has the first entries that became no measurement, each with its
    place, the reason and its kind; `skipped_total` and, for each kind, `skipped_kinds` count all.
    `expectations` has what lists of expected results are for, with a count and what they do not say."""

    id: int | None = None
    run_ids: list[int] = field(default_factory=list)
    stored: int = 0
    duplicates: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    skipped_total: int = 0
    skipped_kinds: dict[str, int] = field(default_factory=dict)
    expectations: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)  # as `Meanings.to_json` says them
    links: dict[str, str] = field(default_factory=dict)
    replayed: bool = False  # the answer to an earlier request with the same idempotency key

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "replayed"}

    def skip(self, entry: Skipped) -> None:
        self.skipped_total += 1
        self.skipped_kinds[entry.kind] = self.skipped_kinds.get(entry.kind, 0) + 1
        if len(self.skipped) < _MAX_SKIPPED:
            self.skipped.append(entry.to_json())

    def leave_out(self, item: ParsedMeasurement, reason: str) -> None:
        """Skip a measurement that was read."""
        self.skip(Skipped(item.pointer, reason, item.line))

    def warn(self, words: str) -> None:
        """Add a warning once, '' never."""
        if words and words not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(words)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Receipt:
        """Return a stored receipt without the runs that were deleted since."""
        receipt = cls(**stored)
        left = Run.objects.filter(pk__in=receipt.run_ids).order_by("pk")
        receipt.name_runs(left.values_list("pk", flat=True))
        return receipt

    def name_runs(self, run_ids: Iterable[int]) -> None:
        """Name these runs, and link to the first of them."""
        self.run_ids = sorted(run_ids)
        self.links.pop("runs", None)
        if self.run_ids:
            self.links = {"runs": f"/runs/{self.run_ids[0]}/", **self.links}

    def add(self, other: Receipt) -> None:
        """Add the receipt of another piece of the same file."""
        self.id = self.id or other.id
        self.run_ids = sorted({*self.run_ids, *other.run_ids})
        self.stored += other.stored
        self.duplicates += other.duplicates
        self.skipped = [*self.skipped, *other.skipped][:_MAX_SKIPPED]
        self.skipped_total += other.skipped_total
        self.skipped_kinds = dict(Counter(self.skipped_kinds) + Counter(other.skipped_kinds))
        self.expectations += other.expectations
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]
        names = {metric["name"] for metric in self.metrics}
        self.metrics += [metric for metric in other.metrics if metric["name"] not in names]
        self.links = self.links or other.links
