"""Identities: what a record of each system measures, records of nobody's, and our own export."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hud.ingest.parse import RecordParser
from runner.formats.format import LocatedRecord
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.torchdynamo.batch_sizes import default_batch_size, suite_of_model
from runner.schema.records import Benchmark, Metric, Model, Record
from tests.support.observed import observe
from tests.support.records import as_list, v3_record


def record(benchmark: str = "somebody's own", metric: str = "m", **info: Any) -> Record:
    return Record(Benchmark(benchmark, extra_info=info), Model("case"), Metric(metric, [1.0]))


def describe(record: Record, given: Parameters) -> ParsedMeasurement:
    parser = RecordParser(given)
    parser.add(LocatedRecord(record, ""))
    (measurement,) = parser.measurements
    return measurement


def test_a_benchmark_nobody_knows_keeps_its_settings_apart() -> None:
    nested = {"model": "edsr", "config": "x" * 200}
    about = describe(
        record(use_compile=True, batch=4, name_of_it="short", config=json.dumps(nested), nested=nested),
        Parameters(),
    )
    assert about.suite == "somebody_s_own"
    assert about.knobs["use_compile"] is True
    assert about.knobs["batch"] == 4
    assert about.knobs["config"].startswith("sha256:")
    assert about.knobs["nested"].startswith("sha256:")
    assert about.knobs["config"] != about.knobs["nested"]


def test_more_settings_than_an_identity_holds_become_a_digest_that_keeps_them_apart() -> None:
    many = {f"setting_{number}": "x" * 50 for number in range(100)}
    one, other = describe(record(**many), Parameters()), describe(record(**many, more=1), Parameters())
    assert set(one.knobs) == {"settings"}
    assert one.knobs != other.knobs


@pytest.mark.parametrize("benchmark", ["somebody's own", "micro", "ExecuTorch"])
def test_knobs_in_the_place_of_our_own_runner_are_read_of_any_benchmark(benchmark: str) -> None:
    small, large = (
        describe(record(benchmark, knobs={"D": size, "path": "a"}), Parameters()) for size in (256, 512)
    )
    assert (small.knobs["D"], small.knobs["path"], large.knobs["D"]) == (256, "a", 512)
    both = describe(record(benchmark, D=1, knobs={"D": 2, "absent": None}), Parameters())
    assert both.knobs == {"D": 2}


def test_knobs_that_a_benchmark_does_not_have_are_named_in_a_warning() -> None:
    parser = RecordParser(Parameters())
    for size in (256, 512):
        parser.add(LocatedRecord(record("TorchInductor", "speedup", knobs={"D": size}), ""))
    (warning,) = parser.receipt.warnings
    assert warning.endswith(": D")
    assert "TorchInductor" in warning


def test_settings_that_name_a_place_or_a_moment_are_no_identity() -> None:
    about = describe(
        record(
            timestamp=5,
            run_date="x",
            output="/r/a.csv",
            git_sha="ab",
            accounting_digest="ff",
            host="h",
            kept=1,
        ),
        Parameters(),
    )
    assert about.knobs == {"kept": 1}


@pytest.mark.parametrize(
    ("value", "is_setting"),
    [
        ("2.10.0.dev20261127+cu130", False),
        ("3.4.0", True),  # of two releases in one file each is an experiment
        ("0123456789abcdef0123456789abcdef01234567", False),
        ("2026-11-27T02:00:00Z", False),
        ("1.5", True),
        ("0.1,0.2", True),
        ("8x128", True),
        ("llama-3.1.0", True),
    ],
)
def test_a_version_a_commit_or_a_day_is_no_identity_whatever_it_is_called(
    value: str, is_setting: bool
) -> None:
    """A nightly's own script puts a build beside its settings, and each night would be its own series."""
    about = describe(record(triton=value), Parameters())
    assert about.knobs == ({"triton": value} if is_setting else {})


def test_only_a_version_is_the_build_of_torch() -> None:
    assert describe(record(torch="2.10.0", pytorch=True), Parameters()).knobs == {"pytorch": True}
    assert describe(record(torch="eager"), Parameters()).knobs == {"torch": "eager"}


def test_inputs_of_an_operator_are_part_of_its_identity() -> None:
    one, other = record(), record()
    one.inputs = {"x": {"dtype": "float16", "extra_info": {"shape": "[4, 4]"}}}
    other.inputs = {"x": {"dtype": "float16", "extra_info": {"shape": "[8, 8]"}}}
    assert describe(one, Parameters()).knobs != describe(other, Parameters()).knobs


