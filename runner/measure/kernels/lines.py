"""The lines of the model that each kernel comes from, as inductor's provenance has them.

Inductor numbers the calls of a wrapper, and dynamo keeps the stacks of each, also of a graph from a cache.
Torch 2.13 has both; where one is missing, as in older releases, no line is known.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from torch._dynamo import utils

from runner.formats.torch_trace.compile_notes import frames_in, place
from runner.measure.kernels.slots import Graph
from runner.schema.compilations import MOST_LINES

_BASIC = 2  # stacks without a history of each pass, which would lengthen the compile time
_MOST_GRAPHS = 2000

Stacks = Mapping[str, list[str]]  # by handle: the stack of each node of the kernel


def ask() -> None:
    """Have inductor note stacks from now on."""
    from torch._inductor import config  # noqa: PLC0415 - only with a compilation

    if hasattr(config.trace, "provenance_tracking_level"):
        config.trace.provenance_tracking_level = _BASIC
        utils.set_compilation_metrics_limit(_MOST_GRAPHS)


def stacks_of(graphs: Iterable[Graph]) -> list[Stacks]:
    """Return the stacks of each graph, {} where they are unknown. Those of two graphs with the same calls are
    in the order in which they were compiled."""
    noted: list[Stacks] = [
        json.loads(text)
        for compiled in utils.get_compilation_metrics()
        for text in sorted(getattr(compiled, "inductor_provenance", None) or ())
    ]
    result: list[Stacks] = []
    for graph in graphs:
        handles = {call.handle for call in graph.calls if call.handle}
        matching = [stacks for stacks in noted if handles and handles <= stacks.keys()]
        best = min(matching, key=len, default={})
        if len(matching) > 1:
            noted.remove(best)
        result.append(best)
    return result


def lines_of(stacks: Iterable[str]) -> tuple[str, ...]:
    """Return `file:line Class.function` of the innermost frame of each stack outside torch, each once."""
    frames = map(frames_in, stacks)
    return tuple(dict.fromkeys(filter(None, map(_line, frames))))[:MOST_LINES]


def _line(frames: list[tuple[str, int]]) -> str:
    where = place(frames)
    file, line = next((frame for frame in reversed(frames) if place([frame]) == where), ("", 0))
    return f"{where} {_names(file).get(line, '')}".strip()


@lru_cache(maxsize=256)
def _names(path: str) -> dict[int, str]:
    """Return the function with its classes, as `Block.forward`, of each line of a file."""
    try:
        tree = ast.parse(Path(path).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    names: dict[int, str] = {}
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:  # from the outside in
        node, owner = waiting.pop(0)
        for part in ast.iter_child_nodes(node):
            name = owner
            if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{owner}.{part.name}".lstrip(".")
                names |= dict.fromkeys(range(part.lineno, (part.end_lineno or part.lineno) + 1), name)
            waiting.append((part, name))
    return names
