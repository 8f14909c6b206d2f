"""Compile with a planted graph break and recompiles, and print the facts. Run by test_graph_facts.py."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from runner.measure.compiler.counters import graph_facts
from runner.measure.timing.compile_time import forget_compiles


class Broken(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, n: int) -> Any:
        y = torch.sin(x) * n
        torch._dynamo.graph_break()
        return torch.cos(y)


def main() -> None:
    forget_compiles()
    call = torch.compile(Broken(), dynamic=False)
    for x, n in ((torch.ones(4), 2), (torch.ones(4), 3), (torch.ones(5), 3)):
        call(x, n)
    sys.stdout.write(json.dumps(graph_facts().to_json()))


if __name__ == "__main__":
    main()
