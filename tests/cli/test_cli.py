"""`python -m runner`, as a person without the web application uses it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli import terminal
from runner.cli.tables import results
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, TaskOutcome, TaskResult, plan
from runner.suites import SUITES, suite_of
from runner.system import account, interpreters, locks, machine
from runner.system.accelerators import accelerators
from runner.system.processes import read_process
from tests.support.finished import TASK, finished, launched, record
from tests.support.servers import ROOT

pytestmark = pytest.mark.usefixtures("own_folders")


def test_suites_their_cases_and_their_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        assert main(["list", *words]) == 0
        return [
            line.strip().partition(":")[0].split()[0] for line in capsys.readouterr().out.splitlines() if line
        ]

    assert listed() == list(SUITES)
    assert {"layer_norm", "gather_gemv"} < set(listed("micro"))
    assert "huggingface" not in listed("micro")
    assert {"D", "repeat"} < set(listed("micro", "--options"))
    assert main(["list", "--options", "nothing"]) == 2


def test_a_dry_run_prints_the_tasks_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    options = "run micro --device cpu --case gemv[D=256+512] --dtype int8 --repeat 20 --dry-run"
    assert main(options.split()) == 0
    assert capsys.readouterr().out == (
        "python -m runner run micro --case 'gemv[D=256+512,repeat=20]' --mode inference --dtype int8"
        " --backend inductor --device cpu\n"
    )


@pytest.mark.parametrize(
    "command",
    ["run --file", "run kernels --file", "record --file", "upload --hud http://127.0.0.1:9 --key k"],
)
def test_a_pipe_is_refused_unread_where_a_file_is_read_again(command: str) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(b"content")
    with os.fdopen(reading, "rb") as pipe:
        assert main([*command.split(), f"/dev/fd/{reading}"]) == 2
        assert pipe.read() == b"content"


def test_a_filter_and_a_dtype_narrow_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "micro", "--device", "cpu", "--filter", "^ga", "--dtype", "int8", "--dry-run"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "--case gather_gemv --mode inference --dtype int8" in line
    several = ["--filter", "^ga", "--filter", "layer_norm$"]
    assert main(["run", "micro", "--device", "cpu", *several, "--exclude", "mlp", "--dry-run"]) == 0
    assert re.findall(r"--case (\w+) ", capsys.readouterr().out) == [
        "layer_norm",
        "gather_gemv",
        "gather_gemv",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("run nothing", "no suite is called 'nothing'"),
        ("run micro --case x", "no case 'x'"),
        ("run micro --case gemv[D", "is not NAME or NAME[OPTION=VALUE"),
        ("run micro --case gemv[D]", "'D' is not NAME=VALUE"),
        ("run micro --case gemv[D=2+x]", "'2+x' is not ints"),
        ("run micro --case gemv[D=32]", "32 is not within 64 to 16384"),
        ("run micro --case gemv --dtype int4", "has no dtype 'int4'"),
        ("run micro --opt y=1", "no option 'y'"),
        ("run ceilings --repeat 30", "suite ceilings has no option 'repeat'; it has: none"),
        ("run micro --filter (", "no regular expression"),
        ("run micro --filter zzz", "no case fits"),
        ("run micro --device tpu", "no device 'tpu'; it has: "),
        ("run micro --resume", "--resume and --format need --output"),
        ("upload x.json", "say which hud"),
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
    monkeypatch.setattr(machine, "gpus", list)
    with pytest.raises(BadRequest, match="no GPU 0; it has: cpu"):
        accelerators(["cuda"])
    assert [found.device for found in accelerators([])] == ["cpu"]


def test_a_dry_run_says_what_a_gpu_would_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    command = ["run", "huggingface", "--case", "DistillGPT2", "--dtype", "amp", "--device", "cuda"]
    assert main([*command, "--dry-run"]) == 0
    assert "--device cuda" in capsys.readouterr().out
    assert main(command) == 2
    assert "no GPU 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suite", "origin", "member", "other"),
    [
        ("cache", "torchbench", "nanogpt", "BertForMaskedLM"),
        ("xla", "huggingface", "BertForMaskedLM", "dummy"),
        ("xla", "dummy", "dummy_attention", "resnet18"),
    ],
)
def test_an_origin_chooses_the_models_of_its_suite(suite: str, origin: str, member: str, other: str) -> None:
    planned = plan(Selection(suite, "cpu", knobs={"origin": origin}))
    assert member in {task.case for task in planned}
    assert {suite_of(suite).expected(task, {})[0].knobs["origin"] for task in planned} == {origin}
    assert not any("gpt-oss" in task.case for task in planned)
    with pytest.raises(BadRequest, match=f"{other} is a case of"):
        plan(Selection(suite, "cpu", cases=[other], knobs={"origin": origin}))


def test_the_first_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [machine.Gpu(index, "NVIDIA H200", f"GPU-{index}", 1, "580") for index in (0, 1)]
    monkeypatch.setattr(machine, "gpus", lambda: cards)
    assert accelerators([])[0].visible == "GPU-0"
    assert [found.lock for found in accelerators(["cuda:1", "1"])] == ["GPU-1"]
    assert [found.visible for found in accelerators(["cpu"])] == [""]


def test_the_table_shows_medians_and_what_went_wrong() -> None:
    lines = results([finished("oom", "out_of_memory")]).splitlines()
    assert lines[0].split("  ")[0] == "case"
    assert "call_bandwidth GB/s" in lines[0]
    assert lines[1].split() == ["gemv[D=256]", "int8", "11.0", "ok"]
    assert lines[2].split() == ["gemv[D=512]", "int8", "oom", "out_of_memory"]


def test_a_task_without_results_still_has_its_line() -> None:
    lost = TaskResult(TASK, TaskOutcome("crashed", "SIGSEGV", "…"), Path("folder"), [])
    assert results([lost]).splitlines()[1].split() == ["gemv", "int8", "crashed", "SIGSEGV"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (("crashed", "SIGKILL"), "crashed SIGKILL"),
        (("timed_out", "timeout"), "timed_out timeout"),
        (("cancelled", ""), "cancelled"),
        (("ok", ""), "ok pass"),
    ],
)
def test_the_status_is_the_worst_that_happened(outcome: tuple[str, str], said: str) -> None:
    """Of a task that died after its accuracy passed, and of one whose parts ended in several ways."""
    passed = {"name": "accuracy", "extra_info": {"status": "ok", "code": "pass"}}
    one = TaskResult(TASK, TaskOutcome(*outcome), Path("folder"), [record(256, "speedup", [1.5], **passed)])
    assert results([one]).splitlines()[1].split("  ")[-1].strip() == said
    ends = [("cannot_tell", "eager_two_runs_differ"), ("failed", "not_compiled"), ("not_run", "x")]
    parts = [
        record(256, "speedup", None, extra_info={"status": status, "code": code}) for status, code in ends
    ]
    whole = TaskResult(TASK, TaskOutcome("failed", "not_compiled"), Path("folder"), parts)
    assert results([whole]).splitlines()[1].split("  ")[-1].strip() == "failed not_compiled"


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
    monkeypatch.setattr(terminal, "run_task", launched(status))
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


def test_a_folder_of_locks_of_somebody_else_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0 if os.getuid() else 0o700)
    if os.getuid() == 0:
        os.chown(folder, 65534, -1)
    monkeypatch.setenv("RUNNER_LOCKS", str(folder))
    assert main(["run", "ceilings", "--device", "cpu", "--case", "copy"]) == 2
    assert str(folder) in capsys.readouterr().err
    folder.chmod(0o700)


def test_the_doctor_says_whether_inductor_can_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = dict.fromkeys(("torch_git", "triton", "cuda", "gpu_uuid", "cpu"), "")
    monkeypatch.setattr(interpreters, "torch_facts", lambda *_: {"torch": "2.11", **facts})
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "none: inductor cannot compile for the CPU" in said
    assert "cannot compile: no_cpp_compiler" in said
    assert "torch on cpu" in said
    assert "not read yet" in said


def test_the_doctor_says_which_notes_are_blind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = dict.fromkeys(("torch_git", "triton", "cuda", "gpu_uuid", "cpu"), "")
    monkeypatch.setattr(interpreters, "torch_facts", lambda *_: {"torch": "2.15", **facts})
    monkeypatch.setattr(machine, "gpus", list)
    answer = {"compiled_s": 1.5, "noted": ["kernels", "phases"], "blind": {"graph breaks": "KeyError: 'x'"}}
    monkeypatch.setattr(interpreters, "canary", lambda *_: answer)
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "notes on cpu" in line]
    assert "kernels, phases" in line
    assert "blind: graph breaks — KeyError: 'x'" in line
    assert "choices" in line, "what no CPU has is no defect"


@pytest.mark.parametrize("problem", ["", "only root can change the user"])
def test_the_doctor_says_what_benchmarks_of_a_host_can_reach(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    facts = dict.fromkeys(("torch_git", "triton", "cuda", "gpu_uuid", "cpu"), "")
    monkeypatch.setattr(interpreters, "torch_facts", lambda *_: {"torch": "2.15", **facts})
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(interpreters, "canary", lambda *_: {"compiled_s": 1.5, "noted": [], "blind": {}})
    monkeypatch.setattr(account, "prepare", lambda *_: problem)
    assert main(["doctor"]) == 0, "it is no defect of a suite"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "accounts" in line]
    assert "Redis" in line
    assert problem in line
    assert ("neither" in line) is not bool(problem)


OWN = """
import torch
from beside_my_model import WIDTH

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1))

    def forward(self, x):
        return torch.nn.functional.threshold(self.linear(x), 0.0, -torch.inf)

