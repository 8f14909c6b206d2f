"""Facts of graphs out of a real compile on a CPU, and the same out of the trace that torch wrote of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch._dynamo.utils import counters
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

from runner.formats.torch_trace import compile_notes
from runner.measure.compiler.counters import graph_facts
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.compilations import Compiled, Note

SCRIPT = Path(__file__).with_name("graph_facts_script.py")
BREAK = "Call to `torch._dynamo.graph_break()`: User-inserted graph break. Message: None"


@pytest.fixture(scope="module")
def traced(inductor_cache: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, str]:
    """Return the facts of a process, and its structured trace."""
    folder = tmp_path_factory.mktemp("trace")
    variables = {"TORCH_TRACE": str(folder), **inductor_cache}
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **variables, "PYTHONPATH": str(SCRIPT.parents[3])},
        check=True,
        capture_output=True,
        text=True,
    )
    return msgspec.convert(json.loads(ended.stdout), Compiled), next(folder.glob("*.log")).read_text()


def test_a_break_and_recompiles_are_told_with_reason_and_line(traced: tuple[Compiled, str]) -> None:
    facts, _trace = traced
    lines = SCRIPT.read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if "graph_break()" in text)
    (function,) = (number for number, text in enumerate(lines, 1) if "def forward" in text)
    assert facts.graph_breaks == (Note(BREAK, f"{SCRIPT.name}:{line}", 3),)
    of_forward = [note for note in facts.recompiles if note.place == f"{SCRIPT.name}:{function}"]
    assert {note.reason for note in of_forward} == {
        "n == 2",
        "tensor 'x' size mismatch at index 0. expected 4, actual 5",
    }
    assert all(note.count == 1 for note in facts.recompiles)
    assert facts.phases_s["OutputGraph.call_user_compiler"] > 0
    hits, misses = facts.caches["fxgraph"]
    assert hits + misses == 5


def test_the_trace_of_a_process_gives_the_same_notes(traced: tuple[Compiled, str]) -> None:
    facts, trace = traced
    entries = list(_entries(trace))
    breaks = [
        compile_notes.graph_break_of_trace(payload)
        for entry, payload in entries
        if entry.get("artifact", {}).get("name") == "dynamo_graph_break_reason"
    ]
    assert compile_notes.summed(compile_notes.without_twins(breaks)) == facts.graph_breaks
    metrics = [entry["compilation_metrics"] for entry, _payload in entries if "compilation_metrics" in entry]
    failed = [
        compile_notes.recompile(one["recompile_reason"], (one["co_filename"], one["co_firstlineno"]))
        for one in metrics
        if one.get("recompile_reason")
    ]
    assert compile_notes.summed(failed) == facts.recompiles


def _entries(trace: str) -> Any:
    """Yield the JSON and the payload of each entry."""
    for entry in trace.split("\nV"):
        head, *payload = entry.splitlines()
        yield json.loads(head.split("] ", 1)[1]), "\n".join(line.removeprefix("\t") for line in payload)


def test_skipped_cuda_graphs_are_told_with_their_reason() -> None:
    forget_compiles()
    reason = 'skipping cudagraphs due to mutated inputs. Found from : \n   File "/m.py", line 7, in f'
    log_cudagraph_skip_and_bump_counter(reason)
    logging.getLogger("torch._inductor.cudagraph_utils.__perf_hints").warning(reason)  # as torch 2.4 does
    counters["inductor"]["cudagraph_skips"] += 2
    noted = graph_facts().cudagraph_skips
    assert noted == (
        Note("mutated inputs", "m.py:7", 2),
        Note("torch gives no reason", "", 1),
    )
    forget_compiles()
    assert graph_facts() == Compiled()
