"""Overlays on a host: what is taken of an archive, where the files stand, and which hosts take any."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from runner.host import attach
from runner.host.overlays import NoOverlay, with_overlay
from runner.schema.suite import BadRequest
from runner.system import sandbox
from runner.system.interpreters import Interpreter

COMMIT = "ab" * 20
PLANTED = {
    "torch/_inductor/planted.py": b"WORD = 'planted'",
    "torch/_inductor/config.py": b"WORD = 'config'",
    "torch/_inductor/deep/er.py": b"WORD = 'deeper'",
}


def archive(files: dict[str, bytes], link: str = "") -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    return written.getvalue()


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    """An interpreter with a small torch of its own."""
    torch = tmp_path / "wheel" / "torch"
    for name in (
        "__init__",
        "version",
        "nn/__init__",
        "_inductor/__init__",
        "_inductor/config",
        "_inductor/gone",
    ):
        path = torch / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("WORD = 'wheel'")
    for name in ("_dynamo", "_functorch", "_export"):
        (torch / name).mkdir()
    (torch / "_inductor" / "template.h").write_text("of the wheel")
    return Interpreter(sys.executable, {"PYTHONPATH": str(torch.parent)})


def run(python: Interpreter, code: str) -> str:
    variables = {**os.environ, **python.environment}
    done = subprocess.run(
        [python.path, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_files_of_a_commit_stand_before_those_of_the_wheel(python: Interpreter, tmp_path: Path) -> None:
    asked: list[int] = []

    def fetch() -> bytes:
        asked.append(1)
        return archive({**PLANTED, "torch/_inductor/__init__.py": b""})

    for _time in range(2):
        overlaid = with_overlay(python, "", COMMIT, tmp_path / "interpreters", fetch)
    assert len(asked) == 1  # it stays
    words = (
        "import torch.nn, torch._inductor.config as c, torch._inductor.planted as p;"
        "import torch._inductor.deep.er as d;"
        "from importlib.util import find_spec as f; from pathlib import Path;"
        "print(torch.nn.WORD, c.WORD, p.WORD, d.WORD, bool(f('torch._inductor.gone')),"
        " Path(c.__file__).with_name('template.h').read_text(), Path(c.__cached__).exists())"
    )
    assert run(overlaid, words) == "wheel config planted deeper False of the wheel True"
    assert run(python, "import torch._inductor.config as c; print(c.WORD)") == "wheel"


@pytest.mark.parametrize(
    "name",
    [
        "torch/nn/planted.py",
        "torch/_inductor/planted.so",
        "torch/_inductor/../nn/planted.py",
        "/tmp/planted.py",
    ],
)
def test_nothing_else_is_taken_of_an_archive(python: Interpreter, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "interpreters"
    body = archive({name: b"planted"}, link="torch/_inductor/link.py")
    with_overlay(python, "", COMMIT, folder, lambda: body)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(("planted", "link"))]


def test_an_archive_that_is_too_large_or_none_leaves_nothing(
    python: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.host.overlays.MOST_OVERLAY_BYTES", 10)
    folder = tmp_path / "interpreters"
    with pytest.raises(NoOverlay, match="over 20 bytes"):
        with_overlay(python, "", COMMIT, folder, lambda: archive({"torch/_inductor/a.py": b"#" * 21}))
    with pytest.raises(NoOverlay):
        with_overlay(python, "", COMMIT, folder, lambda: b"no archive")
    assert list(folder.iterdir()) == []


def test_overlays_need_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    attach.add_arguments(parser)
    options = [
        "--hud",
        "http://127.0.0.1:1",
        "--token",
        "t",
        "--data",
        str(tmp_path / "data"),
        "--allow-overlays",
    ]
    with pytest.raises(BadRequest, match="--sandbox"):
        attach.main(parser.parse_args(options))
    for allowed, data, answer in (
        ("1", "", False),
        ("0", "/data", False),
        ("", "/data", False),
        ("1", "/data", True),
    ):
        monkeypatch.setenv(sandbox.OVERLAYS, allowed)
        monkeypatch.setenv(sandbox.DATA, data)
        assert sandbox.may_overlay() is answer
