"""`python -m runner`, as a person without the web application uses it."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hud.ingest.parameters import Parameters
from runner import host, locks, terminal
from runner.__main__ import main
from runner.catalog import BadRequest, TaskSpec
from runner.launch import Outcome
from runner.output import Output, records_of
from runner.processes import read_process
from runner.tables import results
from runner.terminal import Finished
from runner.upload import PARAMETERS, connect, upload, upload_file
from tests.servers import ROOT

TASK = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs={"D": [256, 512]})


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("HUD_URL", "HUD_KEY", "RUNNER_CEILINGS", "HUD_MAX_BODY_BYTES"):
        monkeypatch.delenv(name, raising=False)


def record(size: int | str, metric: str, values: list[float] | None, **over: Any) -> dict[str, Any]:
    said = {"status": "ok" if values else "oom", **({} if values else {"code": "out_of_memory"})}
    return {
        "benchmark": {
            "name": "Compiler HUD micro",
            "mode": "inference",
            "dtype": "int8",
            "extra_info": {"device": "cuda", "arch": "NVIDIA H200", "knobs": {"D": size}},
        },
        "model": {"name": "gemv", "backend": "inductor", "origins": ["micro"]},
        "metric": {
            "name": metric,
            **({"benchmark_values": values} if values else {}),
            "extra_info": said,
            **over,
        },
    }


def finished(status: str = "ok", code: str = "", task: TaskSpec = TASK) -> Finished:
    records = [
        record(256, "call_bandwidth_gbps", [10.0, 12.0, 11.0]),
        record(512, "call_bandwidth_gbps", None),
        record("mean", "memory_bandwidth(GB/s)", [1954.1, 1954.391, 1954.9], target_value="870"),
    ]
    return Finished(task, Outcome(status, code, "why"), Path("folder"), records)


def test_the_list_names_every_case_and_knob(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for name in ("micro", "layer_norm", "gather_gemv", "ceilings", "knob D: 64 to 16384"):
        assert name in said


def test_a_dry_run_prints_the_tasks_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    options = "run micro --device cpu --case gemv[D=256+512] --dtype int8 --repeat 20 --dry-run"
    assert main(options.split()) == 0
    assert capsys.readouterr().out == (
        "python -m runner run micro --case 'gemv[D=256+512,repeat=20]' --mode inference --dtype int8"
        " --backend inductor --device cpu\n"
    )


def test_a_filter_and_a_dtype_narrow_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "micro", "--device", "cpu", "--filter", "^ga", "--dtype", "int8", "--dry-run"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "--case gather_gemv --mode inference --dtype int8" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("run nothing", "no suite is called 'nothing'"),
        ("run micro --case x", "no case 'x'"),
        ("run micro --case gemv[D", "is not NAME or NAME[KNOB=VALUE"),
        ("run micro --case gemv[D]", "'D' is not KNOB=VALUE"),
        ("run micro --case gemv[D=2+x]", "'2+x' is not ints"),
        ("run micro --case gemv[D=32]", "32 is not within 64 to 16384"),
        ("run micro --case gemv --dtype int4", "has no dtype 'int4'"),
        ("run micro --opt y=1", "no knob 'y'"),
        ("run ceilings --repeat 30", "suite ceilings has no knob 'repeat'; it has: none"),
        ("run micro --filter (", "no regular expression"),
        ("run micro --filter zzz", "no case fits"),
        ("run micro --device tpu", "is not cpu, cuda or cuda:N"),
        ("run micro --resume", "--resume and --format need --output"),
        ("upload x.json", "upload needs --hud and --key"),
        ("upload x.json --hud ftp://h --key k", "no address of a hud"),
        ("upload /nonexistent/x.json --hud http://h --key k", "No such file"),
    ],
)
def test_a_request_that_cannot_be_says_why(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = options.split()
    if words[0] == "run" and "--device" not in words:
        words += ["--device", "cpu"]
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", list)
    with pytest.raises(BadRequest, match="no GPU 0; it has: cpu"):
        terminal.accelerator("cuda")
    assert terminal.accelerator("").device == "cpu"


def test_the_first_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [host.Gpu(index, "NVIDIA H200", f"GPU-{index}", 1, "580") for index in (0, 1)]
    monkeypatch.setattr(host, "gpus", lambda: cards)
    assert terminal.accelerator("").visible == "GPU-0"
    assert terminal.accelerator("cuda:1").lock == "GPU-1"
    assert terminal.accelerator("cpu").visible == ""


def test_the_table_shows_medians_and_what_went_wrong() -> None:
    lines = results([finished("oom", "out_of_memory")]).splitlines()
    assert lines[0].split("  ")[0] == "case"
    assert "call_bandwidth GB/s" in lines[0]
    assert lines[1].split() == ["gemv[D=256]", "int8", "11.0", "ok"]
    assert lines[2].split() == ["gemv[D=512]", "int8", "oom", "out_of_memory"]


def test_a_task_without_results_still_has_its_line() -> None:
    lost = Finished(TASK, Outcome("crashed", "SIGSEGV", "…"), Path("folder"), [])
    assert results([lost]).splitlines()[1].split() == ["gemv", "int8", "crashed", "SIGSEGV"]


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
    assert again.done() == {TASK.fingerprint()}
    again.add(finished(task=other))
    assert again.done() == {TASK.fingerprint(), other.fingerprint()}
    assert [json.loads(line) for line in records_of(path.read_text()).splitlines()] == 3 * finished().records


def test_a_line_that_a_kill_tore_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Output(path, "ours", suites=["micro"], resume=False).add(finished())
    whole = path.read_text()
    path.write_text(whole + whole[:200])
    assert len(Output(path, "ours", suites=["micro"], resume=True).done()) == 1
    assert path.read_text() == whole
    for own in ("[1, 2", '{"a": 1}', "3"):
        path.write_text(own)
        with pytest.raises(BadRequest, match="is no file of --format ours"):
            Output(path, "ours", suites=["micro"], resume=True).done()
        assert path.read_text() == own


def test_a_file_where_artifacts_are_to_stand_is_said_before(tmp_path: Path) -> None:
    (tmp_path / "r.artifacts").touch()
    for name in ("r.json", "r.artifacts"):
        with pytest.raises(BadRequest, match="the folder of its artifacts"):
            Output(tmp_path / name, "ours", suites=["micro"], resume=True)


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")
    with pytest.raises(BadRequest, match="exists; give --resume"):
        Output(path, "v3", suites=["micro"], resume=False)
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
    monkeypatch.setattr(terminal, "launch", _launched("ok"))
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


def _launched(status: str, kind: str = "") -> Callable[..., Outcome]:
    """A launch that leaves a log, and an artifact of that kind."""

    def launched(_task: TaskSpec, place: Path, **_options: object) -> Outcome:
        (place / "artifacts" / kind).mkdir(parents=True)
        (place / "log").write_text("last words")
        if kind:
            (place / "artifacts" / kind / "a.txt").write_text("kept")
        return Outcome(status, "", "why")

    return launched


def test_artifacts_are_kept_beside_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "launch", _launched("ok", "hlo"))
    words = ["run", "xla", "--device", "cpu", "--case", "dummy[dump_hlo=true]", "--backend", "eager"]
    words += ["--mode", "inference", "--opt", "accelerator=cpu", "xla=None"]
    assert main([*words, "--output", str(tmp_path / "r.json")]) == 0
    assert f"artifacts: {tmp_path / 'r.artifacts'}\n" in capsys.readouterr().out
    line = json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "r.artifacts" / line["fingerprint"] / "hlo" / "a.txt").read_text() == "kept"
    assert not list(tmp_path.glob("compiler-hud-run-*"))

    assert main(words) == 0
    (kept,) = tmp_path.glob("compiler-hud-run-*")
    assert f"artifacts: {kept}/*/artifacts\n" in capsys.readouterr().out
    assert [path.name for path in kept.glob("*/*")] == ["artifacts"]
    words[words.index("dummy[dump_hlo=true]")] = "dummy"  # artifacts that nobody asked for
    assert main(words) == 0
    assert list(tmp_path.glob("compiler-hud-run-*")) == [kept]


def test_ctrl_c_cancels_and_leaves_nothing_alive(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "run", "micro", "--device", "cpu", "--case", "gemv"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    assert any("import" in line for line in process.stderr)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(signal.SIGINT)
    said, _errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "cancelled" in said
    assert all((found := read_process(int(child))) is None or found.dead for child in children)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("failed", 1)])
def test_the_log_of_a_task_is_kept_where_it_failed_and_said_to_be(
    status: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "launch", _launched(status))
    assert main(["run", "micro", "--device", "cpu", "--case", "gemv", "--dtype", "int8"]) == code
    kept = list(tmp_path.glob("compiler-hud-run-*/*/log"))
    assert bool(kept) == bool(code) == bool(list(tmp_path.glob("compiler-hud-run-*")))
    assert all(f"log: {path}" in capsys.readouterr().out for path in kept)


def test_an_accelerator_in_use_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    descriptor = locks.acquire(locks.default_folder(), "cpu")
    assert main(["run", "ceilings", "--device", "cpu", "--case", "copy"]) == 1
    os.close(descriptor)
    assert "cpu is in use by process" in capsys.readouterr().err
    assert not list(tmp_path.glob("compiler-hud-run-*"))


class Door:
    """An upload door that answers what a test lays out, one answer a request, and keeps what it got."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.got: list[tuple[str, str, bytes]] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                door.got.append((self.path, self.headers["Authorization"], body))
                status, answer = door.answers.pop(0)
                said = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


