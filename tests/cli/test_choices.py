"""`choices apply` and `verify`, and `--caches ledger`: what becomes of each proven choice on this host."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.__main__ import main
from runner.cli import choices as command
from runner.cli import terminal
from runner.launch import ledger
from runner.launch.jobs import Job
from runner.schema.compilations import COMPILED, PINNED_VARIABLE
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.system import interpreters, machine
from runner.system.accelerators import Accelerator, accelerators
from runner.system.task_files import write_json
from tests.support.finished import record

A, B, C, D = (digit * 16 for digit in "0123")
BINARY = "f" * 16
CARD = Accelerator("cuda:0", "cuda", "NVIDIA H200", "h200", "GPU-1")


def exported(**more: Any) -> dict[str, Any]:
    """An export with three choices of one experiment."""
    own = {"suite": "micro", "case": "gemv", "mode": "inference", "dtype": "int8", "backend": "inductor"}
    item = {"experiment": 7, **own, "device": "cuda", "arch": "h200", "dynamic": False, "knobs": {"D": 256}}
    slots = [{"experiment": 7, "slot": slot, "config": "XBLOCK=8", "binary": BINARY} for slot in (A, B, D)]
    return {"arch": "h200", "torch": "2.11.0", "triton": "3.6.0", "items": [item], "slots": slots, **more}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(**more: Any) -> str:
        path = tmp_path / "choices.json"
        path.write_text(json.dumps(exported(**more)))
        return str(path)

    return write


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the variables of processes on a card of ours; each has a kernel that takes its choice, one that
    cannot, and one without a choice."""
    given: list[dict[str, Any]] = []

    def run(jobs: list[Job], _chosen: Any, context: Any, **_events: Any) -> list[TaskResult]:
        variables = context.pythons["default"].environment
        given.append({**json.loads(Path(variables[PINNED_VARIABLE]).read_text()), "variables": variables})
        found = record(256, "kernel_count", [1.0])
        texts = {A: "XBLOCK=8", B: "XBLOCK=4", C: "XBLOCK=1"}
        kernels = [
            {"slot": slot, "config": config, "name": f"triton_{slot[0]}", "kind": "pointwise"}
            for slot, config in texts.items()
        ]
        found["metric"]["extra_info"][COMPILED] = {"kernels": kernels}
        facts = {"forced": 1, "failed": ["triton_1: its source is another"], "slots": [B, C]}
        found["benchmark"]["extra_info"]["pinned"] = facts
        return [TaskResult(job.task, TaskOutcome("ok"), Path(), [found]) for job in jobs]

    monkeypatch.setattr(terminal, "run_jobs", run)
    monkeypatch.setattr(command, "accelerators", lambda _names: [CARD])
    here = machine.environment("cpu")
    here.triton = "3.6.0"
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: here)
    return given


