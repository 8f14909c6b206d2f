"""docs/upstream_commands.md: each command is taken, and plans the number of tasks that the page names."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from runner.__main__ import main
from runner.system import interpreters, machine
from tests.support.servers import ROOT

_PAGE = (ROOT / "docs" / "upstream_commands.md").read_text()
_PLANS = [
    (command[1], int(count[1]))
    for row in re.findall(r"^\| `.*\|$|^\| all .*\|$", _PAGE, re.MULTILINE)
    for _start, _quoted, here, ran, *_ in [re.split(r"(?<!\\)\|", row)]
    if (count := re.search(r"dry run, (\d+) tasks?", ran)) and (command := re.search(r"`([^`]+)`", here))
]


def test_the_page_names_plans() -> None:
    assert len(_PLANS) >= 18


@pytest.mark.parametrize(("command", "count"), _PLANS)
def test_a_command_plans_what_the_page_says(
    command: str, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replace(machine.environment("cpu"), packages={"torch_xla": "2.9", "torchvision": "0.24"})
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: found)
    monkeypatch.setattr(machine, "gpus", list)
    words = shlex.split(command.replace("MODEL", "resnet50"))
    device = [] if "--device" in words else ["--device", "cuda"]
    assert main(["run", *words, *device, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("python -m runner run") == count
