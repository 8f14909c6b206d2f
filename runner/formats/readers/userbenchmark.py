"""torchbench's userbenchmarks: `metrics-YYYYmmddHHMMSS.json` with a name, an environment and metrics.

Source: `userbenchmark/utils.py`, get_output_json, and `userbenchmark/test_bench/run.py`, whose metrics are
called "model=X, test=eval, device=cuda, bs=None, extra_args=[], metric=latencies". Other userbenchmarks
name their metrics as they like. A text in a number's place tells of a failure.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from runner.formats.errors import WrongRecord
from runner.formats.layout import VALUE, Entry, Layout, Located, Outcome, Quantity, Reading
from runner.formats.measurement import MODES
from runner.formats.metric_values import NOT_FINITE, status_of_error
from runner.formats.scalars import numbers_in, shortened
from runner.formats.table import pointer
from runner.schema.devices import DEVICE_KINDS

_TEST_BENCH = re.compile(
    r"model=(?P<model>[^,]+), test=(?P<test>[^,]*), device=(?P<device>[^,]*), bs=(?P<bs>[^,]*),"
    r" extra_args=(?P<extra_args>.*), metric=(?P<metric>[^,]+)"
)
_MODEL_TEST = re.compile(r"(?P<model>.+)-(?P<test>eval|train)_(?P<metric>\w+)")
# userbenchmark/cpu: ms and GB, as test_bench's; PyTorch HUD's own `latency` is in seconds
_CPU_METRICS = {"latency": "latencies", "cmem": "cpu_peak_mem", "gmem": "gpu_peak_mem"}
_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "amp": "amp"}
_STAMP = re.compile(r"metrics-(\d{14})\.json")
_MEMLEAK = {"True": "wrong", "False": "ok"}
_MAX_TEXT = 200
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SIZE = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_UNKNOWN_VERSION = "<unknown>"


def _cells(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each metric with what its name says."""
    for name, cell in value["metrics"].items():
        match = _TEST_BENCH.fullmatch(name)
        own = _of_test_bench(match) if match else _of_other(value["name"], name)
        yield f"/metrics{pointer(name)}", {"environ": value["environ"], **own, VALUE: cell}


def _reading(cell: Any, metric: str) -> Reading:
    if isinstance(cell, str):
        if cell in NOT_FINITE:
            raise WrongRecord("", f"{cell} is no measured value", malformed=True)
        leak = _MEMLEAK.get(cell) if metric == "memleak" else None
        status, code = (leak, cell) if leak else status_of_error(cell)
        return Outcome(status=status, code=code)
    return numbers_in(cell)


def _more(entry: Entry) -> dict[str, Any]:
    environ = entry["environ"]
    torch = {"version": environ.get("pytorch_version"), "sha": environ.get("pytorch_git_version")}
    known = {key: text for key, text in torch.items() if isinstance(text, str) and text != _UNKNOWN_VERSION}
    commit = known.get("sha", "")
    return {"dependencies": {"torch": known}, "head_sha": commit if _COMMIT.fullmatch(commit) else None}


def _of_test_bench(match: re.Match[str]) -> dict[str, Any]:
    dtype, backend, others = _understood(_arguments(match["extra_args"]))
    return {
        "case": match["model"],
        "mode": MODES.get(match["test"], match["test"]),
        "dtype": dtype,
        "backend": backend,
        "device": match["device"],
        "batch_size": int(match["bs"]) if _SIZE.fullmatch(match["bs"]) else None,
        "extra_args": shortened(" ".join(others), _MAX_TEXT),
        "origin": "torchbench",
        "metric": match["metric"],
    }


def _arguments(text: str) -> list[str]:
    """Split arguments, as test_bench writes them (a quoted list) or group_bench (with blanks between);
    ``--name=value`` is two."""
    quoted = [single or double for single, double in _WORD.findall(text)]
    words = quoted if text.startswith("[") else text.split()
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def _understood(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Return dtype, backend and the arguments that name neither."""
    dtype, backend, others = "", "eager", []
    rest = iter(arguments)
    for argument in rest:
        if argument in {"--precision", "--precisions"}:
            precision = next(rest, "")
            dtype = _PRECISIONS.get(precision, precision)
        elif argument in {"--torchdynamo", "--dynamo"}:
            backend = next(rest, "inductor")
        elif argument == "--inductor":
            backend = "inductor"
        elif argument not in {"--accuracy", "--memleak"}:
            others.append(argument)
    return dtype, backend, others


def _of_other(userbenchmark: str, name: str) -> dict[str, Any]:
    device = userbenchmark if userbenchmark in DEVICE_KINDS else ""  # userbenchmark/cpu
    if match := _MODEL_TEST.fullmatch(name):
        metric = _CPU_METRICS.get(match["metric"], match["metric"])
        own = {"case": match["model"], "mode": MODES[match["test"]], "metric": metric}
        return {**own, "device": device, "origin": "torchbench"}
    origin = re.sub(r"[^a-z0-9]+", "_", userbenchmark.lower()).strip("_")[:60] or "userbenchmark"
    return {"case": name, "device": device, "origin": origin, "metric": "value"}


def _said_by_name(filename: str) -> dict[str, str]:
    stamp = _STAMP.search(filename)
    with contextlib.suppress(ValueError):  # 14 digits that are no time
        if stamp:
            return {"run_time": datetime.strptime(stamp[1] + "+0000", "%Y%m%d%H%M%S%z").isoformat()}
    return {}


FORMAT = Layout(
    "torchbench userbenchmark",
    quantities={VALUE: Quantity(read=_reading)},
    arch=lambda entry: entry["environ"].get("device"),
    parameters={"batch_size": "batch_size", "extra_args": "extra_args"},
    more=_more,
    zero={"latencies": "failed"},
    by_name=_said_by_name,
).of_json(
    "userbenchmark",
    {"name": str, "environ": dict, "metrics": dict},
    _cells,
    said_by_name=lambda _filename: {},
)
