"""An A/B comparison at equal choices, on a host: both sides are pinned to what each of them drew."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.launch.jobs import Job, LaunchRequest
from runner.launch.launch import launch
from runner.launch.pairs import run_task
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system.interpreters import Interpreter
from tests.support.hosts import Control

SPEC = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cuda", knobs={"D": [256, 512]})
DRAWN = {"base": "XBLOCK=4 num_warps=4", "new": "XBLOCK=8 num_warps=4"}
WARM_AND_FREE = 4


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    """A stand-in whose pinned processes come in the order base, new with base's choices, then with new's."""
    monkeypatch.setattr("runner.launch.pairs.random.shuffle", lambda _processes: None)
    return Control(tmp_path / "control")


def launched(
    control: Control,
    tmp_path: Path,
    plan: dict[str, Any],
    *,
    rounds: int = 1,
    pair: int = 2,
    device: str = "cuda",
) -> TaskOutcome:
    control.plan(plan)
    pythons = {
        name: Interpreter(str(control.python), {"STANDIN": str(control.folder), "TORCH_SIDE": name})
        for name in ("plain", "tuned")
    }
    return run_task(
        LaunchRequest(
            Job(replace(SPEC, device=device), pair, "tuned", "plain", caches="pinned", rounds=rounds),
            tmp_path / "task",
            pythons=pythons,
            environment={"CUDA_VISIBLE_DEVICES": ""},
            lock_fd=None,
            on_event=lambda _event: None,
            should_stop=lambda: "",
            run_folder=tmp_path / "caches",
        )
    )


def pair_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["runners"][0]["extra_info"]["pair"]
    return found


def pinned(outcome: TaskOutcome) -> list[dict[str, Any]]:
    return [record for record in outcome.records if "draw" in pair_of(record)]


def test_both_sides_are_pinned_to_the_choices_of_each(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"*": {"compiled": True}})
    assert (outcome.status, control.starts) == ("ok", WARM_AND_FREE + 4)
    assert control.shared is False
    written = (tmp_path / "task" / "results.jsonl").read_text().splitlines()
    assert list(outcome.records) == [json.loads(line) for line in written]
    forced = {}
    for record in pinned(outcome):
        pair, info = pair_of(record), record["metric"]["extra_info"]
        assert (pair["number"], pair["round"], info["compilation"]) == (2, 0, 2)
        assert (pair["base"], pair["new"]) == ("plain", "tuned")
        if compiled := info.get("compiled"):
            assert set(compiled) == {"kernels"}, "nothing of compiling"
            forced[pair["draw"], pair["side"]] = {kernel["config"] for kernel in compiled["kernels"]}
    assert forced == {(owner, side): {DRAWN[owner]} for owner in DRAWN for side in DRAWN}
    metrics = Counter((record["metric"]["name"], "draw" in pair_of(record)) for record in outcome.records)
    assert metrics == {
        ("compiled_latency_ms", False): 4,  # two sizes on two sides
        ("cold_compile_s", False): 4,
        ("kernel_count", False): 4,
        ("compiled_latency_ms", True): 8,
        ("kernel_count", True): 8,
    }
    notes = sorted(path.name for path in (tmp_path / "task" / "artifacts" / "notes").iterdir())
    assert notes == ["base-notes.txt", "new-notes.txt"], "of the free processes"


def test_each_round_repeats_every_draw_on_both_sides(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"*": {"compiled": True}}, rounds=2)
    assert control.starts == WARM_AND_FREE + 8
    places = {
        (pair["draw"], pair["side"], pair["round"])
        for pair in (pair_of(record) for record in pinned(outcome))
    }
    assert len(places) == 8
    assert not any("repeated" in pair_of(record) for record in outcome.records)


def test_where_the_kernels_are_not_told_the_processes_run_and_say_so(
    control: Control, tmp_path: Path
) -> None:
    outcome = launched(control, tmp_path, {})
    assert (outcome.status, control.starts) == ("ok", WARM_AND_FREE + 4)
    assert len(pinned(outcome)) == 8
    for record in outcome.records:
        is_pinned = "draw" in pair_of(record)
        assert (pair_of(record).get("choices") == "unknown") == is_pinned
        assert record["metric"]["extra_info"].get("warning", "").startswith("not pinned") == is_pinned


@pytest.mark.parametrize(
    ("number", "repeated"),
    [
        (5, [("base", "base")]),
        (6, [("new", "base")]),  # compared with the other side
        (8, [("new", "new")]),
    ],
)
def test_a_process_far_from_the_others_of_its_choices_is_measured_again(
    control: Control, tmp_path: Path, number: int, repeated: list[tuple[str, str]]
) -> None:
    plan = {"*": {"compiled": True}, str(number): {"compiled": True, "factor": 1.08}}
    outcome = launched(control, tmp_path, plan)
    assert control.starts == WARM_AND_FREE + 4 + len(repeated)
    again = {
        (pair["side"], pair["draw"])
        for pair in (pair_of(record) for record in outcome.records)
        if pair.get("repeated")
    }
    assert again == set(repeated)


def test_on_a_cpu_both_sides_of_a_pair_whose_ratio_is_far_are_measured_again(
    control: Control, tmp_path: Path
) -> None:
    plan = {"*": {"compiled": True}, "5": {"compiled": True, "factor": 1.08}}
    outcome = launched(control, tmp_path, plan, device="cpu")
    assert control.starts == WARM_AND_FREE + 4 + 2
    pairs = [pair_of(record) for record in outcome.records]
    assert {(pair["side"], pair["draw"]) for pair in pairs if pair.get("repeated")} == {
        ("base", "base"),
        ("new", "base"),
    }


def test_on_a_cpu_a_clock_that_moves_between_pairs_repeats_none(control: Control, tmp_path: Path) -> None:
    slow = {"compiled": True, "factor": 1.5}
    launched(control, tmp_path, {"*": {"compiled": True}, "5": slow, "6": slow}, device="cpu")
    assert control.starts == WARM_AND_FREE + 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_busy_host_leaves_times_that_were_taken_in_turns(
    control: Control, tmp_path: Path, device: str
) -> None:
    plan = {"*": {"compiled": True, "facts": {"quality": "busy_cpu", "warning": "others"}}}
    outcome = launched(control, tmp_path, plan, device=device)
    qualities = {
        (record["metric"]["name"], "draw" in pair_of(record), record["metric"]["extra_info"].get("quality"))
        for record in outcome.records
        if record["metric"]["extra_info"]["warning"].endswith("others")
    }
    assert ("compiled_latency_ms", False, "busy_cpu") in qualities
    assert ("compiled_latency_ms", True, None if device == "cpu" else "busy_cpu") in qualities
    assert {quality for name, _pinned, quality in qualities if name == "kernel_count"} == {"busy_cpu"}


def test_a_change_of_the_code_repeats_no_process(control: Control, tmp_path: Path) -> None:
    """All processes of a side are then far from those of the other, which says nothing against any."""
    launched(control, tmp_path, {"*": {"compiled": True, "factors": {"tuned": 1.3}}})
    assert control.starts == WARM_AND_FREE + 4


def test_a_side_that_cannot_take_a_choice_leaves_the_others_measured(
    control: Control, tmp_path: Path
) -> None:
    failed = {"status": "oom", "code": "out_of_memory", "reason": "too large", "results": 0}
    outcome = launched(control, tmp_path, {"*": {"compiled": True}, "6": failed})
    assert (outcome.status, control.starts) == ("oom", WARM_AND_FREE + 4)
    assert outcome.reason == "new (tuned) with the choices of base: too large"
    statuses = {
        (pair_of(record)["draw"], pair_of(record)["side"]): record["metric"]["extra_info"]["status"]
        for record in pinned(outcome)
        if record["metric"]["name"] == "compiled_latency_ms"
    }
    assert statuses.pop(("base", "new")) == "oom"
    assert set(statuses.values()) == {"ok"}
    assert "cold_compile_s" not in {record["metric"]["name"] for record in pinned(outcome)}


def test_without_the_times_of_both_sides_nothing_is_pinned(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"3": {"status": "oom", "reason": "too large", "results": 0}})
    assert (outcome.status, control.starts) == ("oom", WARM_AND_FREE)
    assert pinned(outcome) == []


def test_a_wrong_result_leaves_times_to_compare(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"3": {"status": "wrong", "reason": "of another size"}})
    assert (outcome.status, control.starts) == ("wrong", WARM_AND_FREE + 4)
    assert len(pinned(outcome)) == 8


def offers(count: int) -> dict[str, Any]:
    """Return a plan in which the baseline chooses among so many candidates, and the other side among two."""
    few = [DRAWN["base"], DRAWN["new"]]
    more = [f"XBLOCK={16 * (number + 1)} num_warps=4" for number in range(count - len(few))]
    return {"compiled": True, "offered": {"plain": [*few, *more], "tuned": few}}


def forced_candidates(outcome: TaskOutcome) -> list[tuple[str, str, int]]:
    """Return side, configuration and number of each kernel that was timed at a candidate."""
    return [
        (pair["side"], kernel["config"], pair["candidate"])
        for record in outcome.records
        if "candidate" in (pair := pair_of(record))
        for kernel in record["metric"]["extra_info"]["compiled"]["kernels"]
    ]


def test_what_only_one_side_is_offered_is_timed_on_both(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"*": offers(4)})
    assert (outcome.status, control.starts) == ("ok", WARM_AND_FREE + 4 + 2 * 4)
    found = forced_candidates(outcome)
    configurations = offers(4)["offered"]["plain"]
    sizes = SPEC.knobs["D"]
    assert isinstance(sizes, list)
    assert Counter((side, config) for side, config, _number in found) == {
        (side, config): len(sizes) for side in DRAWN for config in configurations
    }
    assert {pair_of(record)["draw"] for record in outcome.records if "candidate" in pair_of(record)} == {
        "base"
    }


def test_many_candidates_are_timed_by_several_pairs(control: Control, tmp_path: Path) -> None:
    outcome = launched(control, tmp_path, {"*": offers(6)})  # in the third pair 8 to 11 of 6, in turn
    assert control.starts == WARM_AND_FREE + 4 + 2 * 4
    assert {number for _side, _config, number in forced_candidates(outcome)} == {2, 3, 4, 5}


def test_three_pairs_time_every_candidate(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*arguments: Any, **options: Any) -> TaskOutcome:
        return replace(launch(*arguments, **options), seconds=1.0)

    monkeypatch.setattr("runner.launch.jobs.launch", timed)
    outcomes = [launched(control, tmp_path, {"*": offers(14)}, pair=pair) for pair in range(3)]
    found = [{number for _side, _config, number in forced_candidates(outcome)} for outcome in outcomes]
    assert set().union(*found) == set(range(14))
    assert [*map(len, found)] == [5, 5, 5]


def test_a_candidate_that_fails_leaves_the_comparison_as_it_was(control: Control, tmp_path: Path) -> None:
    failed = {"status": "failed", "reason": "does not compile", "results": 0}
    outcome = launched(control, tmp_path, {"*": offers(3), "9": failed})
    assert (outcome.status, control.starts) == ("ok", WARM_AND_FREE + 4 + 2 * 3)
    assert len(forced_candidates(outcome)) == 2 * (2 * 3 - 1)


def test_candidates_that_take_long_are_not_all_timed(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*arguments: Any, **options: Any) -> TaskOutcome:
        return replace(launch(*arguments, **options), seconds=1.0 if control.starts <= 8 else 5.0)

    monkeypatch.setattr("runner.launch.jobs.launch", timed)
    outcome = launched(control, tmp_path, {"*": offers(6)})  # 8 s for the draws, 10 s a candidate
    assert len({number for _side, _config, number in forced_candidates(outcome)}) == 2
    assert outcome.seconds == 8 + 20
