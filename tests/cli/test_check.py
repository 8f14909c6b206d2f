"""`python -m runner check`: the answers of the harness's `check_accuracy.py` and `check_graph_breaks.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.__main__ import main

HEADER = "dev,name,batch_size,accuracy,calls_captured,unique_graphs,graph_breaks"
Statuses = dict[str, dict[str, str]]  # by check and model


def _file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _check(results: Path, *expected: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Statuses]:
    """Return the exit status, and what is said of each model in each check."""
    status = main(["check", str(results), "--expected", *map(str, expected)])
    statuses: Statuses = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(" "):
            found = statuses.setdefault(line.rstrip(":"), {})
        elif not (words := line.split())[0].isdigit():
            found[words[0]] = words[1]
    return status, statuses


@pytest.mark.parametrize(
    ("actual", "expected", "answer", "status"),
    [
        ("m,4,pass,60,1,0", "m,pass,0", ("PASS", "PASS"), 0),
        ("m,0,timeout,0,0,0", "m,timeout,0", ("XFAIL", "EAGER_FAILED"), 0),
        ("m,4,pass_due_to_skip,60,1,0", "m,pass,0", ("FAIL", "PASS"), 1),
        ("m,4,pass,60,1,0", "m,fail_accuracy,0", ("IMPROVED", "PASS"), 1),
        ("m,4,fail_accuracy,60,1,0", "m,pass,0", ("FAIL", "PASS"), 1),
        ("m,4,pass,60,3,2", "m,pass,1", ("PASS", "FAIL"), 1),
        ("m,4,pass,60,3,0", "m,pass,1", ("PASS", "IMPROVED"), 1),
        ("m,4,pass,60,1,0", "other,pass,0", ("MISSING_EXPECTED", "MISSING"), 1),
        ("m,4,,60,1,0", "m,,0", ("FAIL", "PASS"), 1),
        ("m,4,pass,60,1,9", "m,pass,", ("PASS", "PASS"), 0),
        ("yolov3,4,fail_accuracy,60,3,2", "yolov3,pass,1", ("FAIL_BUT_FLAKY", "FAIL_BUT_FLAKY"), 0),
        ("yolov3,4,pass,60,3,0", "yolov3,OOM,1", ("PASS_BUT_FLAKY", "IMPROVED_BUT_FLAKY"), 0),
        ("yolov3,4,pass,60,1,0", "yolov3,,", ("PASS_BUT_FLAKY", "PASS_BUT_FLAKY"), 0),
        ("m,4,pass,60,1,0", "m,,", ("IMPROVED", "PASS"), 1),
        ("yolov3,4,pass,60,1,0", "yolov3,pass,0", ("PASS", "PASS_BUT_FLAKY"), 0),
        ("vgg16,4,OOM,60,1,0", "vgg16,pass,0", ("FAIL", "PASS"), 1),
    ],
)
def test_a_model_is_answered_as_by_the_harness_s_scripts(
    actual: str,
    expected: str,
    answer: tuple[str, str],
    status: int,
    *,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = _file(tmp_path, "actual.csv", HEADER, f"cuda,{actual}")
    header = ("# a comment's", "name,accuracy,graph_breaks")
    listed = _file(tmp_path, "inductor_torchbench_training.csv", *header, "", expected)
    model = actual.partition(",")[0]
    assert _check(results, listed, capsys=capsys) == (
        status,
        {"accuracy": {model: answer[0]}, "graph_breaks": {model: answer[1]}},
    )


def test_rocm_s_lists_have_further_flaky_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = _file(tmp_path, "actual.csv", HEADER, "cuda,vgg16,4,OOM,60,1,0")
    listed = _file(tmp_path, "rocm/list.csv", "name,accuracy,graph_breaks", "vgg16,pass,1")
    status, statuses = _check(results, listed, capsys=capsys)
    assert (status, statuses["accuracy"]["vgg16"]) == (0, "FAIL_BUT_FLAKY")
    assert statuses["graph_breaks"]["vgg16"] == "IMPROVED_BUT_FLAKY"


def test_other_counts_of_a_list_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = _file(tmp_path, "actual.csv", HEADER, "cuda,less,4,pass,59,1,0", "cuda,more,4,pass,61,1,0")
    header = "name,accuracy,graph_breaks,calls_captured,unique_graphs"
    listed = _file(tmp_path, "list.csv", header, "less,pass,0,60,1", "more,pass,0,60,1")
    status, statuses = _check(results, listed, capsys=capsys)
    assert (status, statuses["graph_breaks"]) == (1, {"less": "FAIL", "more": "IMPROVED"})


def test_a_model_that_is_there_twice_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = _file(tmp_path, "actual.csv", HEADER, *["cuda,m,4,pass,60,1,0", "cuda,n,4,pass,60,1,0"], *[
        "cuda,m,4,pass,60,1,0"
    ])  # fmt: skip
    listed = _file(tmp_path, "list.csv", "name,accuracy,graph_breaks", "m,pass,0", "n,pass,0", "n,pass,0")
    status, statuses = _check(results, listed, capsys=capsys)
    assert (status, statuses["accuracy"]) == (1, {"m": "MISSING_ACCURACY", "n": "MISSING_EXPECTED"})
    assert statuses["graph_breaks"] == {"m": "EAGER_FAILED", "n": "MISSING"}


def test_only_what_both_have_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = _file(tmp_path, "actual.csv", "name,accuracy,graph_breaks", "m,fail_accuracy,1")
    breaks = _file(tmp_path, "breaks.csv", "name,graph_breaks", "m,0")
    assert _check(results, breaks, capsys=capsys) == (1, {"graph_breaks": {"m": "FAIL"}})
    words = _file(tmp_path, "words.csv", "name,accuracy", "m,fail_accuracy")
    assert _check(results, words, capsys=capsys) == (0, {"accuracy": {"m": "XFAIL"}})


def _record(mode: str, metric: str, values: list[float] | None = None, **extra: Any) -> dict[str, Any]:
    said = {"benchmark_values": values} if values else {"extra_info": extra}
    info = {"performance": extra.get("performance", False)}
    return {
        "benchmark": {"name": "TorchInductor", "mode": mode, "dtype": "bfloat16", "extra_info": info},
        "model": {"name": "resnet18", "backend": "inductor", "origins": ["torchbench"]},
        "metric": {"name": metric, **said},
    }


def test_results_of_ours_are_read_without_what_the_web_application_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several lists each result takes the one of its suite and mode."""
    counts = {"unique_graphs": 2, "graph_breaks": 1}
    lines = [
        [
            _record("inference", "graph_breaks", [7]),  # of the performance run
            _record("inference", "accuracy", status="ok", code="pass", counts=counts),
        ],
        [_record("training", "accuracy", status="oom", code="out_of_memory")],
    ]
    ours = [{"fingerprint": str(number), "records": records} for number, records in enumerate(lines)]
    results = _file(tmp_path, "r.json", *map(json.dumps, ours))
    lists = [
        _file(tmp_path, f"inductor_{name}.csv", "name,accuracy,graph_breaks", row)
        for name, row in (
            ("torchbench_inference", "resnet18,pass,1"),
            ("torchbench_training", "resnet18,OOM,0"),
            ("huggingface_training", "resnet18,fail_accuracy,9"),
        )
    ]
    for name in ("msgspec", "orjson", "django"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["check", str(results), "--expected", *map(str, lists)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(" ")]
    assert [row[1] for row in rows] == ["PASS", "XFAIL", "PASS", "EAGER_FAILED"]


def test_the_harness_s_json_and_a_list_by_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parents[2] / "hud/samples/pytorch-h200/hf_infer_acc.json"
    fast = json.dumps(_record("inference", "graph_breaks", [3], performance=True))
    results = _file(tmp_path, "both.json", *sample.read_text().splitlines(), fast)
    listed = _file(tmp_path, "list.csv", "name,float32,bfloat16", "BertForMaskedLM,OOM,pass", "T5Small,pass,")
    status, statuses = _check(results, listed, capsys=capsys)
    assert (status, statuses) == (1, {"accuracy": {"BertForMaskedLM": "PASS", "T5Small": "MISSING_EXPECTED"}})


@pytest.mark.parametrize(
    ("metric", "word"),
    [
        ({"benchmark_values": ["fail_accuracy"]}, "fail_accuracy"),
        ({"extra_info": {"benchmark_values": '["pass_due_to_skip"]'}}, "pass_due_to_skip"),
        ({"extra_info": {"status": "ok"}}, "pass"),
        ({"extra_info": {"status": "passed"}}, "pass"),
        ({"benchmark_values": [1.0], "extra_info": {"status": "ok"}}, "pass"),
        ({"benchmark_values": [1.0]}, "pass"),
        ({"benchmark_values": [0.0]}, "fail_accuracy"),
        ({"extra_info": {"status": "wrong"}}, "fail_accuracy"),
        ({"extra_info": {"status": "timeout"}}, "timeout"),
        ({"extra_info": {"status": "out_of_memory"}}, "OOM"),
        ({"extra_info": {"status": "failed", "code": "eager_1st_run_fail"}}, "eager_1st_run_fail"),
        ({"benchmark_values": []}, None),
    ],
)
def test_a_v3_record_says_its_outcome_as_code_status_or_number(
    metric: dict[str, Any], word: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _record("inference", "accuracy") | {"metric": {"name": "accuracy", **metric}}
    other = _record("inference", "accuracy", status="ok")
    other["model"] = {"name": "other", "backend": "inductor", "origins": ["torchbench"]}
    results = _file(tmp_path, "r.json", json.dumps([record, other]))
    listed = _file(tmp_path, "list.csv", "name,accuracy", f"resnet18,{word}", "other,pass")
    _status, statuses = _check(results, listed, capsys=capsys)
    expected = "MISSING_ACCURACY" if word is None else "PASS" if word == "pass" else "XFAIL"
    assert statuses["accuracy"] == {"resnet18": expected, "other": "PASS"}


@pytest.mark.parametrize(
    ("results", "listed", "named"),
    [
        (f"{HEADER}\ncuda,m,4,pass,60,1,0", "M,N,K\n1,2,3", "list.csv"),
        (f"{HEADER}\ncuda,m,4,pass,60,1,0", "", "list.csv"),
        (f"{HEADER}\ncuda,m,4,pass,60,1,many", "name,accuracy\nm,pass", "actual.csv"),
        (f"{HEADER}\ncuda,m,4,pass,60,1,0,0", "name,accuracy\nm,pass", "actual.csv"),
        ("name,speedup\nm,1.5", "name,accuracy\nm,pass", "actual.csv"),
        ("name,accuracy", "name,accuracy\nm,pass", "actual.csv"),
        ("x,y\n1,2", "name,accuracy\nm,pass", "actual.csv"),
        ('{"a": ', "name,accuracy\nm,pass", "actual.csv"),
        ('[{"metric": 1}]', "name,accuracy\nm,pass", "actual.csv"),
        ("[]", "name,accuracy\nm,pass", "actual.csv"),
    ],
)
def test_what_is_no_result_and_no_list_is_refused_with_its_name(
    results: str, listed: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual, expected = _file(tmp_path, "actual.csv", results), _file(tmp_path, "list.csv", listed)
    assert main(["check", str(actual), "--expected", str(expected)]) == 2
    assert named in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none.csv"), "--expected", str(expected)]) == 2
    assert "none.csv" in capsys.readouterr().err
