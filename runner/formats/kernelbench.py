"""KernelBench's baseline times: for each level and problem the mean, spread, least and largest time in ms.

Source: `scripts/generate_baseline_time.py`. The backend stands in the file's name:
`baseline_time_torch.json` is eager, `baseline_time_torch_compile_inductor_default.json` compiled; its first
files left `inductor` out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Preview, Skipped
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import finite, shortened, text
from runner.formats.table import pointer
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "KernelBench"
_LEVEL = re.compile(r"level\w{1,20}")
_METRICS = {  # by key
    "mean": "latency_ms",
    "min": "latency_min_ms",
    "max": "latency_max_ms",
    "std": "latency_std_ms",
}
_FILE = re.compile(r"baseline_time_torch(?P<compiled>_compile)?(?P<rest>[\w-]*)")
_MODE = re.compile(r"_(reduce-overhead|max-autotune(?:-no-cudagraphs)?)(?![\w-])")
_BACKEND_UNSAID = (
    "nothing says whether KernelBench's baselines ran eager or compiled: give it with the upload,"
    " ?backend=eager or ?backend=inductor"
)


def _said_by_name(filename: str) -> Mapping[str, str]:
    found = _FILE.search(PurePosixPath(filename.replace("\\", "/")).name)
    if not found:
        return {}
    if not found["compiled"]:
        return {"backend": "eager"}
    backend = "cudagraphs" if found["rest"].startswith("_cudagraphs") else "inductor"
    mode = _MODE.search(found["rest"])
    return {"backend": f"{backend}_{mode[1].replace('-', '_')}" if mode else backend}


def _matches(preview: Preview) -> bool:
    return preview.names("mean", "num_trials") and _is_baseline(preview.first_value)


def _is_baseline(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(_LEVEL.fullmatch(level) and isinstance(cases, dict) for level, cases in value.items())


def read(body: bytes, filename: str) -> Iterator[Item]:
    from runner.formats import json_text

    hints = _said_by_name(filename)
    for item in json_text.values(body):
        if isinstance(item, Fault):
            yield item
        elif not _is_baseline(item.value):
            yield Fault(item.pointer, "KernelBench's baselines are an object of levels: level1, …", item.line)
        else:
            for level, problems in item.value.items():
                for name, found in problems.items():
                    place = f"{item.pointer}/{level}{pointer(name)}"
                    case = PurePosixPath(name).name.removesuffix(".py")
                    for one in _records(f"{level}/{case}", found, place):
                        if isinstance(one, LocatedRecord):
                            one.line, one.hints = item.line, hints
                        yield one


def _records(case: str, found: Any, place: str) -> Iterator[LocatedRecord | Skipped | Fault]:
    if found is None:
        yield Skipped(place, reasons.NULL_VALUE)
        return
    if not isinstance(found, dict):
        yield Fault(place, "the times of a problem are an object with mean, std, min and max")
        return
    info = {"device": text(found.get("device")).split(":")[0], "arch": text(found.get("hardware"))}
    for key, metric in _METRICS.items():
        value = finite(found.get(key))
        if found.get(key) is None:
            yield Skipped(f"{place}/{key}", reasons.NULL_VALUE)
        elif value is None:
            yield Fault(f"{place}/{key}", f"{repr(found[key])[:60]} is not a number")
        else:
            record = Record(
                Benchmark(_BENCHMARK, "inference", extra_info=dict(info)),
                Model(shortened(case), "operator", origins=["kernelbench"]),
                Metric(metric, [value]),
            )
            yield LocatedRecord(record, f"{place}/{key}")


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    measurement.suite = "kernelbench"
    if not measurement.backend:
        measurement.warning = _BACKEND_UNSAID


FORMAT = Format(
    "kernelbench", matches=_matches, read=read, describe={_BENCHMARK: describe}, said_by_name=_said_by_name
)
