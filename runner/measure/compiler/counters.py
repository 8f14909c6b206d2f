"""Dynamo's and inductor's counters: graphs, breaks, recompiles, skipped CUDA graphs, cache hits."""

from __future__ import annotations

from dataclasses import dataclass

from torch._dynamo.utils import calculate_time_spent, counters

# Where hits and misses are counted: (group, prefix); names moved between releases of torch.
_CACHES = (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache"))
_MOST_REASONS = 50
_MOST_CHARACTERS = 600


@dataclass(frozen=True)
class Counts:
    """Named as in PyTorch's harness. `cache_misses` includes what could not be cached."""

    calls_captured: int
    unique_graphs: int
    fallbacks_to_eager: int
    graph_breaks: int
    unique_graph_breaks: int
    autograd_captures: int
    autograd_compiles: int
    cudagraph_skips: int
    reasons: dict[str, int]  # of graph breaks → how often
    caches: dict[str, int]

    @property
    def cache_hits(self) -> int:
        return sum(value for name, value in self.caches.items() if name.endswith("_hit"))

    @property
    def cache_misses(self) -> int:
        return sum(value for name, value in self.caches.items() if not name.endswith("_hit"))


def counts() -> Counts:
    """Return the counts since the counters were cleared."""
    reasons = {
        str(reason).strip()[:_MOST_CHARACTERS]: int(times)
        for reason, times in counters["graph_break"].items()
    }
    caches = {}
    for group, prefix in _CACHES:
        for name in (f"{prefix}_{word}" for word in ("hit", "miss", "bypass")):
            if counters[group][name]:
                caches[name] = int(counters[group][name])
    return Counts(
        calls_captured=int(counters["stats"]["calls_captured"]),
        unique_graphs=int(counters["stats"]["unique_graphs"]),
        fallbacks_to_eager=int(counters["frames"]["total"]) - int(counters["frames"]["ok"]),
        graph_breaks=sum(reasons.values()),
        unique_graph_breaks=len(counters["graph_break"]),
        autograd_captures=int(counters["compiled_autograd"]["captures"]),
        autograd_compiles=int(counters["compiled_autograd"]["compiles"]),
        cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
        reasons=dict(list(reasons.items())[:_MOST_REASONS]),
        caches=caches,
    )


def unique_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def entire_compile_s() -> float:
    """Return seconds of whole compiles, forward and backward, as the harness's accuracy run reports them."""
    return float(calculate_time_spent().get("total_wall_time", 0.0))


def extern_calls() -> int:
    """Return how many operators inductor left to a library, such as cuBLAS."""
    return int(counters["inductor"]["extern_calls"])
