"""What dynamo and inductor say of the graphs that this process compiled: breaks, recompiles, skipped CUDA
graphs, seconds by phase, hits and misses by cache.

Read from tables that torch fills anyway (2.4 to 2.15 have them all), so nothing is slower for it. Skipped
CUDA graphs alone are only logged with their reason. Torch's internals change without notice: a kind of note
that cannot be taken here is blind.
"""

import dataclasses
import logging
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch._dynamo import utils
from torch._dynamo.utils import counters

from runner.formats.torch_trace import compile_notes
from runner.launch.failures import failure_of
from runner.schema.compilations import Compiled, Note

# Where hits and misses are counted: (group, prefix); names moved between releases of torch.
_CACHES = (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache"))
_MOST_REASONS = 50
_MOST_CHARACTERS = 600
_CUDAGRAPH_LOGS = (  # of newer torch, and of 2.4 to 2.6
    "torch._inductor.cudagraph_utils.__cudagraphs",
    "torch._inductor.cudagraph_utils.__perf_hints",
)
_LEAST_PHASE_S = 0.001
_COUNTED = re.compile(r"(?P<cache>\w+)_cache_(?P<end>hit|miss|bypass|guard_miss)")
_CACHE_NAMES = {"autograd": "aotautograd"}  # as torch's users call it
_BUNDLED = {"triton_bundler_read_and_emit_kernel": 0, "triton_bundler_save_kernel": 1}
_LOCAL_AUTOTUNE = "LocalAutotuneCache"

NoteName = Literal["choices", "kernels", "kernel_count", "lines", "phases", "graph breaks"]
_MOST_OF_BLIND = 300  # characters
blind: dict[str, str] = {}  # kinds of notes that failed in this process so far, each with its first exception


@contextmanager
def note(name: NoteName) -> Iterator[None]:
    """Take a note of this kind. Where that raises, the measurement goes on, and the note is blind."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the numbers stand; the record names the note that is missing
        if name not in blind:
            traceback.print_exc()
            blind[name] = failure_of(error).reason[:_MOST_OF_BLIND]


@dataclass(frozen=True)
class Counts:
    """Counts of PyTorch's harness by its names. `cache_misses` includes what could not be cached."""

    harness: dict[str, int]
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
    names = [(group, f"{prefix}_{end}") for group, prefix in _CACHES for end in ("hit", "miss", "bypass")]
    harness = {
        "calls_captured": int(counters["stats"]["calls_captured"]),
        "unique_graphs": unique_graphs(),
        "fallbacks_to_eager": int(counters["frames"]["total"]) - int(counters["frames"]["ok"]),
        "graph_breaks": sum(reasons.values()),
        "unique_graph_breaks": len(counters["graph_break"]),
        "autograd_captures": int(counters["compiled_autograd"]["captures"]),
        "autograd_compiles": int(counters["compiled_autograd"]["compiles"]),
        "cudagraph_skips": cudagraph_skips(),
    }
    caches = {name: int(counters[group][name]) for group, name in names if counters[group][name]}
    return Counts(harness, dict(list(reasons.items())[:_MOST_REASONS]), caches)


def unique_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def cudagraph_skips() -> int:
    return int(counters["inductor"]["cudagraph_skips"])


def extern_calls() -> int:
    """Return how many operators inductor left to a library, such as cuBLAS."""
    return int(counters["inductor"]["extern_calls"])


class _Skips(logging.Handler):
    """Counts the texts with which inductor logs that it skips CUDA graphs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.lower().startswith("skipping cudagraphs"):
            self.texts[text] += 1


_skips = _Skips()
_NOTHING = Compiled()
_autotuned_before = (0, 0)
_loaded_before = 0


def forget() -> None:
    """Begin anew with what is not cleared by `torch._dynamo.reset` and with the counters."""
    global _autotuned_before, _loaded_before  # noqa: PLW0603 - torch's tables of them are of the process too
    _loaded_before = 0
    _loaded_before = len(modules())
    _skips.texts.clear()
    utils.clear_compilation_metrics()
    for name in _CUDAGRAPH_LOGS:
        logging.getLogger(name).addHandler(_skips)
    _autotuned_before = _autotuned()


def modules() -> list[Any]:
    """Return inductor's wrapper modules that were loaded since `forget`, one for each graph."""
    codecache = sys.modules.get("torch._inductor.codecache")  # not every backend needs inductor
    return codecache.PyCodeCache.modules[_loaded_before:] if codecache else []


def graph_facts(compiled: Compiled = _NOTHING) -> Compiled:
    """Return a compilation with the facts of its graphs since dynamo and its counters were last cleared."""
    facts: dict[str, Any] = {"recompiles": recompiles()}
    with note("graph breaks"):
        facts |= {"graph_breaks": _graph_breaks(), "cudagraph_skips": _cudagraph_skips()}
    with note("phases"):
        phases = {name: round(sum(times), 4) for name, times in utils.compilation_time_metrics.items()}
        facts["phases_s"] = {name: time_s for name, time_s in phases.items() if time_s >= _LEAST_PHASE_S}
        facts["caches"] = _caches()
    return dataclasses.replace(compiled, **facts, blind=dict(blind))


def recompiles() -> tuple[Note, ...]:
    """Return the recompiles so far, each with the guard that failed; also those after the first calls."""
    notes: list[Note] = []
    with note("graph breaks"):
        for code, guards in utils.guard_failures.items():
            function = (code.co_filename, code.co_firstlineno)
            notes += compile_notes.recompiles_of_frame([str(guard) for guard in guards], function)
    return compile_notes.summed(notes)


def _graph_breaks() -> tuple[Note, ...]:
    listed = [
        compile_notes.graph_break(
            reason.reason, [(frame.filename, frame.lineno or 0) for frame in reason.user_stack]
        )
        for reason in utils.graph_break_reasons
    ]
    notes = compile_notes.without_twins(listed)
    # a frame that dynamo gave up as a whole is counted, but no reason is listed with its place
    noted = Counter(note.reason for note in notes)
    for reason, times in counters["graph_break"].items():
        note = compile_notes.graph_break(str(reason), [])
        if times > noted[note.reason]:
            notes.append(dataclasses.replace(note, count=times - noted[note.reason]))
    return compile_notes.summed(notes)


def _cudagraph_skips() -> tuple[Note, ...]:
    notes = [
        dataclasses.replace(compile_notes.cudagraph_skip(text), count=times)
        for text, times in _skips.texts.items()
    ]
    unsaid = cudagraph_skips() - sum(note.count for note in notes)
    if unsaid > 0:  # graphs without any CUDA device
        notes.append(Note("torch gives no reason", count=unsaid))
    return compile_notes.summed(notes)


def _caches() -> dict[str, tuple[int, int]]:
    """Return hits and misses by cache; what could not be cached is a miss."""
    counts: dict[str, list[int]] = {}
    for group in ("inductor", "aot_autograd", "dynamo_cache"):
        for name, times in counters[group].items():
            if counted := _COUNTED.fullmatch(name):
                cache = _CACHE_NAMES.get(counted["cache"], counted["cache"])
                counts.setdefault(cache, [0, 0])[counted["end"] != "hit"] += int(times)
            elif name in _BUNDLED:
                counts.setdefault("triton_bundler", [0, 0])[_BUNDLED[name]] += int(times)
    autotuned = [now - before for now, before in zip(_autotuned(), _autotuned_before, strict=True)]
    if any(autotuned):
        counts["autotune"] = autotuned
    return {cache: (hits, misses) for cache, (hits, misses) in sorted(counts.items()) if hits or misses}


def _autotuned() -> tuple[int, int]:
    """Return hits and misses of the local cache of autotuned configurations, since the process began."""
    counts = (0, 0)
    if remote_cache := sys.modules.get("torch._inductor.remote_cache"):  # not every backend needs inductor
        with note("phases"):
            if counted := remote_cache.cache_stats._stats.get(_LOCAL_AUTOTUNE):
                counts = (counted.hit, counted.miss)
    return counts
