"""Run a stage in a new interpreter, where a fork cannot use CUDA: slower by an import of torch.

`python -m runner.suites.torchdynamo.spawned_stage NAME FRESH ANSWER` in the task's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.forked import read_answer, write_answer
from runner.schema.records import Json
from runner.schema.suite import TaskSpec

_REPOSITORY = Path(__file__).resolve().parents[3]


def spawned(name: str, report: Report, *, fresh: bool) -> Json:
    """Run the stage and return its answer. Raise TaskFailure as the stage itself would."""
    path = report.folder / f"spawned_{name}.json"
    path.unlink(missing_ok=True)
    module = "runner.suites.torchdynamo.spawned_stage"
    arguments = [sys.executable, "-m", module, name, str(int(fresh)), str(path)]
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(arguments, cwd=report.folder, env=variables, check=False, stdin=subprocess.DEVNULL)
    if not path.exists():
        code = f"exit_{ended.returncode}"
        raise TaskFailure("crashed", code, f"stage {name}: its process ended with code {ended.returncode}")
    return read_answer(path)


def main(name: str, fresh: str, path: str) -> None:
    from runner.measure.kernels import pinning  # noqa: PLC0415 - `spawned` needs no torch
    from runner.suites.torchdynamo.stages import STAGES  # noqa: PLC0415

    pinning.install_if_asked()
    report = Report(Path.cwd())
    spec = TaskSpec.from_json(json.loads((report.folder / "spec.json").read_text()))
    write_answer(Path(path), lambda: STAGES[name](spec, report, fresh=fresh == "1"))


if __name__ == "__main__":
    main(*sys.argv[1:])
