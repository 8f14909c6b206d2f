"""The torchdynamo harness's suite `torchbench`: models of torchvision, and of torchbench's own repository."""

import ast
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.schema.suite import Case, TaskSpec
from runner.suites.torchdynamo import DTYPES, HarnessSuite, cases_of, has_trait

CHECKOUT = "TORCHBENCH"  # environment variable: the folder that holds the package torchbenchmark
_DATA = re.compile(r'checkout_s3_data\(\s*"\w+",\s*"([^"]+)"')


@dataclass(frozen=True)
class TorchbenchSuite(HarnessSuite):
    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        """Return torchvision for its models; the others come from a checkout, which its run looks for."""
        return ("torchvision",) if has_trait(self.name, task.case, "torchvision") else ()

    def local_cases(self) -> Sequence[Case]:
        """Return the models of the checkout, with what each lacks on this machine."""
        listed = {case.name: case for case in self.cases}
        checkout = Path(os.environ.get(CHECKOUT) or os.devnull)
        cases = []
        for folder in sorted(path.parent for path in checkout.glob("torchbenchmark/models/*/__init__.py")):
            case = listed.get(folder.name, Case(folder.name, "of the checkout", DTYPES))
            cases.append(replace(case, title=", ".join([case.title, *_lacking(folder)])))
        return cases


def _lacking(folder: Path) -> Iterator[str]:
    """Yield what a model of the checkout needs and this machine has not: packages that its modules import at
    their top, and data that its installer downloads."""
    imported, waiting = set[str](), [f"torchbenchmark.models.{folder.name}"]
    while waiting:
        name = waiting.pop()
        if name not in imported:
            imported.add(name)
            waiting += _imports(folder.parents[2], name)
    own = {path.stem for parent in (folder, folder.parents[2]) for path in parent.iterdir()}
    packages = {name.partition(".")[0] for name in imported} - own
    if missing := sorted(name for name in packages if importlib.util.find_spec(name) is None):
        yield f"needs {', '.join(missing)}"
    installer = folder / "install.py"
    for file in _DATA.findall(installer.read_text()) if installer.exists() else ():
        if not (folder.parents[1] / "data" / file.partition(".")[0]).exists():
            yield f"needs {file}, which its install.py downloads"


@functools.cache
def _imports(checkout: Path, module: str) -> tuple[str, ...]:
    """Return the names that a module of the checkout imports at its top; () for any other module."""
    path = checkout.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return ()
    package = module if path.is_dir() else module.rpartition(".")[0]
    names: list[str] = []
    for line in ast.parse(file.read_text(errors="replace")).body:
        if isinstance(line, ast.Import):
            names += [alias.name for alias in line.names]
        elif isinstance(line, ast.ImportFrom):
            source = importlib.util.resolve_name("." * line.level + (line.module or ""), package)
            names += [source, *(f"{source}.{alias.name}" for alias in line.names)]
    return tuple(names)


SUITE = TorchbenchSuite(
    "torchbench",
    "torchbench models, eager against compiled",
    cases_of("torchbench"),
    other_cases=r"\w{1,80}",
)