def test_each_kernel_says_what_became_of_its_choice(
    write: Callable[..., str], processes: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    assert main(["choices", "apply", write(), "--files", str(files)]) == 1
    shown = dict(line.strip().split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert shown["triton_0"] == "hit"
    assert shown["triton_1"] == "miss: its source is another"
    assert shown["triton_2"].startswith("no entry")
    assert shown[D].startswith("no kernel")
    (given,) = processes
    assert (given["arch"], given["triton"], given["only_looks"]) == ("h200", "3.6.0", False)
    assert given["choices"].keys() == given["binaries"].keys() == {A, B, D}
    assert given["files"] == str(files)


def test_an_export_whose_entries_all_miss_here_replaces_none(
    write: Callable[..., str], processes: list[Any]
) -> None:
    usable = ledger.read(Path(write()))
    assert main(["choices", "apply", write()]) == 1, "some entries miss"
    assert ledger.applied() == usable
    slots = [slot for slot in exported()["slots"] if slot["slot"] != A]
    other = ledger.read(Path(write(slots=slots)))
    assert main(["choices", "apply", write(slots=slots)]) == 1
    assert len(processes) == 2
    assert ledger.applied() == usable
    write_json(ledger.made_table(), {"of": "an apply that was cancelled"})
    assert main(["choices", "apply", write(slots=slots)]) == 1
    assert ledger.applied() == usable != other


def test_an_export_may_come_through_a_pipe_or_a_link(
    write: Callable[..., str], processes: list[Any], tmp_path: Path
) -> None:
    usable = ledger.read(Path(write()))
    reading, writing = os.pipe()
    os.write(writing, Path(write()).read_bytes())
    os.close(writing)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    applied = machine.cache_folder() / "choices.json"
    applied.symlink_to(elsewhere)
    main(["choices", "apply", f"/dev/fd/{reading}"])
    os.close(reading)
    assert ledger.applied() == usable
    assert (elsewhere.read_text(), applied.is_symlink()) == ("kept", False)
    applied.unlink()
    link = tmp_path / "link.json"
    link.symlink_to(write())
    main(["choices", "apply", str(link)])
    assert ledger.applied() == usable


def test_verify_compiles_with_inductors_files_and_nothing_else(
    write: Callable[..., str], processes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("key.best_config", "kernel.py"):
        (tmp_path / "files" / "ab").mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / "ab" / name).write_text("{}")
    seen: list[set[str]] = []
    inner = terminal.run_jobs

    def run(jobs: list[Job], chosen: Any, context: Any, **events: Any) -> Any:
        variables = context.pythons["default"].environment
        of_task = Path(variables["RUNNER_NEW_CACHES"], jobs[0].task.fingerprint())
        folders = (Path(variables["TORCHINDUCTOR_CACHE_DIR"]), of_task / "t" / "torchinductor_cache_dir")
        seen.extend({path.name for path in folder.glob("ab/*")} for folder in folders)
        return inner(jobs, chosen, context, **events)

    monkeypatch.setattr(terminal, "run_jobs", run)
    ledger.keep(ledger.read(Path(write())))
    main(["choices", "verify", "--files", str(tmp_path / "files")])
    assert seen == [{"key.best_config"}] * 2
    assert processes[0]["only_looks"] is True


@pytest.mark.parametrize("more", [{"arch": "b200"}, {"triton": "3.5.0"}])
def test_a_ledger_of_another_arch_or_triton_is_a_miss_for_each_entry(
    write: Callable[..., str], processes: list[Any], more: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ledger.read(Path(write()))
    ledger.keep(kept)
    assert main(["choices", "apply", write(**more)]) == 1
    assert not processes
    assert ledger.applied() == kept, "what this host cannot use replaces none"
    lines = [line for line in capsys.readouterr().out.splitlines() if "miss" in line]
    ((name, value),) = more.items()
    assert len([line for line in lines if f"are of {name} {value}, this is" in line]) == 3


def test_on_a_cpu_every_entry_is_a_miss_and_nothing_compiles(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    (cpu,) = accelerators(["cpu"])
    for more in ({}, {"arch": cpu.arch, "triton": "none"}):
        assert main(["choices", "apply", write(**more), "--device", "cpu"]) == 1
        assert "3 miss" in capsys.readouterr().out


def test_a_program_that_does_not_compile_is_not_said_to_lack_the_kernels(
    write: Callable[..., str],
    processes: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(jobs: list[Job], *_where: Any, **_events: Any) -> list[TaskResult]:
        return [TaskResult(jobs[0].task, TaskOutcome("unsupported", "x", "timm is missing"), Path(), [])]

    monkeypatch.setattr(terminal, "run_jobs", run)
    assert main(["choices", "apply", write()]) == 1
    shown = capsys.readouterr().out
    assert shown.count("timm is missing") == 3
    assert "3 not here" in shown


def test_only_what_looks_like_a_choice_is_read(write: Callable[..., str], tmp_path: Path) -> None:
    rows = [
        {"experiment": 7, "slot": A, "config": "XBLOCK=8", "binary": BINARY},
        {"experiment": 7, "slot": B, "config": "__import__('os')=1", "binary": BINARY},
        {"experiment": 7, "slot": C, "config": "XBLOCK=8", "binary": "../../key"},
        {"experiment": 7, "slot": "../..", "config": "XBLOCK=8", "binary": BINARY},
        {"experiment": 7, "slot": D, "config": None, "binary": None},
    ]
    ((_own, proven),) = ledger.read(Path(write(slots=rows))).experiments
    assert proven.configs == {A: "XBLOCK=8"}
    assert not proven.templates
    assert ledger.read(Path(write(slots=rows))).left_out == 4
    kept = ledger.read(Path(write()))
    ledger.keep(kept)
    for item in ({"knobs": [1]}, {"knobs": "a"}, {"case": 5}):
        assert main(["choices", "apply", write(items=[{**exported()["items"][0], **item}])]) == 2
    assert main(["choices", "apply", write(items=[])]) == 2
    assert ledger.applied() == kept, "what has no choice replaces none"
    odd = ledger.read(Path(write(items=[{**exported()["items"][0], "case": "\x1b[2J\ud800"}])))
    assert odd.experiments[0][0]["case"] == "\\x1b[2J\\ud800"
    for content in (b"\x80\x04\x95", b"[]", b"{}", b'{"arch": 1, "torch": 1, "triton": 1, "slots": 3}'):
        (tmp_path / "wrong").write_bytes(content)
        assert main(["choices", "apply", str(tmp_path / "wrong")]) == 2
    assert main(["choices", "apply", str(tmp_path / "none")]) == 2


def test_runs_take_the_choices_of_their_host(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "micro", "--case", "gemv[D=256+512]", "--dtype", "int8", "--device", "cpu"]
    words += ["--caches", "ledger"]
    assert main(words) == 2, "nothing was applied"
    item = {**exported()["items"][0], "device": "cpu"}
    ledger.keep(ledger.read(Path(write(items=[item]))))
    found: list[Job] = []

    def run(jobs: list[Job], *_where: Any, **_events: Any) -> list[TaskResult]:
        found.extend(jobs)
        return []

    monkeypatch.setattr(terminal, "run_jobs", run)
    main([*words, "--compilations", "2"])
    assert [job.caches for job in found] == ["ledger", "ledger"]
    timm = ["run", "timm", "--case", "mobilenetv2_100", "--device", "cpu", "--caches", "ledger"]
    assert main(timm) == 2, "nothing is proven there"
    assert len(found) == 2
    path = tmp_path / "given.json"
    choices = ledger.applied()
    assert choices.force(choices.of(found[0].task), path) == {PINNED_VARIABLE: str(path)}
    assert json.loads(path.read_text())["choices"].keys() == {A, B, D}
    for wrong in (["--repeats", "2"], ["--new-opt", "epilogue_fusion=off"]):
        assert main([*words, *wrong]) == 2


def test_a_template_is_a_hit_once_torchs_table_has_it(write: Callable[..., str]) -> None:
    text = "ACC_TYPE=tl.float32 BLOCK_M=64 num_warps=4"
    rows = [
        {"experiment": 7, "slot": slot, "config": config, "binary": BINARY}
        for slot, config in ((A, text), (B, text), (C, "BLOCK_M=f(64)"), ("../..", text))
    ]
    ((_own, proven),) = (choices := ledger.read(Path(write(slots=rows)))).experiments
    assert (proven.configs, proven.templates) == ({}, {A: text, B: text})
    path = Path(write()).with_name("given.json")
    choices.force(proven, path)
    given = json.loads(path.read_text())
    assert given["entries"] == {}
    write_json(Path(given["table"]), {"key+mm": []})
    path.unlink()
    choices.force(proven, path)
    assert json.loads(path.read_text())["entries"] == {"key+mm": []}
    ledger.keep(choices)
    assert not Path(given["table"]).exists(), "it is of other choices"
    assert given["templates"] == proven.templates
    assert given["table"].endswith("lookup_table.json")
    found = record(256, "kernel_count", [1.0])
    kernels = [
        {"slot": slot, "config": config, "name": f"triton_mm_{slot[0]}", "kind": "template"}
        for slot, config in ((A, text), (B, "ACC_TYPE=tl.float32 BLOCK_M=32 num_warps=4"))
    ]
    found["metric"]["extra_info"][COMPILED] = {"kernels": kernels}
    lines = dict(command.answers([found], proven))
    assert lines["triton_mm_0"] == "hit"
    assert lines["triton_mm_1"].startswith("other choice")