def test_a_kernel_s_sweep_is_no_setting_of_the_kernel() -> None:
    info = {"record_type": "kernel", "shape_hash": "ab", "suite": "timm", "sweep_total_repros": "12"}
    one = describe(record("inductor-kernel-benchmark", **info), Parameters())
    other = describe(
        record("inductor-kernel-benchmark", **{**info, "sweep_total_repros": "13"}), Parameters()
    )
    assert one.knobs == other.knobs == {"record_type": "kernel", "shape_hash": "ab", "suite": "timm"}


def test_the_kind_of_device_may_stand_in_the_runner_s_name() -> None:
    said = record()
    said.runners = [{"name": "cuda", "type": "NVIDIA B200"}]
    about = describe(said, Parameters(device="cpu", arch="a100"))
    assert (about.device, about.arch) == ("cuda", "b200")


def test_cachebench_s_dtype_follows_from_its_mode() -> None:
    said = record("TorchCache Benchmark", "Cold compile time (s)", is_dynamic=True, device="cuda")
    said.benchmark.mode, said.model.origins, said.model.backend = "training", ["timm_models"], "inductor"
    about = describe(said, Parameters())
    assert (about.suite, about.dtype, about.knobs, about.dynamic) == (
        "cache",
        "amp",
        {"origin": "timm"},
        True,
    )


def test_missing_and_null_metadata_are_no_fault() -> None:
    bare = {
        "benchmark": {"name": "b"},
        "model": {"name": "m", "origins": None, "backend": None, "extra_info": None},
    }
    observer = observe(
        as_list({**bare, "metric": {"name": "any name at all (µs) / 2", "benchmark_values": [1]}})
    )
    assert not observer.faults
    assert observer.measurements[0].identity[:2] == ("b", "m")


@pytest.mark.parametrize(
    ("suite", "model", "mode", "size"),
    [
        ("huggingface", "BertForMaskedLM", "training", 16),
        ("timm", "mobilevit_s", "inference", 64),
        ("torchbench", "dcgan", "training", 32),
        ("torchbench", "dcgan", "inference", 256),
        ("torchbench", "nobody_s", "inference", None),
        ("other", "BertForMaskedLM", "inference", None),
    ],
)
def test_batch_sizes_of_the_harness(suite: str, model: str, mode: str, size: int | None) -> None:
    assert default_batch_size(suite, model, mode) == size


def test_a_model_s_suite_where_only_one_has_it() -> None:
    assert suite_of_model("T5Small") == "huggingface"
    assert suite_of_model("nobody_s") == ""


# ---- our own export

STORED: dict[str, Any] = {
    "suite": "timm",
    "case": "stored case",
    "metric": "accuracy_graph_breaks",
    "knobs": {"batch_size": 8, "tag": "x"},
    "mode": "training",
    "dtype": "amp",
    "backend": "inductor_no_cudagraphs",
    "device": "cuda",
    "arch": "nvidia-a100-mig",
    "dynamic": True,
}


def exported(**over: Any) -> dict[str, Any]:
    said = v3_record(values=[1.0])
    said["benchmark"]["extra_info"]["hud"] = {**STORED, **over}
    return said


def test_an_export_s_identity_wins_over_all_else() -> None:
    observer = observe(as_list(exported()), suite="other", mode="inference", dtype="float16", arch="h100")
    assert observer.measurements[0].metric == "accuracy_graph_breaks"
    assert observer.measurements[0].identity == (
        "timm", "stored case", '{"batch_size":8,"tag":"x"}', "training", "amp", "inductor_no_cudagraphs",
        "cuda", "nvidia-a100-mig", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("over", "pointer"),
    [
        ({"suite": None}, "/0/benchmark/extra_info/hud/suite"),
        ({"dynamic": "yes"}, "/0/benchmark/extra_info/hud/dynamic"),
        ({"knobs": []}, "/0/benchmark/extra_info/hud/knobs"),
        ({"unknown": 1}, "/0/benchmark/extra_info/hud"),
        ({"process": -1}, "/0/benchmark/extra_info/hud/process"),
    ],
)
def test_an_export_that_is_not_whole_is_a_fault(over: dict[str, Any], pointer: str) -> None:
    observer = observe(as_list(exported(**over)))
    assert [fault.pointer for fault in observer.faults] == [pointer]


def test_what_stands_in_an_export_s_place_and_is_no_object_is_no_export() -> None:
    assert describe(record(hud="no object"), Parameters()).suite == "somebody_s_own"
