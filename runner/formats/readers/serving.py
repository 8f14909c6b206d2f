"""Results of servers and phones: JSON lines of `vllm bench serve` and of SGLang's bench_serving and
bench_one_batch, and what ExecuTorch wrote before v3 records.

Sources: vLLM `vllm/benchmarks/serve.py`, SGLang `python/sglang/bench_serving.py`, `bench_one_batch.py` and
`bench_one_batch_server.py`, ExecuTorch `BenchmarkMetric.java` and `.ci/scripts/benchmark_tooling`.
"""

import re
from collections.abc import Iterator
from typing import Any

from runner.formats.format import has_keys
from runner.formats.layout import VALUE, Entry, Layout, Located, Quantity
from runner.formats.scalars import groups_in_name, text
from runner.formats.table import pointer
from runner.schema.tables import rows

_TRAFFIC = (
    "dataset_name", "request_rate", "burstiness", "max_concurrency", "num_prompts", "sharegpt_output_len",
    "random_input_len", "random_output_len", "random_range_ratio",
)  # fmt: skip
_SERVED = re.compile(r"(mean|median|std|p\d+)_\w+_ms|request_(throughput|goodput)|\w+_throughput")
_SHAPE = ("batch_size", "input_len", "output_len")
_PHONE = ("device", "arch")
_PHONE_FILE = r"(?P<model>[^_]+)_(?P<backend>[^_]+)_-*(?P<arch>[^_]*[^_-])-*_(?P<os>[^_]+)\.csv"
_JOB = ("workflow_id", "job_id", "granularity_bucket")


def _model(entry: Entry) -> str:
    """Return the model of a run: SGLang names its own only in the server's settings, or as the run's name."""
    server = entry.get("server_info")
    names = [server.get("model_path")] if isinstance(server, dict) else []
    names += [entry.get(key) for key in ("model_id", "model_path", "run_name", "tag")]
    return next(filter(None, map(text, names)), "")


def _of_served(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each rate and time of a run; how it was asked for makes its settings."""
    shared = {"case": _model(value), "backend": value.get("backend") or value.get("endpoint_type")}
    shared["knobs"] = {
        name: value[name] for name in _TRAFFIC if isinstance(value.get(name), str | int | float)
    }
    shared["time"] = text(value.get("date")).replace("-", "T")  # 20260102-030405
    for name in filter(_SERVED.fullmatch, value):
        unit = "ms" if name.endswith("_ms") else "request/s" if name.startswith("request") else "token/s"
        direction = "up" if unit != "ms" else "none" if name.startswith("std") else "down"
        own = {"metric": name, "unit": unit, "direction": direction}
        yield pointer(name), {**shared, **own, VALUE: value[name]}


_OF_SERVER = {"output_throughput": float, "completed": int}
SERVING = Layout("LLM serving", suite="llm_serving", mode=lambda _entry: "inference", time="time").of_json(
    "llm_serving",
    _OF_SERVER,
    _of_served,
    matches=lambda preview: (
        preview.names(*_OF_SERVER)
        and has_keys(preview.first_value, _OF_SERVER)
        and bool(_model(preview.first_value))
    ),
)
SGLANG = Layout(
    "SGLang bench_one_batch",
    case=_model,
    quantities={
        row["name"]: Quantity(row["name"], row["unit"], row["direction"])
        for row in rows(__file__, "sglang.csv")
    },
    suite="sglang",
    mode=lambda _entry: "inference",
    backend=lambda _entry: "sglang",
    parameters={name: name for name in _SHAPE},
).of_json("sglang", {**dict.fromkeys(_SHAPE, int), "overall_throughput": float})


EXECUTORCH = Layout(
    "ExecuTorch, before v3",
    case="/benchmarkModel/name",
    quantities={"actualValue": Quantity(target="targetValue")},
    suite="executorch",
    mode=lambda _entry: "inference",
    dtype="/benchmarkModel/quantization",
    backend="/benchmarkModel/backend",
    arch=lambda entry: " ".join(filter(None, (text(entry["deviceInfo"].get(key)) for key in _PHONE))),
    parameters={
        "os": "/deviceInfo/os",
        "method": lambda entry: text(entry.get("method")).removeprefix("forward"),
    },
).of_json("executorch", {"benchmarkModel": dict, "deviceInfo": dict})


def _of_phone(row: dict[str, Any]) -> Iterator[Located]:
    """Yield each metric of a job; the file's name says model, backend and phone."""
    for name in (name for name in row if name not in _JOB):
        yield pointer(name), {**{part: row[part] for part in _JOB}, "metric": name, VALUE: row[name]}


EXECUTORCH_CSV = Layout(
    "ExecuTorch, by job",
    case="model",
    suite="executorch",
    mode=lambda _entry: "inference",
    time="granularity_bucket",
    parameters={"os": "os"},
    more=lambda entry: {part: entry[part] for part in ("workflow_id", "job_id")},
    by_name=groups_in_name(_PHONE_FILE),
).of_tables("executorch_csv", {*_JOB}.issubset, entries=_of_phone, whole_rows=True)
FORMATS = (SERVING, SGLANG, EXECUTORCH, EXECUTORCH_CSV)
