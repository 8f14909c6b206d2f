"""The torchdynamo harness's own files: as it writes them, and equal once they came through our door."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hud.ingest import ingest
from hud.models import STATUS_NAMES, Experiment, Measurement
from runner.cli.output import Output
from runner.formats.parameters import Parameters
from runner.formats.torchdynamo.names import backend_of
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, TaskOutcome, TaskResult, plan

VALUES = {
    "speedup": [1.5],
    "compiled_latency_ms": [6.3, 6.4, 6.5],
    "cold_compile_s": [10.46],
    "compression_ratio": [0.9],
    "eager_peak_memory_bytes": [1.7e9],
    "compiled_peak_memory_bytes": [1.9e9],
    "calls_captured": [315.0],
    "unique_graphs": [1.0],
    "fallbacks_to_eager": [0.0],
    "graph_breaks": [0.0],
    "unique_graph_breaks": [0.0],
    "autograd_captures": [0.0],
    "autograd_compiles": [0.0],
    "cudagraph_skips": [2.0],
}
STORED = {
    "speedup": 1.5,
    "abs_latency": 6.4,
    "compilation_latency": 10.46,
    "compression_ratio": 0.9,
    "eager_peak_mem": 1.7,
    "dynamo_peak_mem": 1.9,
    **{name: values[0] for name, values in VALUES.items() if name[0] in "cufga" and len(values) == 1},
}
for ours in ("cold_compile_s", "compiled_peak_memory_bytes"):
    STORED.pop(ours)
PHASES = {"entire_frame_compile": 9.5, "inductor_compile": 4.25}


def task(case: str = "BertForMaskedLM", backend: str = "inductor", **options: Any) -> TaskSpec:
    (spec,) = plan(
        Selection(
            "huggingface",
            cases=[case],
            device="cuda",
            modes=["inference"],
            dtypes=["bfloat16"],
            backends=[backend],
            **options,
        )
    )
    return spec


def record(spec: TaskSpec, metric: str, values: list[float] | None, **said: Any) -> dict[str, Any]:
    about = {"device": "cuda", "arch": "NVIDIA H200", "knobs": {}, "batch_size": 16}
    return {
        "benchmark": {"name": "x", "mode": spec.mode, "dtype": spec.dtype, "extra_info": about},
        "model": {"name": spec.case, "backend": backend_of(spec).name("cuda"), "origins": [spec.suite]},
        "metric": {
            "name": metric,
            **({"benchmark_values": values} if values else {}),
            "extra_info": {"status": "ok", **said},
        },
    }


def measured(spec: TaskSpec, phases: dict[str, float] | None = None) -> TaskResult:
    records = [record(spec, name, values) for name, values in VALUES.items()]
    said = {"code": "pass", "batch_size": 1, "counts": {"calls_captured": 315}, "compile_s": 9.5}
    records += [record(spec, "accuracy", None, **said)]
    records[2]["metric"]["extra_info"]["phases_s"] = phases or PHASES
    return TaskResult(spec, TaskOutcome("ok"), Path(), records)


def failed(spec: TaskSpec) -> TaskResult:
    said = {"status": "oom", "code": "OOM"}
    records = [record(spec, name, None, **said) for name in ("accuracy", "speedup", "compiled_latency_ms")]
    return TaskResult(spec, TaskOutcome("oom"), Path(), records)


def written(tmp_path: Path, *finished: TaskResult) -> Path:
    output = Output(tmp_path / "dynamo.csv", "upstream", suites=["huggingface", "timm"], resume=False)
    for one in finished:
        output.add(one)
    return tmp_path / "dynamo"


STEM = "inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda"


def test_files_and_columns_are_the_harnesss(tmp_path: Path) -> None:
    folder = written(tmp_path, measured(task()), failed(task("T5Small")))
    names = {f"{STEM}_{kind}" for kind in ("performance", "accuracy", "performance_compilation_metrics")}
    assert {path.name for path in folder.iterdir()} == {
        f"{name}{end}" for name in names for end in (".csv", ".json")
    }
    sample = Path(__file__).parents[3] / "hud/samples/pytorch-h200"
    lines = (folder / f"{STEM}_performance.csv").read_text().splitlines()
    assert lines[0] == (sample / "hf_infer_perf.csv").read_text().splitlines()[0]
    assert (
        lines[1]
        == "cuda,BertForMaskedLM,16,1.500000,6.400000,10.460000,0.900000,1.700000,1.900000,315,1,0,0,0,0,0,2"
    )
    assert lines[2] == "cuda,T5Small,0,0.000000,0.000000" + 12 * ","
    lines = (folder / f"{STEM}_accuracy.csv").read_text().splitlines()
    assert lines[0] == (sample / "hf_infer_acc.csv").read_text().splitlines()[0]
    assert lines[1:] == [
        "cuda,BertForMaskedLM,1,pass,315,,,,,,,,9.500000",
        "cuda,T5Small,0,OOM,,,,,,,,,",
    ]
    theirs = json.loads((sample / "hf_infer_perf.json").read_text().splitlines()[0])
    ours = json.loads((folder / f"{STEM}_performance.json").read_text().splitlines()[0])
    assert set(ours["benchmark"]["extra_info"]) <= set(theirs["benchmark"]["extra_info"])
    assert {key: set(value) for key, value in ours.items()} == {
        key: set(value) for key, value in theirs.items()
    }


def test_a_phase_stands_under_its_own_name(tmp_path: Path) -> None:
    """The harness puts shorter rows under the head of the longest one."""
    other = {"gc": 0.5, **PHASES}
    folder = written(tmp_path, measured(task()), measured(task("T5Small"), other))
    rows = list(csv.DictReader((folder / f"{STEM}_performance_compilation_metrics.csv").open()))
    assert [row["gc"] for row in rows] == ["", "0.500000"]
    assert {row["inductor_compile"] for row in rows} == {"4.250000"}


@pytest.mark.django_db
@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize(
    ("backend", "knobs"),
    [
        ("inductor", {}),
        ("inductor_no_cudagraphs", {}),
        ("inductor_no_cudagraphs_freezing", {}),
        ("inductor_cpp_wrapper", {}),
        ("aot_eager", {}),
        ("inductor", {"nopython": True}),
    ],
)
def test_they_come_out_of_the_door_as_they_went_in(
    tmp_path: Path, suffix: str, backend: str, knobs: dict[str, Any]
) -> None:
    spec = task(backend=backend, knobs=knobs)
    folder = written(tmp_path, measured(spec))
    for path in sorted(folder.glob(f"*.{suffix}")):
        arch = Parameters(filename=path.name, arch="NVIDIA H200")
        receipt = ingest(path.read_bytes(), arch)
        assert receipt.stored
    found = {one.series.metric.name: one for one in Measurement.objects.select_related("series__metric")}
    assert {name: found[name].value for name in STORED} == pytest.approx(STORED)
    assert {name: found[name].value for name in PHASES} == pytest.approx(PHASES)
    assert (found["accuracy"].code, found["accuracy"].value) == ("pass", None)
    experiment = Experiment.objects.get()
    said = (experiment.suite, experiment.case, experiment.mode, experiment.dtype, experiment.device)
    assert said == ("huggingface", "BertForMaskedLM", "inference", "bfloat16", "cuda")
    assert (experiment.backend, experiment.arch) == (backend_of(spec).name("cuda"), "h200")
    if suffix == "json":  # a CSV does not say its arguments
        assert experiment.knobs == knobs


@pytest.mark.django_db
@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_failure_comes_out_as_one(tmp_path: Path, suffix: str) -> None:
    folder = written(tmp_path, failed(task()))
    for path in sorted(folder.glob(f"*.{suffix}")):
        ingest(path.read_bytes(), Parameters(filename=path.name))
    found = {one.series.metric.name: one for one in Measurement.objects.select_related("series__metric")}
    assert {name: one.value for name, one in found.items()} == dict.fromkeys(
        ("speedup", "abs_latency", "accuracy")
    )
    assert found["accuracy"].code == "OOM"


def died(spec: TaskSpec, status: str, code: str) -> TaskResult:
    """Its process left no record."""
    return TaskResult(spec, TaskOutcome(status, code), Path(), [])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "code", "word", "stored"),
    [
        ("timed_out", "timeout", "timeout", "timed_out"),
        ("crashed", "SIGSEGV", "fail_to_run", "failed"),
        ("unsupported", "no_torchbench", "model_fail_to_load", "failed"),
        ("failed", "model_fail_to_load", "model_fail_to_load", "failed"),
        ("failed", "no_torch", "infra_error", "failed"),
        ("wrong", "fail_batch_invariance_at_4", "fail_batch_invariance_at_4", "wrong"),
    ],
)
def test_what_died_has_the_harnesss_rows(
    tmp_path: Path, status: str, code: str, word: str, stored: str
) -> None:
    folder = written(tmp_path, died(task(), status, code))
    rows = list(csv.DictReader((folder / f"{STEM}_accuracy.csv").open()))
    assert [(row["batch_size"], row["accuracy"]) for row in rows] == [("0", word)]
    rows = list(csv.DictReader((folder / f"{STEM}_performance.csv").open()))
    assert [(row["batch_size"], row["speedup"]) for row in rows] == [("0", "0.000000")]
    for path in sorted(folder.glob("*.csv")):
        ingest(path.read_bytes(), Parameters(filename=path.name))
    found = {one.series.metric.name: one for one in Measurement.objects.select_related("series__metric")}
    assert (found["accuracy"].code, STATUS_NAMES[found["accuracy"].status]) == (word, stored)
    assert (found["speedup"].value, STATUS_NAMES[found["speedup"].status]) == (None, "failed")


def test_what_was_stopped_has_the_rows_that_it_came_to(tmp_path: Path) -> None:
    said = [record(task(), "accuracy", None, code="pass", batch_size=1)]
    folder = written(tmp_path, TaskResult(task(), TaskOutcome("cancelled"), Path(), said))
    assert {path.name for path in folder.iterdir()} == {f"{STEM}_accuracy{end}" for end in (".csv", ".json")}


def test_what_the_harness_cannot_say_is_in_none_of_its_files(tmp_path: Path) -> None:
    output = Output(tmp_path / "r.csv", "upstream", suites=["huggingface"], resume=False)
    tiny, plain = task(knobs={"size": "tiny"}), task()
    unsaid = "it cannot say size"
    why = f"no place in the torchdynamo harness's file: {unsaid} (1)"
    assert output.check([tiny, plain]) == f"1 of 2 tasks have {why}"
    with pytest.raises(BadRequest, match=re.escape(f"the task has {why}")):
        output.check([tiny])
    output.add(measured(tiny))
    assert not (tmp_path / "r").exists()
    assert output.empty
    assert output.left_out() == f"the task left nothing in {tmp_path / 'r.csv'}: {unsaid} (1)"