RECEIPT = {"stored": 3, "duplicates": 1, "skipped": [], "warnings": ["odd"]}


def test_an_upload_prints_its_receipt(door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r 1.json"
    Output(path, "ours", suites=["micro"], resume=False).add(finished())
    door.answers = [(201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url + "/", "--key", "k"]) == 0
    said = capsys.readouterr().out
    assert "stored 3, duplicate 1, skipped 0" in said
    assert "warning: odd" in said
    ((place, key, body),) = door.got
    assert (place, key) == ("/api/v1/results?filename=r%201.json", "Bearer k")
    assert [json.loads(line) for line in body.splitlines()] == finished().records


def test_skipped_and_refused_records_are_told_with_their_place(
    door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    skipped = [{"pointer": "", "line": 4, "reason": "no metric"}]
    fault = {"pointer": "/metric", "line": 7, "detail": "not a number"}
    door.answers = [
        (201, {"stored": 0, "duplicates": 0, "skipped": skipped}),
        (422, {"detail": "1 bad value", "errors": [fault]}),
    ]
    words = ["upload", str(path), str(path), "--hud", door.url, "--key", "k"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "skipped line 4: no metric" in said
    assert "refused, 422: 1 bad value" in said
    assert "line 7 /metric: not a number" in said


def test_a_hud_that_is_away_is_asked_again(door: Door) -> None:
    door.answers = [(503, {}), (503, {}), (201, RECEIPT)]
    answer = upload("r.json", b"{}", connect(door.url, "k"), patience_s=30)
    assert answer.accepted
    assert len(door.got) == 3


def test_a_hud_that_stays_away_is_given_up(door: Door) -> None:
    door.answers = [(503, {})]
    answer = upload("r.json", b"{}", connect(door.url, "k"), patience_s=0)
    assert not answer.accepted
    assert not answer.delivered
    assert "not delivered: 503" in answer.lines[0]


def test_an_upload_to_nobody_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.__main__.upload_file", partial(upload_file, patience_s=0))
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    words = ["upload", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--key", "k"]
    assert main([*words, "--hud", f"http://127.0.0.1:{port}"]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert "a.json: not delivered" in first
    assert second.endswith("b.json: not tried")


def test_a_file_that_is_too_large_is_not_sent(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text("{}")
    large.write_text("x" * 11)
    monkeypatch.setenv("HUD_MAX_BODY_BYTES", "10")
    assert main(["upload", str(small), str(large), "--hud", door.url, "--key", "k"]) == 2
    assert "has 11 bytes; a hud takes 10" in capsys.readouterr().err
    assert door.got == []


def test_a_large_file_of_records_goes_in_pieces_of_one_run(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text('{"a": "xxxxxxxx"}\n' * 4)
    monkeypatch.setenv("HUD_MAX_BODY_BYTES", "40")
    door.answers = [(201, RECEIPT), (201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url, "--key", "k", "--suite", "micro"]) == 0
    assert "piece 2: stored 3" in capsys.readouterr().out
    assert {parse_qs(urlsplit(place).query)["suite"][0] for place, _key, _body in door.got} == {"micro"}
    assert len({parse_qs(urlsplit(place).query)["run_id"][0] for place, _key, _body in door.got}) == 1
    assert b"".join(body for _place, _key, body in door.got).count(b"xxxxxxxx") == 4


def test_the_parameters_are_those_of_the_door() -> None:
    names = {field.name for field in dataclasses.fields(Parameters)}
    assert set(PARAMETERS) == names - {"filename"}


def test_the_doctor_says_whether_inductor_can_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "gpus", list)
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "none: inductor cannot compile for the CPU" in said
    assert "cannot compile: no_cpp_compiler" in said
    assert "torch on cpu" in said
    assert "not read yet" in said


OWN = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)), torch.randn(4, 8)
"""


def test_a_file_of_ones_own_is_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_FILE", "")  # put back afterwards
    path, output = tmp_path / "my model.py", tmp_path / "r.json"
    path.write_text(OWN)
    words = ["run", "--file", str(path), "--device", "cpu", "--backend", "eager", "--output", str(output)]
    assert main([*words, "--opt", "test=accuracy"]) == 0
    assert "pass" in capsys.readouterr().out
    (line,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert line["task"]["case"].startswith("my-model-")
    names = {record["metric"]["name"]: record for record in line["records"]}
    assert names["accuracy"]["metric"]["extra_info"]["code"] == "pass"
    assert names["accuracy"]["model"]["origins"] == ["file"]
    before = line["task"]["case"]
    path.write_text(OWN.replace("0.1", "0.2"))
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert before not in said
    assert said.startswith(f"python -m runner run --file '{path}' --case my-model-")


def test_nobody_else_can_ask_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_FILE", raising=False)
    with pytest.raises(BadRequest, match="no suite is called 'file'"):
        TaskSpec.from_json(
            {"suite": "file", "case": "x"} | dict.fromkeys(("mode", "dtype", "backend", "device"), "")
        )
