"""What every format has in common: it is known by its content, it names what it leaves out, and no bytes
at all make it fail in another way than by refusing them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.ingest import BadUpload, ingest
from hud.ingest.parse import RecordParser
from hud.models import Experiment, Measurement
from runner.formats import FORMATS, format_of, reasons
from runner.formats.errors import MalformedUpload
from runner.formats.format import Format, Item, LocatedRecord, Preview
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.schema.metrics import METRICS, metric_info
from runner.schema.records import Benchmark, Metric, Model, Record
from tests.support.observed import SAMPLES, SHIPPED, observe, observe_sample
from tests.support.records import as_list, v3_record


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("xla_results.jsonl", "xla"),
        ("metrics-20260812093000.json", "userbenchmark"),
        ("pr_time_results.csv", "pr_time"),
        ("pr_time_expected_results.csv", "pr_time"),
        ("operatorbench_timm_float32.csv", "operatorbench"),
        ("inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda_performance.csv", "torchdynamo"),
        ("inductor_no_cudagraphs_torchbench_float32_training_cuda_accuracy.csv", "torchdynamo"),
        ("inductor_huggingface_training_graph_breaks.csv", "graph_breaks"),
    ],
)
def test_a_format_is_known_by_its_content_under_any_name(name: str, expected: str) -> None:
    body = (SAMPLES / name).read_bytes()
    assert format_of("", body).name == expected
    assert format_of("", b"\xef\xbb\xbf" + body if name.endswith("csv") else body).name == expected
    observer = observe(body)
    assert observer.measurements or observer.receipt.skipped or observer.expected
    assert not observer.faults


def test_v3_takes_other_json_and_the_runner_s_own_file_has_its_format() -> None:
    assert format_of("", as_list(v3_record())).name == "v3"
    line = {"fingerprint": "ab", "task": {}, "outcome": {"status": "ok"}, "records": [v3_record(), {"x": 1}]}
    body = json.dumps(line).encode()
    assert format_of("", body).name == "ours"
    observer = observe(body)
    assert (len(observer.measurements), observer.receipt.skipped) == (
        1,
        [{"pointer": "/records/1", "reason": reasons.NO_METRIC, "kind": "ignored"}],
    )
    assert observe(body + b"\n{broken\n").faults[0].line == 2


@pytest.mark.parametrize(
    "body",
    [
        b"hello world",
        b"a,b,c\n1,2,3\n",
        b"dev,name\ncuda,x\n",
        b"\x01\x02\r\n\x1a\n\0\0",
        b"name,metric\nx,y\n",
    ],
)
def test_an_unknown_file_is_refused_with_the_formats_there_are(body: bytes) -> None:
    with pytest.raises(MalformedUpload) as caught:
        format_of("", body)
    assert "torchdynamo" in caught.value.faults[0].detail


def test_a_format_is_one_module_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(body: bytes, filename: str) -> Iterator[Item]:
        for line, words in enumerate(body.decode().splitlines()[1:], start=2):
            case, value = words.split()
            record = Record(Benchmark("Sleepy"), Model(case), Metric("naps", [float(value)]))
            yield LocatedRecord(record, "", line)

    def describe(measurement: ParsedMeasurement, _record: Record, _given: Parameters) -> None:
        measurement.suite, measurement.device = "sleepy", "cpu"

    sleepy = Format(
        "sleepy",
        matches=lambda preview: preview.columns() == ["sleepy"],
        read=read,
        describe={"Sleepy": describe},
    )
    monkeypatch.setitem(FORMATS, "sleepy", sleepy)
    (item,) = observe("sleepy\ncat 3\n").measurements
    assert (item.suite, item.case, item.metric, item.samples) == ("sleepy", "cat", "naps", [3.0])


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in {"v3", "cachebench"}])
@pytest.mark.parametrize("body", [b"", b"x\n", b"[]", b"{}", b'{"a": 1}\n{"b": 2}\n', b"\xff\xfe", b"a,\0,b"])
def test_a_named_format_refuses_what_is_not_its_own(name: str, body: bytes) -> None:
    said: list[Any] = [body == b"[]"]  # no records, nothing wrong
    try:
        observer = observe(body, format=name)
    except BadUpload as error:
        said += error.faults
    else:
        said += [*observer.faults, *observer.receipt.skipped]
        assert not observer.measurements
    assert any(said)


def test_a_json_body_may_be_given_under_the_name_of_its_script() -> None:
    body = as_list(v3_record())
    for name in ("gpt_fast", "torchdynamo", "cachebench"):
        assert len(observe(body, format=name).measurements) == 1


# ---- files that PyTorch's own scripts wrote


def _places(path: Path) -> int:
    """Records in: numbers and codes of a table, records of JSON."""
    if path.suffix == ".json":
        text = path.read_text()
        return len(json.loads(text)) if text.startswith("[") else sum(1 for line in text.splitlines() if line)
    rows = list(csv.reader(io.StringIO(path.read_text())))
    if rows[0][0] == "name":
        return len(rows) - 1
    beside = 1 if rows[0][0] == "operator" else 3
    return (len(rows) - 1) * (len(rows[0]) - beside)


@pytest.mark.django_db
def test_every_shipped_file_goes_in_with_no_unexplained_skip(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [SHIPPED / "pytorch-h200", SHIPPED / "pytorch-h200-repeat"]
    call_command("ingest", *map(str, folders), "--json")
    receipts = {item["file"]: item for item in json.loads(capsys.readouterr().out)}
    files = [path for folder in folders for path in folder.iterdir() if path.name != "manifest.json"]
    assert set(receipts) == {str(path) for path in files}
    for path in files:
        receipt = receipts[str(path)]
        assert {entry["reason"] for entry in receipt["skipped"]} <= set(reasons.REASONS)
        phases = path.name.endswith("_compilation_metrics.csv")
        skipped_rows = {entry["line"] for entry in receipt["skipped"]}
        assert skipped_rows == ({2, 4, 5} if phases else set())
        about_the_file = [text for text in receipt["warnings"] if "more precise" not in text]
        assert len(about_the_file) == (1 if phases else 0)
        columns = _places(path) // 4 if phases else 0
        assert receipt["stored"] + receipt["duplicates"] + len(skipped_rows) * columns == _places(path)
    assert Measurement.objects.count() == sum(item["stored"] for item in receipts.values()) == 301
    assert set(Experiment.objects.values_list("arch", "device")) == {("h200", "cuda")}
    assert Experiment.objects.count() == 30, "a CSV and the JSON lines of one run have the same identities"


def _normal(observer: RecordParser) -> list[tuple[Any, ...]]:
    return sorted(
        (item.identity, item.metric, tuple(round(value, 6) for value in item.samples), item.status, item.code)
        for item in observer.measurements
    )


@pytest.mark.parametrize(
    "name", ["hf_infer_perf", "hf_infer_acc", "hf_train_perf", "timm_infer_perf", "gpt_fast"]
)
def test_the_csv_and_the_json_lines_of_one_run_say_the_same(name: str) -> None:
    folder = SHIPPED / "pytorch-h200"
    suite = "timm" if name.startswith("timm") else "huggingface"
    mode, dtype = ("training", "amp") if "train" in name else ("inference", "bfloat16")
    parameters = {"suite": suite, "mode": mode, "dtype": dtype, "backend": "inductor", "arch": "h200"}
    from_csv = observe((folder / f"{name}.csv").read_bytes(), f"{name}.csv", **parameters)
    from_json = observe((folder / f"{name}.json").read_bytes(), f"{name}.json", **parameters)
    assert _normal(from_csv) == _normal(from_json)
    assert from_csv.measurements[0].run == from_json.measurements[0].run


@pytest.mark.django_db
def test_a_file_made_by_hand_goes_through_the_whole_door() -> None:
    for path in sorted(SAMPLES.iterdir()):
        if path.suffix in {".md", ".sql", ".xz"}:
            continue
        receipt = ingest(path.read_bytes(), Parameters(filename=path.name, arch="a100-40gb"))
        assert receipt.stored or path.name == "pr_time_expected_results.csv"
        assert {entry["reason"] for entry in receipt.skipped} <= set(reasons.REASONS)
        again = ingest(path.read_bytes(), Parameters(filename=path.name, arch="a100-40gb"))
        assert (again.stored, again.duplicates) == (0, receipt.stored)


@pytest.mark.parametrize(
    "name",
    [
        "operatorbench_timm_float32.csv",
        "inductor_huggingface_training_graph_breaks.csv",
        "inductor_no_cudagraphs_torchbench_float32_training_cuda_accuracy.csv",
    ],
)
def test_two_files_put_together_have_their_header_twice(name: str) -> None:
    body = (SAMPLES / name).read_bytes()
    once, twice = observe(body, name), observe(body + body, name)
    assert not twice.faults
    assert {item.identity for item in twice.measurements} == {item.identity for item in once.measurements}


def test_records_as_other_people_s_tools_write_them() -> None:
    """The shapes of PyTorch's own test records: nothing in them, texts that hold JSON, booleans, zeros."""
    bare = observe(b'[{}, {"repo": "pytorch/pytorch"}, {"repo": "x", "workflow_id": 1, "metric": null}]')
    assert (bare.measurements, bare.faults) == ([], [])
    assert [entry["pointer"] for entry in bare.receipt.skipped] == ["/0", "/1", "/2"]
    phone = {
        "benchmark": {
            "name": "ExecuTorch",
            "mode": "inference",
            "extra_info": {
                "app_type": "IOS_APP",
                "benchmark_config": json.dumps({"a": "b" * 150}),
                "on": True,
            },
        },
        "model": {"name": "edsr", "type": "OSS model", "backend": "xnnpack_q8"},
        "metric": {
            "name": "peak_inference_mem_usage(mb)",
            "benchmark_values": [333.2014794921875],
            "target_value": 0,
            "extra_info": {"method": "forward"},
        },
        "runners": [
            {"name": "Apple iPhone 15", "type": "iOS 18.0", "avail_mem_in_gb": 0, "total_mem_in_gb": 0}
        ],
        "timestamp": 1755000000000,
        "schema_version": "v3",
    }
    item = observe(json.dumps(phone)).measurements[0]
    assert item.identity[:2] == ("executorch", "edsr")
    assert (item.samples, item.target, item.run.host) == ([333.2014794921875], None, "Apple iPhone 15")
    assert item.run.order_time is not None
    assert item.run.order_time.year == 2025


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (b'"extra_info": {"a": 1, "a": 2}', "said twice"),
        (b'"extra_info": {"a": 36893488147419103232}', "64 bits"),
        (b'"extra_info": {"a": ' + b"[" * 20 + b"]" * 20 + b"}", "deeper"),
    ],
)
def test_json_that_the_door_does_not_take_is_a_fault_in_every_container(wrong: bytes, words: str) -> None:
    good = json.dumps(v3_record()).encode()
    bad = good.replace(b'"target_value"', wrong + b', "target_value"')
    xla = b'{"model": {"model_name": "a"}, "experiment": {}, "metrics": {}, ' + wrong + b"}"
    for body, pointer, line in (
        (b"[" + good + b"," + bad + b"]", "/1", None),
        (good + b"\n" + bad, "", 2),
        (good + b"\n[" + good + b"," + bad + b"]", "/1", 2),
        (xla, "", None),
    ):
        fault = observe(body).faults[0]
        assert (fault.pointer, fault.line) == (pointer, line)
        assert words in fault.detail


