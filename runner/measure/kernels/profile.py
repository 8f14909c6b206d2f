"""Joins the steps of a profile to the calls of kernels in the wrappers.

A step's trace has the kernels in the order of the wrappers' calls, with and without CUDA graphs. Generated
kernels are found by name; where two graphs use one name, by the order of their kernels. What runs between two
generated kernels belongs to the library's operators that the wrapper calls between them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product

from runner.measure.kernels.slots import Graph
from runner.measure.timing.gpu_active_time import Work

Owner = tuple[int, int] | None  # (graph, call) by position, None for work of no graph

_PRODUCT = r"nvjet|gemm|gemv|cublas|cutlass|xmma|matmul|Kernel2|dot_kernel|Cijk|wgmma|sm\d\d_"
_CONVOLUTION = r"conv|fprop|dgrad|wgrad|winograd|implicit|cudnn|nchw|nhwc|im2col|col2im|depthwise"
_ATTENTION = r"sdpa|flash|fmha|attention|mha|cudnn|philox|ck_tile|aotriton"
# Patterns of the kernels of an operator by a part of its name; other operators may have any.
_KERNELS_OF = (
    ("attention", re.compile(_ATTENTION, re.IGNORECASE)),
    ("conv", re.compile(f"{_CONVOLUTION}|{_PRODUCT}", re.IGNORECASE)),
    ("mm", re.compile(_PRODUCT, re.IGNORECASE)),
)
_LIBRARY = re.compile(f"{_PRODUCT}|{_CONVOLUTION}|{_ATTENTION}", re.IGNORECASE)
_BEFORE = re.compile(r"memset|philox|dot_do_o|nchwTo", re.IGNORECASE)  # helps the kernel after it
_AFTER = re.compile(r"splitK_?reduce|_reduce$|reduce_kernel|convert_dq|nhwcTo|Transform", re.IGNORECASE)
_MOST_OF_ONE_CALL = 12
_MOST_WAYS = 50_000
# Costs: an operator that launches nothing; a kernel of no operator, which is rarely one of a library.
_NOTHING, _FOREIGN, _FOREIGN_LIBRARY = 4.0, 1.5, 3.0


def owners(step: Sequence[Work], graphs: Sequence[Graph]) -> list[Owner]:
    """Return which call each kernel of a step belongs to."""
    names = [work.name for work in step]
    generated = [
        [
            (index, graph.kernels[call.name].function)
            for index, call in enumerate(graph.calls)
            if call.generated
        ]
        for graph in graphs
    ]
    known = {name for calls in generated for _place, name in calls}
    result: list[Owner] = [None] * len(names)
    places = [index for index, name in enumerate(names) if name in known]
    for index, owner in zip(places, _generated([names[index] for index in places], generated), strict=True):
        result[index] = owner
    waiting = [graph for graph, calls in enumerate(generated) if not calls]
    for begin, end in pairwise((-1, *places, len(names))):
        if end - begin < 2:
            continue
        before = result[begin] if begin >= 0 else None
        after = result[end] if end < len(names) else None
        calls = _calls_between(graphs, before, after, waiting)
        operators = [graphs[graph].calls[call].name for graph, call in calls]
        for index, call in enumerate(_split(tuple(names[begin + 1 : end]), tuple(operators)), begin + 1):
            result[index] = None if call is None else calls[call]
    return result


def _generated(names: Sequence[str], generated: Sequence[list[tuple[int, str]]]) -> list[Owner]:
    """Return the calls of generated kernels: of a graph that runs as a whole, else of any with the name."""
    result: list[Owner] = []
    runs = [0] * len(generated)
    while len(result) < len(names):
        begin = len(result)
        whole = [
            (-runs[graph], len(calls), -graph)
            for graph, calls in enumerate(generated)
            if calls and [name for _place, name in calls] == list(names[begin : begin + len(calls)])
        ]
        if whole:
            graph = -max(whole, key=lambda rank: (rank[1], rank[0], rank[2]))[2]
            runs[graph] += 1
            result += [(graph, index) for index, _name in generated[graph]]
            continue
        result.append(
            next(
                (graph, index)
                for graph, calls in enumerate(generated)
                for index, name in calls
                if name == names[begin]
            )
        )
    return result


def _calls_between(
    graphs: Sequence[Graph], before: Owner, after: Owner, waiting: list[int]
) -> list[tuple[int, int]]:
    """Return the library's calls between two generated kernels: of one graph, or of the end of one and the
    beginning of the next, with the graphs between them that call libraries alone."""
    if before and after and before[0] == after[0] and before[1] < after[1]:
        return [(before[0], call) for call in range(before[1] + 1, after[1])]
    missed = []
    if before:
        missed += [(before[0], call) for call in range(before[1] + 1, len(graphs[before[0]].calls))]
    while waiting and (after is None or waiting[0] < after[0]):
        graph = waiting.pop(0)
        missed += [(graph, call) for call in range(len(graphs[graph].calls))]
    if after:
        missed += [(after[0], call) for call in range(after[1])]
    return missed


@lru_cache(maxsize=1024)
def _split(names: tuple[str, ...], operators: tuple[str, ...]) -> tuple[int | None, ...]:
    """Return which of the operators, by position, each kernel belongs to, None where to none of them.

    Of all ways that keep the order, take the one of least cost: each operator has one main kernel that looks
    like it, and helpers before and after it.
    """
    if not operators or len(names) * len(operators) > _MOST_WAYS:
        return (None,) * len(names)
    # at [kernels, operators] that are done: the cost so far, and where that came from
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(0, 0): (0.0, (0, 0))}

    def offer(position: tuple[int, int], cost: float, before: tuple[int, int]) -> None:
        if position not in best or cost < best[position][0]:
            best[position] = cost, before

    for here in product(range(len(names) + 1), range(len(operators) + 1)):
        (used, done), cost = here, best[here][0]
        if done < len(operators):
            offer((used, done + 1), cost + _NOTHING, here)
            for end in range(used + 1, min(used + _MOST_OF_ONE_CALL, len(names)) + 1):
                offer((end, done + 1), cost + _cost(operators[done], names[used:end]), here)
        if used < len(names):
            foreign = _FOREIGN_LIBRARY if _LIBRARY.search(names[used]) else _FOREIGN
            offer((used + 1, done), cost + foreign, here)
    owners: list[int | None] = [None] * len(names)
    here = len(names), len(operators)
    while here != (0, 0):
        (begin, operator), (end, done) = best[here][1], here
        if done > operator:
            owners[begin:end] = [operator] * (end - begin)
        here = begin, operator
    return tuple(owners)


def _cost(operator: str, names: Sequence[str]) -> float:
    looks = next((pattern for part, pattern in _KERNELS_OF if part in operator), None)
    mains = [name for name in names if not _BEFORE.search(name) and not _AFTER.search(name)]
    cost = 0.05 * len(names)
    if looks is None:  # any kernel, but rather not one of a product
        cost += sum(2.0 for name in mains if _LIBRARY.search(name)) + 0.2 * max(0, len(names) - 1)
        return cost
    many = 0.1 if "backward" in operator or "attention" in operator else 1.0
    cost += 2.0 * (not mains) + many * max(0, len(mains) - 1)
    cost += sum(5.0 for name in mains if not looks.search(name))
    cost += 1.0 * bool(_BEFORE.search(names[-1]) and len(names) > 1) + 1.0 * bool(_AFTER.search(names[0]))
    return cost
