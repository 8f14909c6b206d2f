"""Interpreters and labels that the command line of `attach` names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runner.host.attach import labels_of, pythons_of
from runner.schema.suite import BadRequest
from runner.system.interpreters import interpreter_of


def test_a_variable_of_an_interpreter_may_hold_json() -> None:
    options = '{"max_fusion_size": 1, "triton.cudagraphs": true}'
    _name, found = interpreter_of(f"old={sys.executable},OPTIONS={options},CXX=/usr/bin/g++")
    assert found.environment == {"OPTIONS": options, "CXX": "/usr/bin/g++"}


def test_an_interpreter_is_found_where_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python-next"
    program.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = pythons_of(["next=python-next,A=1"])["next"]
    assert found.path == str(program)  # the link itself, which a virtual environment is
    monkeypatch.chdir(tmp_path)
    assert pythons_of(["next=./python-next"])["next"].path == str(program)  # tasks start elsewhere
    with pytest.raises(BadRequest, match="python-old"):
        pythons_of(["old=python-old"])


def test_interpreters_and_labels() -> None:
    found = pythons_of([f"next={sys.executable},A=1,PYTHONPATH=/x"])
    assert found["default"].path == sys.executable
    assert found["next"].environment == {"A": "1", "PYTHONPATH": "/x"}
    assert labels_of(["a=b=c"]) == {"a": "b=c"}
    for text in ("", "x", f"x={sys.executable},y", "=x", "x=no-such-program", "x=/"):
        with pytest.raises(BadRequest):
            pythons_of([text])