# ---- the registry


def test_names_of_the_systems_have_unit_and_direction() -> None:
    for sample in ("xla_results.jsonl", "operatorbench_timm_float32.csv", "metrics-20260812093000.json"):
        for item in observe_sample(sample).measurements:
            info = metric_info(item.metric)
            assert (
                info.kind == "status"
                or info.unit
                or item.metric
                in {
                    "latency",
                    "iter_latencies",
                    "value",
                }
            ), item.metric
    phases = observe((SHIPPED / "pytorch-h200" / "hf_infer_perf_compilation_metrics.csv").read_bytes())
    assert {
        (metric_info(item.metric).unit, metric_info(item.metric).direction) for item in phases.measurements
    } == {("s", "down")}
    assert metric_info("somebody's own").direction == "none"
    assert all(info.name == name for name, info in METRICS.items())


# ---- any bytes

_HEADERS = (
    "dev,name,batch_size,speedup,abs_latency,compilation_latency\n",
    "dev,name,batch_size,tag,accuracy,graph_breaks\n",
    "dev,name,batch_size,max,mean,std\n",
    "dev,name,batch_size,_compile.compile_inner,gc\n",
    "model,reason,user_stack\n",
    "name,metric,target,actual,dtype,device,arch,is_model\n",
    "operator,inductor 20th,inductor 50th,inductor 80th,elapsed,eager abs,inductor abs\n",
    "",
)
_CELL = st.one_of(
    st.sampled_from(
        ["", "0", "0.000000", "1", "cuda", "1.5", "nan", "1e400", "-3", "pass", '"', "\r", "x,y"]
    ),
    st.text(max_size=8),
)
_ROWS = st.lists(st.lists(_CELL, max_size=9), max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    ["", "metrics-20261399000000.json", "operatorbench_timm_float16.csv", "a_deduped.csv"]
)
_UNHURRIED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _read(name: str, body: bytes, filename: str) -> None:
    """Records, faults or BadUpload; another exception fails the test."""
    observer = RecordParser(Parameters(filename=filename))
    FORMATS[name].matches(Preview(body))
    with suppress(BadUpload):
        for item in FORMATS[name].read(body, filename):
            observer.add(item)
    for one in observer.measurements:
        assert all(math.isfinite(value) for value in one.samples)
        assert one.samples or one.status != "ok" or one.code
    assert {entry["reason"] for entry in observer.receipt.skipped} <= set(reasons.REASONS)


