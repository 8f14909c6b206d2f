"""A matrix of tasks on one machine: which tasks, in which order, and its tables."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hud.judging.pairs import judge_pairs
from runner.__main__ import _parser, main
from runner.cli import run as run_command
from runner.cli import tables, terminal
from runner.cli.output import Output, v3_records
from runner.cli.terminal import RunContext
from runner.launch.jobs import Job
from runner.schema.protocol import CHANGED_INTERPRETER
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import request
from runner.system import locks, machine
from runner.system.accelerators import Accelerator
from runner.system.interpreters import Interpreter
from tests.support.hosts import Control
from tests.support.waiting import wait_for

TASKS = [
    TaskSpec("micro", case, "inference", "bfloat16", "inductor", "cpu", knobs={"D": [size]})
    for case in ("layer_norm", "gemv")
    for size in (256, 512)
]
GPUS = [Accelerator(f"cuda:{index}", "cuda", "NVIDIA H200", "h200", f"GPU-{index}") for index in (0, 1)]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


def context(control: Control) -> RunContext:
    return RunContext({"default": Interpreter(str(control.python), {"STANDIN": str(control.folder)})})


def run(control: Control, jobs: list[Job]) -> list[TaskResult]:
    told: list[TaskResult] = []
    finished = terminal.run_jobs(
        jobs, GPUS[0], context(control), on_event=lambda *_event: None, on_finished=told.append
    )
    assert told == finished
    return finished


def test_the_tasks_run_in_their_order(control: Control) -> None:
    finished = run(control, [Job(task) for task in TASKS])
    assert [one.name for one in finished] == [task.fingerprint() for task in TASKS]
    assert {one.outcome.status for one in finished} == {"ok"}
    assert all(one.records for one in finished)
    assert locks.holder(locks.default_folder(), GPUS[0].lock) is None


def test_sigterm_ends_the_task_and_starts_no_other(control: Control) -> None:
    control.plan({"1": {"spin": True}})

    def interrupt() -> None:
        wait_for((control.folder / GPUS[0].uuid / "pid-1").exists, "the first task")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    assert [one.outcome.status for one in run(control, [Job(task) for task in TASKS])] == ["cancelled"]


def test_another_torch_in_the_middle_fails_the_task_and_ends_the_run(control: Control) -> None:
    control.install_torch("1.0")
    control.plan({"2": {"wait_for": "go"}})

    def install() -> None:
        wait_for((control.folder / GPUS[0].uuid / "pid-2").exists, "the second task")
        control.install_torch("2.0+other")
        control.go()

    threading.Thread(target=install).start()
    first, second = run(control, [Job(task) for task in (*TASKS, TASKS[0])])
    assert (first.outcome.status, second.outcome.status) == ("ok", "failed")
    assert second.outcome.code == CHANGED_INTERPRETER
    assert all(version in second.outcome.reason for version in ("torch 1.0", "torch 2.0+other"))
    assert (list(second.records), list(second.outcome.records)) == ([], [])


def test_repeats_and_pairs_have_names_of_their_own() -> None:
    jobs = [Job(TASKS[0]), Job(TASKS[0], 1), Job(TASKS[0], 0, "new", "base"), Job(TASKS[0], 1, "new", "base")]
    assert len({job.key for job in jobs}) == 4
    assert jobs[0].key == TASKS[0].fingerprint()


# Which tasks


def dry(capsys: pytest.CaptureFixture[str], words: str) -> list[str]:
    assert main(["run", *words.split(), "--device", "cpu", "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_parts_of_a_partition_are_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    whole = dry(capsys, "micro")
    parts = [dry(capsys, f"micro --partition {part}/3") for part in (1, 2, 3)]
    assert sorted(line for part in parts for line in part) == sorted(whole)


def test_several_suites_backends_and_modes_make_one_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry(
        capsys,
        "huggingface timm --case T5Small --case ghostnet_100 --mode inference training --dtype float32"
        " --backend eager --backend aot_eager --iterations-per-run 2 --batch-size 3 --timeout 60 --dynamic",
    )
    assert len(lines) == 8
    assert all("batch_size=3,iterations_per_run=2" in line and "--dynamic" in line for line in lines)
    assert {line.split()[4] for line in lines} == {"huggingface", "timm"}


def test_cases_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry(capsys, "micro --exclude ^GE --exclude-exact layer_norm")
    assert lines
    assert not [line for line in lines if "--case gemv" in line or "--case layer_norm" in line]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("micro --partition 3/2", "is not I/N"),
        ("micro --partition 0/2", "is not I/N"),
        ("micro --exclude (", "no regular expression"),
        ("micro --exclude .", "no case fits"),
        ("micro timm --case nothing", "none of micro, timm has a case 'nothing'"),
        ("micro --timeout 100000", "the time limit is 1 to"),
        ("micro --repeats 0", "--repeats is 1 to"),
        ("micro --compilations 0", "compilations are 1 to"),
        ("cache --compilations 2", "cache (inductor): measured in one compilation"),
        ("micro --python /bin/sh", "it is NAME=PATH"),
        ("micro --base-python a=/bin/sh --python a=/bin/sh", "need names of their own"),
        ("micro --baseline /nonexistent", "No such file"),
        ("micro --dynamic", "has no dynamic shapes"),
        ("micro --opt repeat=20 --repeat 30", "option repeat is given twice"),
        ("", "say which suite"),
    ],
)
def test_what_cannot_be_asked(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words.split(), "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err


HERE = f"new={sys.executable},A='x y'"
REQUESTS = [
    "micro --case gemv[D=256+512] --dtype int8 --repeat 30 --timeout 77 --device cpu",
    "timm --case ghostnet_100 --backend inductor eager --dtype float32 --verify --dynamic --device cpu",
    f"huggingface --case T5Small --dtype float32 --python {HERE} --repeats 3 --device cpu",
    f"huggingface timm --filter T5|ghost --dtype float32 --base-python old={sys.executable} --python {HERE}",
    "huggingface --case T5Small --dtype amp --new-opt nan_asserts=true size_asserts=false --repeats 2",
    "xla --case dummy --device cpu",
    "micro xla --filter gemv|dummy --compilations 2 --repeats 2 --device cpu",
    "micro --case gemv --caches kept --repeats 2 --device cpu",
    "micro --case gemv --dtype int8 --device cuda:1",
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_printed_command_does_its_part_of_the_request(
    request_: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def run(jobs: list[Job], chosen: Accelerator, context: RunContext, **_told: Any) -> list[TaskResult]:
        asked.extend((job.key, job.task.timeout_s, context.pythons[job.python], chosen.name) for job in jobs)
        return []

    monkeypatch.setattr(terminal, "run_jobs", run)
    monkeypatch.setattr(run_command, "accelerators", fake_accelerators)
    words = ["run", *shlex.split(request_)]
    main(words)
    whole = sorted(asked, key=str)
    capsys.readouterr()
    main([*words, "--dry-run"])
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    asked.clear()
    for line in printed:
        main(shlex.split(line)[3:])
    assert sorted(asked, key=str) == whole
    assert whole


def fake_accelerators(wanted: list[str]) -> list[Accelerator]:
    cards = {card.name: card for card in GPUS} | {"cuda": GPUS[0]}
    cpu = Accelerator("cpu", "cpu", "a CPU", "cpu-x86_64", "")
    return [cards.get(name, cpu) for name in wanted or ["cuda"]]


def test_what_a_command_cannot_say_is_remarked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = "huggingface timm --filter T5Small|ghost --dtype float32 --new-opt nan_asserts=true --repeats 3"
    pairs, turns, *commands = dry(capsys, f"{words} --output {tmp_path / 'r.json'}")
    assert "in 3 pairs of fresh processes, base (default) and new (default with nan_asserts=on)" in pairs
    assert "takes turns" in turns
    assert len(commands) == 2
    assert all(line.endswith(f"--output {tmp_path / 'r.json'} --resume") for line in commands)
    assert not list(tmp_path.iterdir())
    words = "micro --case gemv --dtype int8 --format v3"
    remark, command = dry(capsys, f"{words} --output {tmp_path / 'r.json'}")
    assert "give each its own --output" in remark
    assert "--output" not in command


def test_what_is_done_is_not_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*machine.changing_variables(), "OMP_NUM_THREADS"}:
        monkeypatch.delenv(name, raising=False)  # they are part of what a task is known by
    path = tmp_path / "r.json"
    words = "micro --case gemv --case layer_norm --dtype bfloat16"
    (task, _other) = request.tasks(_parser().parse_args(["run", *words.split()]), "cpu")
    Output(path, "ours", suites=["micro"], resume=False).add(finished(task))
    (line,) = dry(capsys, f"{words} --resume --output {path}")
    assert "layer_norm" in line
    assert dry(capsys, f"micro --case gemv --dtype bfloat16 --resume --output {path}") == []


# Tables


def finished(task: TaskSpec, status: str = "ok", **values: float) -> TaskResult:
    records = [
        {
            "benchmark": {"mode": task.mode, "dtype": task.dtype, "extra_info": {"knobs": {}}},
            "model": {"name": task.case, "backend": task.backend, "origins": [task.suite]},
            "metric": {"name": name, "benchmark_values": [value], "extra_info": {"status": "ok"}},
        }
        for name, value in values.items()
    ]
    return TaskResult(task, TaskOutcome(status), Path(), records)


def model(case: str, backend: str = "inductor") -> TaskSpec:
    return TaskSpec("timm", case, "inference", "bfloat16", backend, "cuda")


def test_the_overview_counts_what_is_missing_and_clips_nothing() -> None:
    asked = [model("a"), model("b"), model("c"), model("d"), model("a", "eager")]
    done = [
        finished(asked[0], speedup=0.5, cold_compile_s=10.0),
        finished(asked[1], speedup=2.0, cold_compile_s=20.0),
        finished(asked[2], "oom"),
    ]
    heads, inductor, eager = tables.overview(done, asked).splitlines()
    assert heads.split()[:5] == ["suite", "mode", "dtype", "backend", "passed"]
    assert inductor.split() == ["timm", "inference", "bfloat16", "inductor", "50%,", "2/4", "1.000", "15.00"]
    assert eager.split() == ["timm", "inference", "bfloat16", "eager", "0%,", "0/1"]


def test_the_overview_says_beside_the_cases_how_many_may_not_decide() -> None:
    asked = [model("a"), model("b"), model("c")]
    done = [finished(one, speedup=value) for one, value in zip(asked, (0.5, 2.0, 7.0), strict=True)]
    done[2].records[0]["metric"]["extra_info"]["quality"] = "imprecise"
    _heads, inductor = tables.overview(done, asked).splitlines()
    assert "3/3, 1 inconclusive" in inductor
    assert inductor.split()[-1] == "1.000"
    assert "(7.000)" in tables.results(done)


def test_a_baseline_is_compared_case_by_case() -> None:
    before = [*finished(model("a"), speedup=1.0).records, *finished(model("gone"), speedup=9.0).records]
    text = "\n".join(json.dumps(record) for record in before)
    now = [finished(model("a"), speedup=1.5), finished(model("fresh"), speedup=1.0)]
    said = tables.against(v3_records(text), now)
    assert said.splitlines()[1].split()[-4:] == ["speedup", "1", "1.5", "+50.0%"]
    assert "speedup: 1 → 1.5 (+50.0%) over 1 cases" in said
    assert "1 cases in both, 1 only before, 1 only now" in said
    with pytest.raises(ValueError, match="no records"):
        v3_records("[1]")


def sided(value: float, side: str, number: int) -> TaskResult:
    done = finished(model("a"), speedup=value)
    pair = {"number": number, "side": side, "base": "old", "new": "tuned"}
    done.records[0]["runners"] = [{"extra_info": {"pair": pair}}]
    return done


def test_what_a_value_warns_of_stands_below_the_table() -> None:
    done = [finished(model("a"), speedup=1.5, eager_latency_ms=2.0)]
    words = ("known to ±3 %; others at work", "others at work")
    for record, warning in zip(done[0].records, words, strict=True):
        record["metric"]["extra_info"]["warning"] = warning
    (below,) = tables.results(done).splitlines()[2:]
    assert below.startswith("timm a ")
    assert below.endswith(": known to ±3 %; others at work")


def test_pairs_end_in_a_comparison() -> None:
    noise = (1.0, 1.001, 0.999, 1.002, 0.998)
    done = [sided(noise[number], "base", number) for number in range(5)]
    done += [sided(1.1 * noise[-number], "new", number) for number in range(5)]
    heads, line, note = tables.pairs(done).splitlines()
    assert heads.split()[-3:] == ["p", "pairs", "result"]
    assert line.split()[-1] == "confirmed"
    assert "+10.0%" in line
    assert "2%" in note
    assert tables.pairs([finished(model("a"), speedup=1.0)]) == ""


def test_values_that_may_not_decide_have_no_answer_as_on_the_page() -> None:
    done = [sided(1.0 + at / 10_000, side, at) for at in range(5) for side in ("base", "new")]
    assert tables.pairs(done).splitlines()[1].split()[-2:] == ["5", "dismissed"]
    draws = [sided(1.0, side, at) for at in range(3) for side in ("base", "new") for _owner in range(2)]
    for place, one in enumerate(draws):
        one.records[0]["runners"][0]["extra_info"]["pair"] |= {"draw": ("base", "new")[place % 2], "round": 0}
    assert tables.draws(draws).splitlines()[1].split()[-5:] == ["3", "+", "3", "same", "code"]
    for one in (*done, *draws):
        one.records[0]["metric"]["extra_info"] = {"quality": "busy_cpu"}
    assert tables.pairs(done).splitlines()[1].split()[-2:] == ["0", "inconclusive"]
    assert tables.draws(draws).splitlines()[1].split()[-4:] == ["0", "+", "0", "inconclusive"]


def test_the_table_of_pairs_takes_the_surer_test_as_the_page_does() -> None:
    base, new = (0.99, 0.979, 1.019, 0.976, 0.997), (1.044, 1.067, 1.029, 1.061, 1.042)
    sides = {"base": base, "new": new}  # p .017 by the pairs alone
    done = [sided(value, side, at) for side, values in sides.items() for at, value in enumerate(values)]
    p, count, word = tables.pairs(done).splitlines()[1].split()[-3:]
    found = judge_pairs(base, new, direction="up")
    assert (word, count) == ("confirmed", "5") == (found.change.word, str(found.pairs))
    assert float(p) == pytest.approx(found.change.p, rel=0.05)
