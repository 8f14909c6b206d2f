"""Writes a file of `runner/suites/operators/shapes/`: the operators that models call, by shape, how often.

``python -m tests.support.operator_shapes huggingface --output shapes.json`` traces a training step of each
model on the meta device, where nothing is computed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.formats.torchdynamo.batch_sizes import default_batch_size
from runner.suites import SUITES
from runner.suites.operators.inputs import Counts, calls_of
from runner.suites.operators.record import Recording
from runner.suites.torchdynamo.model import ModelRequest

_MOST_CALLS = 40  # distinct calls of an operator that a file keeps, the most frequent


def trace_model(suite: str, case: str, batch_size: int | None) -> Counts:
    """Return the calls of one training step in float16 on the meta device."""
    models = importlib.import_module(f"runner.suites.{suite}.models")
    built = models.build(case, ModelRequest("meta", batch_size, training=True))
    module = built.module.half().train()
    if hasattr(module, "set_attn_implementation"):  # fused implementations hide the operators
        module.set_attn_implementation("eager")
    inputs = pytree.tree_map(
        lambda value: value.half() if torch.is_tensor(value) and value.is_floating_point() else value,
        built.inputs,
    )
    with Recording() as recording:
        output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
        built.loss(output).backward()
    calls: Counts = recording.calls()
    return calls


def trace_suite(suite: str, cases: Sequence[str]) -> tuple[Counts, list[str]]:
    """Trace the suite's models, or those named; return the calls and the names of the traced models."""
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    traced = []
    for case in cases or [case.name for case in SUITES[suite].cases]:
        try:
            counts = trace_model(suite, case, default_batch_size(suite, case, "training"))
        except Exception as error:  # noqa: BLE001 - a model that needs values cannot be traced without
            sys.stderr.write(f"{case}: {type(error).__name__}: {str(error)[:100]}\n")
            continue
        traced.append(case)
        for operator, calls in counts.items():
            total[operator].update(calls)
    return {operator: dict(calls) for operator, calls in total.items()}, traced


def shape_file(counts: Counts, about: dict[str, Any]) -> str:
    """Return a file of each operator's most frequent calls, operators by frequency, one call a line."""
    totals = {name: sum(calls.values()) for name, calls in counts.items()}
    kept = {
        name: {call.text: call.count for call in calls_of(counts, name)[:_MOST_CALLS]}
        for name in sorted(counts, key=lambda name: (-totals[name], name))
    }
    return json.dumps({"traced": about, "operators": kept}, indent=0) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.operator_shapes", description=__doc__)
    parser.add_argument("suite", choices=("huggingface", "timm", "torchbench"))
    parser.add_argument("--case", nargs="+", default=[], help="models; default: all of the suite")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    counts, traced = trace_suite(options.suite, options.case)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "timm")}
    about = {"torch": torch.__version__, "models": traced, **versions}
    options.output.write_text(shape_file(counts, about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
