"""Who imports what: held by fresh interpreters for what really happens, and by the text for the rest."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.suites import SUITES
from tests.support.servers import ROOT

# The wrapper that makes the runner a command of Django's, and what needs Redis.
DJANGO_SIDE = ("runner.apps", "runner.management")
TORCH_SIDE = ("runner.measure", "runner.suites")
READS_JSON = "runner.formats.json_text"  # imported when a format reads JSON, never on a host
NEEDS_TRITON = "runner.measure.compiler.read_kernel"  # which torch's CPU builds do not bring
SHARED = (
    "runner.schema.plan",
    "runner.schema.chunking",
    "runner.formats",
    "runner.schema.records",
    "runner.schema.statistics",
)


def modules(package: str) -> list[str]:
    """Dotted names of every file of a package."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


RUNNER = [name for name in modules("runner") if name != "runner.__main__"]
TORCH = [name for name in RUNNER if below(name, TORCH_SIDE)]
PLAIN = [name for name in RUNNER if not below(name, TORCH_SIDE + DJANGO_SIDE)]


def loaded(names: list[str], *, first: str = "") -> set[str]:
    """Top-level packages that a fresh interpreter has after importing these modules."""
    code = f"""
import importlib, json, sys
{first}
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps(names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout.splitlines()[-1]))


def test_plain_files_import_neither_django_nor_torch() -> None:
    found = loaded([*PLAIN, "runner.__main__"])
    assert not found & {"django", "torch", "hud"}
    assert "runner" in found


def test_the_shared_files_need_nothing_but_numpy() -> None:
    shared = [name for name in PLAIN if below(name, SHARED) and name != READS_JSON]
    assert not loaded(shared) & {"django", "torch", "hud", "rq", "redis", "msgspec", "pandas"}


def test_torch_files_never_import_django() -> None:
    found = loaded([name for name in TORCH if name != NEEDS_TRITON])
    assert "torch" in found
    assert not found & {"django", "hud", "rq"}  # redis is torch's own doing


def test_the_web_application_never_imports_torch() -> None:
    setup = "import os, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; django.setup()"
    found = loaded([name for name in modules("hud") if name != "hud.settings"], first=setup)
    assert "django" in found
    assert not found & {"torch", "triton", "transformers"}


def imports(name: str) -> Iterator[str]:
    """Modules that a file names in an import, wherever in it that stands."""
    path = ROOT / Path(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relative to itself"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", modules("hud"))
def test_the_web_application_takes_three_things_of_the_runner(name: str) -> None:
    for imported in imports(name):
        assert not below(imported, ("torch", "triton"))
        if below(imported, ("runner",)) and imported != "runner":
            assert below(imported, SHARED), f"{name} imports {imported}"


@pytest.mark.parametrize("name", RUNNER)
def test_the_runner_takes_nothing_of_the_web_application(name: str) -> None:
    for imported in imports(name):
        assert not below(imported, ("hud",)), f"{name} imports {imported}"
        if not below(name, DJANGO_SIDE):
            assert not below(imported, ("django",)), f"{name} imports {imported}"
        if not below(name, TORCH_SIDE):
            assert not below(imported, ("torch", "triton")), f"{name} imports {imported}"


def test_every_suite_is_registered_and_every_registered_suite_is_there() -> None:
    folder = ROOT / "runner" / "suites"
    files = {
        f"runner.suites.{path.stem}"
        for path in folder.iterdir()
        if path.stem not in {"__init__", "__pycache__"}
    }
    assert files == {suite.module for suite in SUITES.values()}
    assert all(name == suite.name for name, suite in SUITES.items())
