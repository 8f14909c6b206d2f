"""Results of `runner run` as files, and what stands beside them."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli import terminal
from runner.cli.output import Output, v3_records
from runner.schema.suite import BadRequest, TaskSpec
from tests.support.finished import TASK, finished, launched, record
from tests.support.servers import ROOT

pytestmark = pytest.mark.usefixtures("own_folders")


def test_v3_is_one_record_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    Output(path, "v3", suites=["micro"], resume=False).add(finished())
    assert [json.loads(line) for line in path.read_text().splitlines()] == finished().records


def test_ours_knows_what_succeeded(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    other = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu")
    output = Output(path, "ours", suites=["micro"], resume=False)
    output.add(finished())
    output.add(finished("failed", task=other))
    again = Output(path, "ours", suites=["micro"], resume=True)
    assert {one.name for one in again.earlier()} == {TASK.fingerprint()}
    again.add(finished(task=other))
    assert {one.name for one in again.earlier()} == {TASK.fingerprint(), other.fingerprint()}
    assert v3_records(path.read_text()) == 3 * finished().records  # what is missing, its launch has added


def test_a_record_of_another_task_is_kept_apart(tmp_path: Path) -> None:
    """In our own formats; tables and upstream files do not have it."""
    marked = record(256, "speedup", [9.0], extra_info={"unexpected": "its case is 'x'"})
    result = dataclasses.replace(finished(), unexpected=[marked])
    Output(tmp_path / "r.json", "ours", suites=["micro"], resume=False).add(result)
    (again,) = Output(tmp_path / "r.json", "ours", suites=["micro"], resume=True).earlier()
    assert (again.records, list(again.unexpected)) == (result.records, [marked])
    Output(tmp_path / "v3.json", "v3", suites=["micro"], resume=False).add(result)
    assert json.loads((tmp_path / "v3.json").read_text().splitlines()[-1]) == marked


def test_a_line_that_a_kill_tore_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Output(path, "ours", suites=["micro"], resume=False).add(finished())
    whole = path.read_text()
    path.write_text(whole + whole[:200])
    assert len(Output(path, "ours", suites=["micro"], resume=True).earlier()) == 1
    assert path.read_text() == whole
    for own in ("[1, 2", '{"a": 1}', "3"):
        path.write_text(own)
        with pytest.raises(BadRequest, match="is no file of --format ours"):
            Output(path, "ours", suites=["micro"], resume=True).earlier()
        assert path.read_text() == own


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")
    for form, said in (("ours", "give --resume"), ("v3", "give another"), ("upstream", "give another")):
        with pytest.raises(BadRequest, match=f"exists; {said}"):
            Output(path, form, suites=["micro"], resume=False)
    assert path.read_text() == "mine"


def test_upstreams_format_is_what_gpt_fasts_script_writes(tmp_path: Path) -> None:
    output = Output(tmp_path / "gpt_fast.csv", "upstream", suites=["micro"], resume=False)
    output.add(finished())  # two sizes alone: its row is the mean of all
    assert not (tmp_path / "gpt_fast.csv").exists()
    output.add(finished(task=dataclasses.replace(TASK, knobs={"repeat": 30})))
    (row,) = csv.DictReader((tmp_path / "gpt_fast.csv").read_text().splitlines())
    assert row == {
        "name": "gemv",
        "metric": "memory_bandwidth(GB/s)",
        "target": "870",
        "actual": "1954.39",
        "dtype": "int8",
        "device": "cuda",
        "arch": "NVIDIA H200",
        "is_model": "False",
    }
    sample = (ROOT / "hud/samples/pytorch-h200/gpt_fast.json").read_text().splitlines()
    theirs = next(line for line in sample if json.loads(line)["metric"]["benchmark_values"] == ["1954.39"])
    assert (tmp_path / "gpt_fast.json").read_text() == theirs + "\n"


def test_what_has_no_place_in_upstreams_file_is_said_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    cache = ["run", "cache", "--device", "cpu", "--format", "upstream", "--output", str(path)]
    tiny = ["--case", "DistillGPT2[size=tiny]", "--mode", "inference"]
    assert main([*cache, *tiny, "--dtype", "float32"]) == 2
    only = "it knows only bfloat16 inference and amp training"
    assert f"the task has no place in cachebench's file: {only} (1)\n" in capsys.readouterr().err
    tiny = ["--case", "DistillGPT2", "--mode", "inference", "--repeat", "3"]
    assert main([*cache, *tiny, "--dtype", "float32", "bfloat16", "--dry-run"]) == 0
    assert f"1 of 2 tasks have no place in cachebench's file: {only} (1)\n" == capsys.readouterr().err
    monkeypatch.setattr(terminal, "run_task", launched("ok"))
    assert main([*cache, *tiny, "--dtype", "bfloat16"]) == 1
    assert f"the task left nothing in {path}: nothing was measured" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("suites", "options", "reason"),
    [
        ("micro", "--case gemv[repeat=20,D=256+512+1024+2048] --dtype int8", ""),
        ("micro", "--case gemv[D=256] --dtype int8", "its row is the mean over all sizes"),
        ("micro", "--case mlp_batched", "it has no mlp_batched in bfloat16"),
        ("gpt_fast", "--case toy-llama[samples=2,budget_s=0,repeat=10] --dtype int8", ""),
        ("gpt_fast", "--case toy-llama[new_tokens=8] --dtype int8", "it cannot say new_tokens"),
        ("operators", "--case aten.mm.default[max_samples=2,inputs=timm] --dtype float16", ""),
        ("operators", "--case aten.mm.default[channels_last=true]", "it cannot say channels_last"),
    ],
)
def test_a_knob_that_upstreams_file_need_not_say_drops_nothing(
    suites: str, options: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run {suites} --device cpu {options} --format upstream --output {tmp_path / 'r.csv'} --dry-run"
    assert main(words.split()) == (2 if reason else 0)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_an_output_that_cannot_be_written_is_found_before_the_first_task(
    dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path, why in (("/proc/x.json", "No such file"), (f"{tmp_path}/file/r.json", "Not a directory")):
        assert main(["run", "micro", "--device", "cpu", "--case", "gemv", "--output", path, *dry]) == 2
        said = capsys.readouterr().err
        assert f"--output {path} cannot be written: {why}" in said
        assert len(said.splitlines()) == 1
    path = f"{tmp_path}/new/r.json"
    assert main(["run", "micro", "--device", "cpu", "--case", "gemv", "--output", path, "--dry-run"]) == 0
    assert [one.name for one in tmp_path.iterdir() if one.name != "cache"] == ["file"]


def test_artifacts_are_kept_beside_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "run_task", launched("ok", "hlo"))
    words = ["run", "xla", "--device", "cpu", "--case", "dummy[dump_hlo=true]", "--backend", "eager"]
    words += ["--mode", "inference"]
    assert main([*words, "--output", str(tmp_path / "r.json")]) == 0
    assert f"artifacts: {tmp_path / 'r.json.artifacts'}\n" in capsys.readouterr().out
    line = json.loads((tmp_path / "r.json").read_text())
    kept = tmp_path / "r.json.artifacts" / line["name"].replace("/", "-") / "hlo" / "a.txt"
    kept.write_text("of r.json")
    assert main([*words, "--output", str(tmp_path / "r.csv")]) == 0
    others = tmp_path / "r.csv.artifacts" / line["name"].replace("/", "-") / "hlo" / "a.txt"
    assert (kept.read_text(), others.read_text()) == ("of r.json", "kept")
    assert not list(tmp_path.glob("compiler-hud-run-*"))
    capsys.readouterr()

    assert main(words) == 0
    (kept,) = tmp_path.glob("compiler-hud-run-*")
    assert f"artifacts: {kept}/*/artifacts\n" in capsys.readouterr().out
    assert [path.name for path in kept.glob("*/*")] == ["artifacts"]
    words[words.index("dummy[dump_hlo=true]")] = "dummy"  # artifacts that nobody asked for
    assert main(words) == 0
    assert list(tmp_path.glob("compiler-hud-run-*")) == [kept]


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ("operators", "operatorbench_huggingface_float16.csv"),
        ("operators --opt inputs=torchbench --dtype float32", "operatorbench_torchbench_float32.csv"),
        ("xla --case dummy --backend eager", "output/results.jsonl"),
        ("micro", "gpt_fast_benchmark.csv"),
        ("huggingface", ""),
    ],
)
def test_upstreams_format_has_its_scripts_own_file_by_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    file: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", *arguments.split(), "--device", "cpu", "--format", "upstream"]
    assert main([*command, "--dry-run"]) == (0 if file else 2)
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
        assert main(command) == 2
        assert file in capsys.readouterr().err
    assert {path.name for path in tmp_path.rglob("*.*")} == {Path(file).name} - {""}
