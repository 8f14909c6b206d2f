"""Records that say what a metric should be and not what it is: they become rows of the target table.

An upload replaces the targets that uploads set, never one that an operator set.
"""

from __future__ import annotations

from collections.abc import Sequence

from hud.ingest.parse import Expected
from hud.ingest.store import metric_ids
from hud.models import Target

_NOTE = "expected result, upload"


def keep(expected: Sequence[Expected], upload_id: int) -> tuple[int, int]:
    """Stores targets; returns how many are new or changed, and how many were there already."""
    metrics = metric_ids(sorted({item.metric for item in expected}))
    changed = 0
    for item in expected:
        note = f"{_NOTE} {upload_id}: {item.value:g} with a margin of {item.margin:.1%}"
        target, new = Target.objects.get_or_create(
            metric_id=metrics[item.metric],
            case=item.case,
            dtype=item.dtype,
            arch=item.arch,
            size="",
            defaults={"value": item.limit, "note": note},
        )
        if not new and target.value != item.limit and target.note.startswith(_NOTE):
            Target.objects.filter(pk=target.pk).update(value=item.limit, note=note)
        elif not new:
            continue
        changed += 1
    return changed, len(expected) - changed
