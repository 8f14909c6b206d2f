"""Logs of limited size, and what is left of a process's family."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hud import supervisor
from hud.processes import descendants
from tests.servers import wait_for


def test_a_log_keeps_its_size_and_one_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 100)
    log = supervisor.LogFile(tmp_path / "web.log")
    for number in range(100):
        log({"data": b"line %03d of the log\n" % number})
    kept = (tmp_path / "web.log.1").read_text() + (tmp_path / "web.log").read_text()
    assert len(kept) < 300
    assert kept.endswith("line 099 of the log\n")
    assert {path.name for path in tmp_path.iterdir()} == {"web.log", "web.log.1"}


def test_descendants_are_the_living_ones_of_all_generations() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    before = set(descendants())
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    wait_for(lambda: len(set(descendants()) - before) == 2, "the grandchild")
    assert child.pid in descendants()
    child.communicate(b"\n")
    assert set(descendants()) <= before
