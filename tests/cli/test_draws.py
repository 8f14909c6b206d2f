"""`python -m runner run` of an A/B comparison at equal choices, with real processes of a stand-in."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.__main__ import main
from runner.schema.draws import ChoiceNoise, power_words
from tests.support.hosts import Control

pytestmark = pytest.mark.usefixtures("own_folders")
CASE = "run micro --case gemv[D=256+512] --dtype int8 --device cpu"


@pytest.fixture
def control(tmp_path: Path) -> Control:
    made = Control(tmp_path / "control")
    made.plan({"*": {"compiled": True}})
    return made


def compare(control: Control, *words: str, draws: tuple[str, str] = ("plain", "tuned")) -> int:
    """Compare two interpreters, whose autotuner chooses as TORCH_SIDE says."""
    sides = [
        f"{name}={control.python},STANDIN={control.folder},TORCH_SIDE={side}"
        for name, side in zip(("plain", "tuned"), draws, strict=True)
    ]
    return main([*CASE.split(), "--base-python", sides[0], "--python", sides[1], *words])


def pairs_in(path: Path) -> list[dict[str, Any]]:
    records = [record for line in path.read_text().splitlines() for record in json.loads(line)["records"]]
    return [record["runners"][0]["extra_info"]["pair"] for record in records]


def test_three_draws_of_each_side_are_compared(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.json"
    assert compare(control, "--output", str(path)) == 0
    assert control.starts == 2 + 3 * (2 + 4)
    pairs = pairs_in(path)
    processes = {(pair["number"], pair["side"], pair.get("draw"), pair.get("round")) for pair in pairs}
    assert Counter((draw, number) for _pair, _side, draw, number in processes) == {
        (None, None): 6,  # free ones: a pair for each draw
        ("base", 0): 6,
        ("new", 0): 6,
    }
    written = capsys.readouterr()
    assert power_words(ChoiceNoise(), 6) in written.err, "before it starts"
    lines = written.out.splitlines()
    (code,) = [line for line in lines if "D=256" in line and "compiled_latency_ms" in line and " + " in line]
    assert code.split()[-5:] == ["3", "+", "3", "same", "code"], "the sides drew other choices"
    (compile_time,) = [line for line in lines if "D=256" in line and "cold_compile_s" in line]
    assert compile_time.split()[-2:] == ["3", "inconclusive"], "of free pairs alone"


def code_answer(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().out.splitlines()
    (code,) = [line for line in lines if "D=256" in line and "compiled_latency_ms" in line and " + " in line]
    return code.partition(" + ")[2].split(maxsplit=1)[1]


def test_equal_sides_that_draw_alike_are_dismissed(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["XBLOCK=4 num_warps=4"]
    control.plan({"*": {"compiled": True, "offered": {"plain": only}}})
    assert compare(control, draws=("plain", "plain")) == 0
    assert code_answer(capsys) == "dismissed"


def test_nothing_is_dismissed_where_the_candidates_are_unknown(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(control, draws=("plain", "plain")) == 0
    assert code_answer(capsys) == "same code"


def test_nothing_is_dismissed_where_a_side_lost_candidates(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["XBLOCK=4 num_warps=4", "XBLOCK=8 num_warps=4"]
    control.plan({"*": {"compiled": True, "offered": {"plain": both, "lost": both[:1]}}})
    assert compare(control, draws=("plain", "lost")) == 0
    assert code_answer(capsys) == "same code"


def test_fresh_caches_are_free_pairs(control: Control, tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    assert compare(control, "--caches", "fresh", "--repeats", "1", "--output", str(path)) == 0
    assert control.starts == 4
    assert not any("draw" in pair for pair in pairs_in(path))


def test_a_dry_run_counts_the_processes(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(control, "--repeats", "2", "--dry-run") == 0
    remark, command = capsys.readouterr().out.splitlines()
    assert " 32 processes" in remark
    assert power_words(ChoiceNoise(), 6, 2) in remark
    assert "--repeats 2" in command
    assert control.starts == 0


@pytest.mark.parametrize(
    "words",
    [
        "--draws 2",
        "--draws 21",
        "--repeats 21",
        "--compilations 2",
        "--draws 3 --caches fresh",
        "--draws 3 --caches kept",
        "--pinned earlier.json",
    ],
)
def test_what_cannot_be_compared_is_refused(control: Control, words: str) -> None:
    assert compare(control, *words.split()) == 2
    assert control.starts == 0


def test_draws_belong_to_a_comparison() -> None:
    assert main([*CASE.split(), "--draws", "3"]) == 2
