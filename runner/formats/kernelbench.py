"""KernelBench's baseline times: for each level and problem the mean, spread, least and largest time in ms.

Source: `scripts/generate_baseline_time.py`. The backend stands in the file's name:
`baseline_time_torch.json` is eager, `baseline_time_torch_compile_inductor_default.json` compiled; its first
files left `inductor` out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.formats.layout import Layout, Quantity
from runner.formats.measurement import ParsedMeasurement, warn_of_backend
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name, text
from runner.formats.table import pointer
from runner.schema.records import Record

_LEVEL = re.compile(r"level\w{1,20}")
_FILE = re.compile(r"baseline_time_torch(?P<compiled>_compile)?(?P<rest>[\w-]*)")
_MODE = re.compile(r"_(reduce-overhead|max-autotune(?:-no-cudagraphs)?)(?![\w-])")
_QUANTITIES = {
    "mean": Quantity("latency_ms"),
    "min": Quantity("latency_min_ms"),
    "max": Quantity("latency_max_ms"),
    "std": Quantity("latency_std_ms"),
}


def _said_by_name(filename: str) -> Mapping[str, str]:
    found = _FILE.search(base_name(filename))
    if not found:
        return {}
    if not found["compiled"]:
        return {"backend": "eager"}
    backend = "cudagraphs" if found["rest"].startswith("_cudagraphs") else "inductor"
    mode = _MODE.search(found["rest"])
    return {"backend": f"{backend}_{mode[1].replace('-', '_')}" if mode else backend}


def _is_baseline(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(_LEVEL.fullmatch(level) and isinstance(cases, dict) for level, cases in value.items())


def _problems(levels: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    if not _is_baseline(levels):
        yield "", "an object without levels: level1, …"
        return
    for level, problems in levels.items():
        for name, times in problems.items():
            entry = times
            if isinstance(times, dict):
                case = f"{level}/{base_name(name).removesuffix('.py')}"
                entry = {**dict.fromkeys(_QUANTITIES), **times, "case": case}
            yield f"/{level}{pointer(name)}", entry


_LAYOUT = Layout(
    "KernelBench",
    quantities=_QUANTITIES,
    suite="kernelbench",
    mode=lambda _times: "inference",
    device=lambda times: text(times.get("device")).split(":")[0],
    arch="hardware",
    by_name=_said_by_name,
)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    _LAYOUT.describe(measurement, record, given)
    warn_of_backend(measurement, "KernelBench's baselines")


FORMAT = _LAYOUT.of_json(
    "kernelbench",
    {},
    _problems,
    describe={_LAYOUT.benchmark: describe},
    matches=lambda preview: preview.names("mean", "num_trials") and _is_baseline(preview.first_value),
)
