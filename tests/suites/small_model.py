"""`python -m tests.suites.small_model FOLDER…`: runs the task of each folder with a model of two layers in
the place of the case's, all in one interpreter. A program of test_torchdynamo.py and test_cache.py."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner.launch.report import Report
from runner.measure.forked import ASK_NVML
from runner.schema.suite import TaskSpec
from runner.suites import suite_of
from runner.suites.huggingface import models
from runner.suites.torchdynamo import backends
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, mean_of

BREAKS = "T5Small"  # the case whose model breaks the graph
UNTRACED = "DistillGPT2"  # the case that is exported around dynamo
BLIND = "OPTForCausalLM"  # the case whose torch does not tell the guards that failed
READ = "read.txt"  # in a task's folder: the names of the knobs that its processes asked for


class Knobs(dict[str, Any]):
    """Knobs that note who is asked for."""

    note: Path | None = None

    def get(self, name: str, default: Any = None) -> Any:
        self._asked(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self._asked(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._asked(name)
        return super().__contains__(name)

    def _asked(self, name: object) -> None:
        if self.note:
            with self.note.open("a") as file:
                file.write(f"{name}\n")


def noting(spec: TaskSpec, note: Path) -> TaskSpec:
    knobs = Knobs(spec.knobs)
    knobs.note = note
    return dataclasses.replace(spec, knobs=knobs)


class Small(nn.Module):  # type: ignore[misc]
    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.second(hidden)


def build(case: str, request: ModelRequest) -> LoadedModel:
    with torch.device(request.device):
        size = request.batch_size or 1
        return LoadedModel(Small(breaks=case == BREAKS), (torch.randn(size, 8),), mean_of, size)


def around_dynamo(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
    return torch.export.export(module, args, dict(kwargs), strict=False).module()


def main(folders: list[str]) -> None:
    os.environ[ASK_NVML] = "1"
    models.build = build
    for folder in map(Path, folders):
        report = Report(folder)
        spec = TaskSpec.from_json(json.loads((folder / "spec.json").read_text()))
        suite = importlib.import_module(suite_of(spec.suite).module)
        if spec.case == UNTRACED:
            backends._EXPORTERS["export"] = around_dynamo
        if spec.case == BLIND:
            del torch._dynamo.utils.guard_failures
        failure = suite.run(noting(spec, folder / READ), report)
        if failure is None:
            report.outcome("ok")
        else:
            report.outcome(failure.status, failure.code, str(failure))


if __name__ == "__main__":
    main(sys.argv[1:])
