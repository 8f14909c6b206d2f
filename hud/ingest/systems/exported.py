"""Our own export: `benchmark.extra_info.hud` holds the identity as it is stored, and wins over all else."""

from __future__ import annotations

import msgspec

from hud.ingest.errors import Fault
from hud.ingest.systems.about import About, Exported, WrongRecord
from runner.records import STATUSES, Record


def exported(record: Record) -> Exported | None:
    """The identity that our export wrote into the record, None where it is no export of ours.

    Raises WrongRecord for one that is not whole.
    """
    value = (record.benchmark.extra_info or {}).get("hud")
    if not isinstance(value, dict):
        return None
    place = "/benchmark/extra_info/hud"
    try:
        found = msgspec.convert(value, Exported)
    except msgspec.ValidationError as error:
        raise WrongRecord(Fault(place, str(error))) from error
    if found.status is not None and found.status not in STATUSES:
        raise WrongRecord(Fault(f"{place}/status", f"one of: {', '.join(STATUSES)}"))
    if found.at and found.time is None:
        raise WrongRecord(Fault(f"{place}/at", "a time such as 2026-11-21T07:52:00Z"))
    return found


def about_exported(stored: Exported, device_name: str) -> About:
    return About(
        suite=stored.suite,
        case=stored.case,
        metric=stored.metric,
        mode=stored.mode,
        dtype=stored.dtype,
        backend=stored.backend,
        device=stored.device,
        arch=stored.arch,
        device_name=device_name,
        knobs=stored.knobs,
        dynamic=stored.dynamic,
        target_arch=stored.target_arch,
        exported=stored,
    )
