"""Import rules: fresh interpreters show what is really loaded, the text shows what is imported anywhere."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from runner.suites import SUITES
from tests.support.servers import ROOT

NEEDS_TRITON = "runner.measure.compiler.read_kernel"  # which torch's CPU builds do not bring
READS_JSON = "runner.formats.json_text"  # needs msgspec and orjson; imported inside read() alone
CLIENT = "runner.client"  # a wheel of its own too: standard library, relative imports
SHARED = ("runner.schema", "runner.formats", "runner.suites")  # which hud may import
# What each package of the runner may import of the runner, itself apart.
MAY_IMPORT = {
    "runner.schema": (),
    "runner.formats": ("runner.schema",),
    CLIENT: (),
    "runner.suites": ("runner.schema", "runner.formats"),  # the plain part of a suite
}


def modules(package: str) -> list[str]:
    """Return the dotted names of all files of a package."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@cache
def parsed(name: str) -> tuple[list[str], set[str]]:
    """Return what a file names in an import, wherever in the file that stands, and its texts."""
    path = ROOT / Path(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    imported: list[str] = []
    texts: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if below(name, (CLIENT,)) and node.level == 1:  # in its wheel it has another name
                module = f"{CLIENT}.{module}".rstrip(".")
            else:
                assert node.level == 0, f"{name} imports relative to itself"
            imported += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return imported, texts


def imports(name: str) -> list[str]:
    return parsed(name)[0]


RUNNER = [name for name in modules("runner") if name != "runner.__main__"]
# The plain part of a suite is its `__init__.py`; the rest may need torch.
OF_SUITES = [name for name in RUNNER if below(name, ("runner.suites",))]
PLAIN_SUITES = [name for name in OF_SUITES if name.count(".") <= 2]
TORCH = [
    name
    for name in RUNNER
    if below(name, ("runner.measure", "runner.launch.child"))
    or (name in OF_SUITES and name not in PLAIN_SUITES)
]
PLAIN = [name for name in RUNNER if name not in TORCH]


def loaded(names: list[str], *, first: str = "") -> set[str]:
    """Return the top-level packages that a fresh interpreter has after importing these modules."""
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


def test_plain_modules_load_neither_django_nor_torch() -> None:
    found = loaded([*PLAIN, "runner.__main__"])
    assert not found & {"django", "torch", "hud", "pandas"}
    assert "runner" in found


def test_shared_modules_need_nothing_that_a_host_lacks() -> None:
    shared = [name for name in PLAIN if below(name, SHARED) and name != READS_JSON]
    assert not loaded(shared) & {"django", "torch", "hud", "rq", "redis", "msgspec", "pandas"}


@pytest.mark.soak
def test_torch_modules_never_load_django() -> None:
    found = loaded([name for name in TORCH if name != NEEDS_TRITON])
    assert "torch" in found
    assert not found & {"django", "hud", "rq"}  # redis is torch's own doing


def test_the_web_application_never_loads_torch_and_has_its_pages_before_workers_are_forked() -> None:
    settings = "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'"
    first = f"{settings}; import hud.wsgi; assert 'hud.urls' in sys.modules"
    found = loaded([name for name in modules("hud") if name != "hud.settings"], first=first)
    assert "django" in found
    assert not found & {"torch", "triton", "transformers", "pandas"}  # pandas where it is needed


def test_each_package_of_the_runner_imports_what_it_may() -> None:
    for name in RUNNER:
        package = next((package for package in MAY_IMPORT if below(name, (package,))), "")
        for imported in imports(name):
            if name in TORCH:
                assert not below(imported, ("rq",)), f"{name} imports {imported}"
                continue
            assert not below(imported, ("torch", "triton")), f"{name} imports {imported}"
            if package and below(imported, ("runner",)) and imported != "runner":
                assert below(imported, (package, *MAY_IMPORT[package])), f"{name} imports {imported}"


def test_every_folder_of_a_suite_is_registered() -> None:
    folder = ROOT / "runner" / "suites"
    defining = {path.parent.name for path in folder.glob("*/__init__.py") if "\nSUITE = " in path.read_text()}
    assert defining == set(SUITES)


def test_no_shared_module_names_a_suite() -> None:
    """A registry, a suite's own folder and a format may; so may a package of the same name."""
    allowed = ("runner.suites", "runner.formats")
    packages = {"timm", "torchbench"}  # as Python packages, whose versions an environment lists
    keys = {"ceilings", "cache", "kernels"}  # as keys of facts, records and SQL parameters
    for name in [*modules("hud"), *RUNNER]:
        if below(name, (*allowed, "hud.migrations")):
            continue
        constants = parsed(name)[1]
        assert not constants & (SUITES.keys() - packages - keys), f"{name} names a suite"
        suites = [imported for imported in imports(name) if imported.count(".") >= 2]
        named = [one for one in suites if below(one, ("runner.suites",)) and one.split(".")[2] in SUITES]
        assert not named, f"{name} imports the suite {named}"


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_of(context: type[ast.expr_context], *nodes: ast.AST) -> set[str]:
    inside = (node for root in nodes for node in ast.walk(root))
    return {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def confused_globals(tree: ast.Module) -> set[str]:
    """Return the functions and imports of a module that a comprehension reads, in a function in which another
    comprehension binds the same name: there Python 3.12.1 raises UnboundLocalError."""
    own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imported = (node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    own |= {alias.asname or alias.name for node in imported for alias in node.names}
    confused: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = [node for node in ast.walk(function) if isinstance(node, COMPREHENSIONS)]
        bound = {node: names_of(ast.Store, *(part.target for part in node.generators)) for node in inside}
        read = (names_of(ast.Load, node) - bound[node] for node in inside)
        confused |= own & set().union(*bound.values()) & set().union(*read)
    return confused


def test_no_comprehension_binds_a_global_that_another_one_reads() -> None:
    paths = [path for package in ("hud", "runner") for path in (ROOT / package).rglob("*.py")]
    confused = {
        str(path): names for path in paths if (names := confused_globals(ast.parse(path.read_text())))
    }
    assert not confused