@pytest.mark.parametrize("name", FORMATS)
@_UNHURRIED
@given(body=st.binary(max_size=200), filename=_NAMES)
def test_any_bytes_are_read_or_refused(name: str, body: bytes, filename: str) -> None:
    _read(name, body, filename)


@pytest.mark.parametrize("header", _HEADERS)
@_UNHURRIED
@given(rows=_ROWS, filename=_NAMES)
def test_any_table_under_a_known_header_is_read_or_refused(
    header: str, rows: list[list[str]], filename: str
) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    body = (header + text.getvalue()).encode("utf-8", "replace")
    for name in ("torchdynamo", "graph_breaks", "gpt_fast", "operatorbench", "pr_time"):
        _read(name, body, filename)


@_UNHURRIED
@given(experiment=_JSON, metrics=_JSON, rest=_JSON)
def test_any_json_in_a_known_frame_is_read_or_refused(experiment: Any, metrics: Any, rest: Any) -> None:
    frames: dict[str, Any] = {
        "xla": {
            "model": {"suite_name": rest, "model_name": "m"},
            "experiment": experiment if isinstance(experiment, dict) else {"test": experiment, "xla": rest},
            "metrics": metrics if isinstance(metrics, dict) else {"total_time": metrics},
            "iterations_per_run": rest,
            "timestamp": rest,
            "verification_code": rest,
        },
        "userbenchmark": {
            "name": "n",
            "environ": experiment if isinstance(experiment, dict) else {"device": experiment},
            "metrics": metrics if isinstance(metrics, dict) else {"x-eval_latency": metrics},
        },
        "ours": {"fingerprint": rest, "task": {}, "outcome": {}, "records": [experiment, v3_record()]},
        "v3": {**v3_record(values=[1]), "inputs": rest, "runners": experiment, "dependencies": metrics},
    }
    for name, frame in frames.items():
        _read(name, json.dumps(frame).encode(), "")
        _read(name, json.dumps([frame, experiment]).encode(), "")


_FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
_WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,20}", fullmatch=True)


@_UNHURRIED
@given(numbers=st.lists(_FINITE, min_size=1, max_size=8), model=_WORD)
def test_numbers_of_a_table_keep_every_bit(numbers: list[float], model: str) -> None:
    columns = [f"column_{index}" for index in range(len(numbers))]
    header = ",".join(["dev", "name", "batch_size", "speedup", *columns])
    row = ",".join(["cpu", model, "1", "1.5", *map(repr, numbers)])
    observer = observe(f"{header}\n{row}\n")
    assert not observer.faults
    assert [item.samples for item in observer.measurements] == [[1.5], *([number] for number in numbers)]
