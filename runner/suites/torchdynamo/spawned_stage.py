"""A stage in an interpreter of its own, where a fork cannot use CUDA: slower by an import of torch.

`python -m runner.suites.torchdynamo.spawned_stage NAME FRESH ANSWER` in the task's folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

from runner.catalog import TaskSpec
from runner.failures import TaskFailure, failure_of
from runner.records import Json
from runner.report import Report


def started(name: str, report: Report, *, fresh: bool) -> Json:
    """The stage's answer. Raises TaskFailure as the stage itself would."""
    answer = report.folder / f"started_{name}.json"
    answer.unlink(missing_ok=True)
    arguments = [
        sys.executable,
        "-m",
        "runner.suites.torchdynamo.spawned_stage",
        name,
        str(int(fresh)),
        str(answer),
    ]
    ended = subprocess.run(arguments, cwd=report.folder, check=False, stdin=subprocess.DEVNULL)
    if not answer.exists():
        code = f"exit_{ended.returncode}"
        raise TaskFailure("crashed", code, f"stage {name}: its process ended with code {ended.returncode}")
    told = json.loads(answer.read_text())
    if "failure" in told:
        raise TaskFailure(*told["failure"])
    return told["value"]


def main(name: str, fresh: str, answer: str) -> None:
    from runner.suites.torchdynamo.stages import PARTS  # noqa: PLC0415 - the starting half needs no torch

    report = Report(Path.cwd())
    spec = TaskSpec.from_json(json.loads((report.folder / "spec.json").read_text()))
    told: dict[str, Json]
    try:
        told = {"value": PARTS[name](spec, report, fresh=fresh == "1")}
    except Exception as error:  # noqa: BLE001 - whatever a benchmark raises is its outcome
        traceback.print_exc()
        failure = failure_of(error)
        told = {"failure": [failure.status, failure.code, str(failure)]}
    Path(answer).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
