"""Differences of what the compiler reports of its graphs: breaks, recompiles, phases, caches. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from runner.schema.compilations import Compiled, Note

# Dynamo's phases nest. A part is the sum of its phases less those inside it that are parts of their own.
_PARTS = {
    "Dynamo tracing": ("bytecode_tracing",),
    "Guards": ("build_guards",),
    "AOT autograd": ("create_aot_dispatcher_function",),
    "Graph passes": tuple(f"_recursive_{name}_passes" for name in ("pre_grad", "joint_graph", "post_grad")),
    "Lowering": ("GraphLowering.run",),
    "Code generation": ("GraphLowering.codegen",),
    "Kernel compilation": ("PyCodeCache.load_by_key_path",),
    "Autotuning": ("CachingAutotuner.benchmark_all_configs",),
}
_INSIDE = {"AOT autograd": ("compile_fx.<locals>.fw_compiler_base", "compile_fx.<locals>.bw_compiler")}


@dataclass(frozen=True)
class NoteChange:
    """A reason that one side gives more often. Counts are means over the compilations."""

    kind: str  # graph break, recompile, CUDA-graph skip
    reason: str
    place: str
    base: float
    head: float


@dataclass(frozen=True)
class PartChange:
    """A part of compile time in seconds; None: the side does not report it."""

    name: str
    base_s: float | None
    head_s: float | None

    @property
    def change_s(self) -> float | None:
        return None if self.base_s is None or self.head_s is None else self.head_s - self.base_s


NOTES = {"graph break": "graph_breaks", "recompile": "recompiles", "CUDA-graph skip": "cudagraph_skips"}


def note_changes(base: Sequence[Compiled], head: Sequence[Compiled]) -> list[NoteChange]:
    """Return the reasons that came on one side only or in another number, the largest difference first."""
    found = []
    for kind, name in NOTES.items():
        before, after = (_counts([getattr(one, name) for one in side]) for side in (base, head))
        found += [
            NoteChange(kind, *key, before[key], after[key])
            for key in dict.fromkeys((*before, *after))
            if before[key] != after[key]
        ]
    return sorted(found, key=lambda one: -abs(one.head - one.base))


def notes_of(side: Sequence[Compiled]) -> list[NoteChange]:
    """Return all reasons of one side, as of a point that is compared with itself, the most frequent first."""
    return [replace(one, base=one.head) for one in note_changes([], side)]


def _counts(notes: Sequence[Iterable[Note]]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for compilation in notes:
        for note in compilation:
            counts[note.reason, note.place] += note.count / len(notes)  # type: ignore[assignment]
    return counts


def phase_changes(
    base: Sequence[Compiled], head: Sequence[Compiled], *, totals_s: tuple[float | None, float | None]
) -> list[PartChange]:
    """Return the parts of compile time that either side reports, in the order of a compilation, then what the
    totals hold beyond them."""
    before, after = (_mean_phases(side) for side in (base, head))
    parts = [PartChange(name, _part(before, name), _part(after, name)) for name in _PARTS]
    there = [part for part in parts if part.base_s is not None or part.head_s is not None]
    if there and None not in totals_s:
        rest = [
            (total or 0.0) - sum(getattr(part, side) or 0.0 for part in there)
            for total, side in zip(totals_s, ("base_s", "head_s"), strict=True)
        ]
        there.append(PartChange("Other", *rest))
    return there


def _mean_phases(side: Sequence[Compiled]) -> dict[str, float]:
    said = [one.phases_s for one in side if one.phases_s]
    names = {name for phases in said for name in phases}
    return {name: fmean(phases.get(name, 0.0) for phases in said) for name in names}


def _part(phases_s: Mapping[str, float], part: str) -> float | None:
    known = [phases_s[name] for name in _PARTS[part] if name in phases_s]
    inside = sum(phases_s.get(name, 0.0) for name in _INSIDE.get(part, ()))
    return max(sum(known) - inside, 0.0) if known else None
