"""`runner env`: an interpreter of its own, from packages of an index that may not answer."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli.env import size_of
from runner.host.attach import built_pythons
from runner.system import interpreters
from runner.system.interpreters import Interpreter

_WHEEL = {
    "stopwatch.py": "VALUE = 7\n",
    "stopwatch-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: stopwatch\nVersion: 1.0\n",
    "stopwatch-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "stopwatch-1.0.dist-info/RECORD": "stopwatch.py,,\n",
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, and an index of one package."""
    with zipfile.ZipFile(tmp_path / "stopwatch-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in _WHEEL.items():
            wheel.writestr(name, content)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_an_interpreter_is_built_and_offered(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["env", "mine", "stopwatch", "--data", str(data)]
    assert main([*command, "--dry-run"]) == 0
    assert "1 packages" in capsys.readouterr().out
    assert not data.exists()
    assert main(command) == 2, "it has no torch"
    assert built_pythons(data) == []
    monkeypatch.setattr(interpreters, "torch_facts", lambda _device, _python: {"torch": "2.9.0"})
    assert main(command) == 0
    ((name, python),) = map(interpreters.interpreter_of, built_pythons(data))
    assert name == "mine"
    assert python != Interpreter(sys.executable)
    answer = subprocess.run(
        [python.path, "-c", "import stopwatch; print(stopwatch.VALUE)"], capture_output=True, check=True
    )
    assert answer.stdout == b"7\n"
    assert main(command) == 2, "it is there already"


def test_an_index_that_does_not_answer_is_said_and_leaves_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("NO_INDEX", ""), ("INDEX_URL", "http://127.0.0.1:9/simple"), ("HTTP_RETRIES", "0")):
        monkeypatch.setenv(f"UV_{name}", value)
    assert main(["env", "mine", "idna", "--data", str(data)]) == 2
    assert "no package index answers" in capsys.readouterr().err
    assert not data.exists()
    for refused in (["env", "unknown"], ["env", "../x", "idna"]):
        assert main([*refused, "--data", str(data)]) == 2


def test_the_size_is_of_the_largest_wheel_of_each_package() -> None:
    lock = """
[[packages]]
name = "a"
sdist = { url = "…", size = 900, hashes = { } }
wheels = [{ url = "…", size = 10 }, { url = "…", size = 20 }]

[[packages]]
name = "b"
sdist = { url = "…", size = 5, hashes = { } }
"""
    assert size_of(lock) == (25, 2)