def build():
    torch.manual_seed(0)
    return Model(), torch.randn(4, WIDTH)
"""


def test_a_file_of_ones_own_is_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_FILE", "")  # put back afterwards
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    (tmp_path / "beside_my_model.py").write_text("WIDTH = 8")
    path, output = tmp_path / "my model.py", tmp_path / "r.json"
    path.write_text(OWN)
    words = ["run", "--file", str(path), "--device", "cpu", "--backend", "eager", "--output", str(output)]
    assert main([*words, "--opt", "test=accuracy", "threads=1"]) == 0
    assert "pass" in capsys.readouterr().out
    (line,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert line["task"]["case"].startswith("my-model-")
    names = {record["metric"]["name"]: record for record in line["records"]}
    accuracy = names["accuracy"]
    assert accuracy["metric"]["extra_info"]["code"] == "pass"
    assert "NaN or infinite" in accuracy["metric"]["extra_info"]["not_finite"]
    assert accuracy["model"]["origins"] == ["file"]
    assert accuracy["benchmark"]["extra_info"]["threads"] == 1
    assert accuracy["runners"][0]["extra_info"]["variables"]["OMP_NUM_THREADS"] == "2,1"
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


@pytest.mark.parametrize("command", ["upload", "check"])
def test_a_command_without_arguments_says_how_it_is_used(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command])
    assert "usage: " in capsys.readouterr().err
