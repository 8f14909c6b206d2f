"""Our own export: `benchmark.extra_info.hud` holds the identity as it is stored, and the run the record
belongs to, so that taking an export in again gives the same rows. It wins over all else."""

from __future__ import annotations

import re

import msgspec

from runner.formats.errors import Fault
from runner.formats.measurement_key import About, Exported, WrongRecord
from runner.formats.parameters import parse_time
from runner.records import Record

_PLACE = "/benchmark/extra_info/hud"
_PATH = re.compile(r" - at `\$(?P<path>.*)`$")


def exported(record: Record) -> Exported | None:
    """What our export wrote into the record, None where it is no export of ours.

    Raises WrongRecord for one that is not whole.
    """
    value = (record.benchmark.extra_info or {}).get("hud")
    if not isinstance(value, dict):
        return None
    try:
        found = msgspec.convert(value, Exported)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        pointer = path["path"].replace(".", "/") if path else ""
        raise WrongRecord(Fault(_PLACE + pointer, text[: path.start()] if path else text)) from error
    if found.run and parse_time(found.run.at) is None:
        raise WrongRecord(Fault(f"{_PLACE}/run/at", "a time such as 2026-11-21T07:52:00Z"))
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
        exported=stored,
    )
