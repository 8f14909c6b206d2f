"""Fingerprints of interpreters: they change with the packages, and cost no process while nothing changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.system.interpreters import Fingerprints, Interpreter


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages that comes before the interpreter's own."""
    install(tmp_path / "site", "torch", "1.0")
    return tmp_path / "site"


@pytest.fixture
def fingerprints(site: Path, tmp_path: Path) -> Fingerprints:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho start >> {tmp_path}/starts\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    pythons = {"it": Interpreter(str(python), {"PYTHONPATH": str(site)})}
    return Fingerprints(tmp_path / "fingerprints.json", pythons)


def install(site: Path, package: str, version: str, files: str = "") -> None:
    for old in site.glob(f"{package}-*.dist-info/*"):
        old.unlink()
    folder = site / f"{package}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (folder / "RECORD").write_text(f"{package}/version.py,{version},\n{files}")
    (site / package).mkdir(exist_ok=True)
    (site / package / "__init__.py").touch()
    text = f"__version__ = '{version}'\ngit_version = 'abc{version}'\n"
    (site / package / "version.py").write_text(text)


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def test_an_interpreter_is_asked_again_only_when_a_package_changes(
    fingerprints: Fingerprints, site: Path, tmp_path: Path
) -> None:
    first = fingerprints.look()["it"]
    assert (first.torch, first.torch_git) == ("1.0", "abc1.0")
    assert fingerprints.look()["it"] == first
    assert starts(tmp_path) == 1
    install(site, "torch", "2.0")
    second = fingerprints.look()["it"]
    assert (second.torch, second.torch_git) == ("2.0", "abc2.0")
    assert second.packages != first.packages
    assert starts(tmp_path) == 2


def test_another_package_is_another_fingerprint(fingerprints: Fingerprints, site: Path) -> None:
    first = fingerprints.look()["it"]
    install(site, "numpy", "9.0")
    second = fingerprints.look()["it"]
    assert second.subject == first.subject
    assert second.packages != first.packages
    install(site, "triton", "7.0")
    assert fingerprints.look()["it"].triton == "7.0"


def test_a_torch_built_again_in_place_is_seen(fingerprints: Fingerprints, site: Path) -> None:
    first = fingerprints.look()["it"]
    (site / "torch" / "version.py").write_text("__version__ = '1.0'\ngit_version = 'another'\n")
    assert fingerprints.look()["it"].torch_git == "another"
    assert first.torch_git == "abc1.0"


def test_one_that_does_not_answer_has_none(tmp_path: Path) -> None:
    pythons = {"broken": Interpreter("/nonexistent"), "it": Interpreter(sys.executable)}
    assert set(Fingerprints(tmp_path / "fingerprints.json", pythons).look()) == {"it"}


def test_a_full_disk_only_costs_another_question(site: Path, tmp_path: Path) -> None:
    pythons = {"it": Interpreter(sys.executable, {"PYTHONPATH": str(site)})}
    found = Fingerprints(tmp_path / "missing" / "fingerprints.json", pythons)
    assert found.look() == found.look()
