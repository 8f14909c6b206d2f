"""Two environments measured in turn, on a host: whose processes run, and with what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from torch._inductor import config

from runner.__main__ import main
from runner.launch.failures import TaskFailure
from runner.launch.jobs import Job, LaunchRequest
from runner.launch.pairs import run_task
from runner.measure.compiler.compiled import compile_inductor
from runner.measure.compiler.inductor_options import candidate_options, settable
from runner.measure.state.device import prepare
from runner.schema.compilations import (
    INDUCTOR_OPTIONS,
    INDUCTOR_VARIABLE,
    may_be_set,
    parsed_inductor_options,
)
from runner.schema.protocol import CHANGED_INTERPRETER
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Caches, TaskOutcome
from runner.suites.torchdynamo.backends import Compiler
from runner.system.interpreters import Fingerprints, Interpreter
from tests.support.hosts import Control

SPEC = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs={"D": [256, 512]})


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


def launched(
    control: Control,
    tmp_path: Path,
    number: int,
    new_options: Mapping[str, bool | int] = MappingProxyType({}),
    *,
    caches: Caches = "fresh",
    spec: TaskSpec = SPEC,
    **options: Any,
) -> tuple[TaskOutcome, Path]:
    """One pair of two environments that differ in a variable, as a host would run it."""
    pythons = {
        name: Interpreter(str(control.python), {"STANDIN": str(control.folder), "TORCH_SIDE": name})
        for name in ("plain", "tuned")
    }
    folder = tmp_path / f"task-{number}"
    request = LaunchRequest(
        Job(spec, number, "tuned", "plain", new_options, caches=caches),
        folder,
        pythons=pythons,
        environment={"CUDA_VISIBLE_DEVICES": ""},
        lock_fd=None,
        run_folder=tmp_path / "caches",
        **{"on_event": lambda _event: None, "should_stop": lambda: "", **options},
    )
    outcome = run_task(request)
    if outcome.status == "ok":
        lines = (folder / "results.jsonl").read_text().splitlines()
        assert list(outcome.records) == [json.loads(line) for line in lines]
    return outcome, folder


def sides(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    pairs = [json.loads(line)["runners"][0]["extra_info"]["pair"] for line in lines]
    return [(pair["side"], pair["number"]) for pair in pairs]


def test_each_side_throws_its_first_process_away_and_keeps_its_kernels(
    control: Control, tmp_path: Path
) -> None:
    events: list[dict[str, Any]] = []
    outcome, folder = launched(control, tmp_path, 0, on_event=events.append)
    assert (outcome.status, control.starts) == ("ok", 4)
    assert sorted(sides(folder)) == [("base", 0), ("base", 0), ("new", 0), ("new", 0)]
    log = (folder / "log").read_text()
    assert log.count("stand-in at work") == 4
    assert "[runner] pair 0: base, first process, environment plain" in log
    assert [path.name for path in sorted((folder / "artifacts/notes").iterdir())] == [
        "base-notes.txt",
        "new-notes.txt",
    ]
    assert not (folder / "base").exists()
    places = [(event["done"], event["total"]) for event in events]
    assert places == sorted(places)
    assert set(places) == {(0, 4), (2, 4)}, "both sides at once"
    assert events[1]["label"].endswith(", first process, D=256, 0 of 2")
    outcome, folder = launched(control, tmp_path, 1)
    assert (outcome.status, control.starts) == ("ok", 6)
    assert {number for _side, number in sides(folder)} == {1}


def test_a_side_that_fails_leaves_the_other_one_measured(control: Control, tmp_path: Path) -> None:
    launched(control, tmp_path, 0)
    control.plan({"5": {"status": "oom", "code": "out_of_memory", "reason": "too large"}})
    outcome, folder = launched(control, tmp_path, 1)
    assert (outcome.status, outcome.code) == ("oom", "out_of_memory")
    assert outcome.reason in {"base (plain): too large", "new (tuned): too large"}
    assert {side for side, _number in sides(folder)} == {"base", "new"}


def test_torch_replaced_between_the_sides_leaves_no_mixed_pair(control: Control, tmp_path: Path) -> None:
    control.install_torch("1.0")
    launched(control, tmp_path, 0)
    python = Interpreter(str(control.python), {"STANDIN": str(control.folder)})
    fingerprints = Fingerprints(tmp_path / "fingerprints.json", {"plain": python})
    check = partial(fingerprints.checked, names=["plain"], begun=fingerprints.look(), place="here")

    def replaced_by_the_second(outcome: TaskOutcome) -> TaskOutcome:
        if control.starts == 6:
            control.install_torch("2.0")
        return check(outcome)

    outcome, folder = launched(control, tmp_path, 1, caches="pinned", check=replaced_by_the_second)
    assert control.starts == 6, "nothing is started with another torch"
    assert (outcome.status, outcome.code) == ("failed", CHANGED_INTERPRETER)
    assert "torch 1.0" in outcome.reason
    assert "torch 2.0" in outcome.reason
    assert len({side for side, _number in sides(folder)}) == 1


def test_options_reach_the_new_side_alone(control: Control, tmp_path: Path) -> None:
    _outcome, folder = launched(control, tmp_path, 0, {"max_fusion_size": 8, "epilogue_fusion": False})
    text = (folder / "results.jsonl").read_text()
    runners = [json.loads(line)["runners"][0]["extra_info"] for line in text.splitlines()]
    said = {runner["pair"]["side"]: runner.get("variables") for runner in runners}
    options = '{"epilogue_fusion": false, "max_fusion_size": 8}'
    assert said == {"base": None, "new": {"RUNNER_INDUCTOR_OPTIONS": options}}
    assert runners[0]["pair"]["new"] == "tuned with epilogue_fusion=off, max_fusion_size=8"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cpp.simdlen": 10000}', "10000 is not within 0 to 512"),
        ('{"epilogue_fusion": 1}', "neither true nor false"),
        ('{"trace.enabled": true}', "cannot be set from outside"),
        ('{"no_such_option": true}', "no option that can be set"),
        ('{"memory_pool": "heap"}', "not one of none"),
        ('{"unbacked_symint_fallback": 4294967296}', "not within"),
    ],
)
def test_only_what_the_catalogue_lists_is_tried(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv(INDUCTOR_VARIABLE, text)
    with pytest.raises(TaskFailure, match=said) as refused:
        candidate_options()
    assert (refused.value.status, refused.value.code) == ("unsupported", "no_such_option")


def test_an_option_that_this_torch_has_not_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INDUCTOR_VARIABLE, '{"cpp.min_chunk_size": 512, "epilogue_fusion": true}')
    assert candidate_options() == {"cpp.min_chunk_size": 512, "epilogue_fusion": True}
    monkeypatch.setenv(INDUCTOR_VARIABLE, '{"cpu_gpu_bw": 3, "memory_pool": "outputs"}')
    assert [(name, repr(value)) for name, value in candidate_options().items()] == [
        ("cpu_gpu_bw", "3.0"),
        ("memory_pool", "'outputs'"),
    ]
    monkeypatch.setenv(INDUCTOR_VARIABLE, '{"cpp.min_chunk_size": 512}')
    monkeypatch.delattr("torch._inductor.config.cpp.min_chunk_size")
    with pytest.raises(TaskFailure, match=r"has no cpp\.min_chunk_size"):
        candidate_options()
    monkeypatch.delenv(INDUCTOR_VARIABLE)
    assert candidate_options() == {}


def test_what_is_tried_goes_before_what_a_suite_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {"max_fusion_size": 16, "unroll_reductions_threshold": 4}
    spec = TaskSpec("timm", "resnet18", "inference", "float32", "inductor", "cpu", knobs=knobs)
    monkeypatch.setenv(INDUCTOR_VARIABLE, '{"max_fusion_size": 8}')
    with config.patch():
        Compiler(spec)
        assert (config.max_fusion_size, config.unroll_reductions_threshold) == (8, 4)
    asked: dict[str, Any] = {}
    monkeypatch.setattr("torch.compile", lambda function, **given: asked.update(given) or function)
    with pytest.raises(TaskFailure, match="no kernel"):
        compile_inductor(abs, (1,), prepare("cpu"), {"max_fusion_size": 16, "epilogue_fusion": True})
    assert asked["options"] == {"max_fusion_size": 8, "epilogue_fusion": True}


@pytest.mark.parametrize(
    "text", ["epilogue_fusion", "epilogue_fusion=8", "max_fusion_size=on", "fx_wrapper=on"]
)
def test_options_that_are_typed_wrong_are_refused(text: str) -> None:
    assert parsed_inductor_options(["epilogue_fusion=Off", "max_fusion_size=8"]) == {
        "epilogue_fusion": False,
        "max_fusion_size": 8,
    }
    with pytest.raises(BadRequest):
        parsed_inductor_options([text])


def test_an_interpreter_reports_its_options_and_none_that_names_a_place_or_a_program() -> None:
    found = settable()
    assert (found["max_autotune"], found["cpu_gpu_bw"], found["memory_pool"]) == (
        "bool",
        "float",
        ["none", "intermediates", "outputs", "combined"],
    )
    assert not found.keys() & INDUCTOR_OPTIONS.keys()
    words = ("trace.", "remote", "compiler", "cxx", "wrapper", "command")
    assert [name for name in found if any(word in name for word in words)] == []
    assert [name for name in found if name.endswith(("_dir", "_path"))] == []
    assert set(INDUCTOR_OPTIONS) == set(filter(may_be_set, INDUCTOR_OPTIONS))


def test_the_command_asks_the_interpreter_for_an_option_that_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"inductor_options": {"max_autotune": "bool"}}
    monkeypatch.setattr("runner.system.interpreters.torch_facts", lambda *_asked: told)
    words = "run micro --case layer_norm --device cpu --dry-run --new-opt"
    assert main([*words.split(), "max_autotune=on"]) == 0
    assert "--new-opt max_autotune=on" in capsys.readouterr().out
    assert main([*words.split(), "max_autotone=on"]) == 2
    assert main([*words.split(), "max_autotune=3"]) == 2


def test_a_cancel_ends_the_pair_where_it_is(control: Control, tmp_path: Path) -> None:
    control.plan({"2": {"spin": True}})
    outcome, _folder = launched(
        control, tmp_path, 0, should_stop=lambda: "cancelled" if control.starts == 2 else ""
    )
    assert (outcome.status, control.starts) == ("cancelled", 2)


def test_a_side_that_hangs_takes_no_time_from_the_other_one(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.launch.pairs.random.sample", lambda sides, _count: list(sides))
    control.plan({"*": {"spins": {"plain": True}}})
    outcome, _folder = launched(control, tmp_path, 0, spec=replace(SPEC, timeout_s=10))
    assert (outcome.status, outcome.reason) == (
        "timed_out",
        "base (plain): the time limit of 10 s was reached",
    )
    assert control.starts == 3, "the new side goes on"
