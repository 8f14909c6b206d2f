"""What the compiler produced in one compilation: each kernel with its keys, times, bytes and FLOPs."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from runner.launch.report import Report
from runner.measure.compiler.counters import graph_facts, note
from runner.measure.kernels import lines, pinning, tuning
from runner.measure.kernels.profile import Owner, owners
from runner.measure.kernels.sizes import library_sizes, moved_bytes, pointers
from runner.measure.kernels.slots import Call, Generated, Graph, Operand, graphs
from runner.measure.kernels.tuning import Ranking
from runner.measure.recorder import Result
from runner.measure.state.device import Device
from runner.measure.timing import gpu_active_time
from runner.measure.timing.gpu_active_time import Work, union
from runner.schema.compilations import ANATOMY, COMPILED, Compiled, Kernel, KernelKind, digest
from runner.schema.records import Json
from runner.schema.replay import with_operands

GeneratedKernel = tuple[str, str]  # of one graph: its name, a hash of its binary (Triton) or its source (C++)
_CODE = "kernel_code"  # artifact: JSON of code by binary, compressed
_MOST_CODE = 10  # of the largest kernels
_MOST_NAME = 200
_STEPS = 3
_AGREES = 0.005  # of the busy time
_GENERATED = ("triton_", "cpp_")
_DEFINED = re.compile(r"= async_compile\.\w+\(")
_HASH_RULE = 2  # rule 1 counted each name once, and hashed whole C++ modules
_HEURISTIC = re.compile(r"@triton_heuristics\.(?P<name>\w+)\(")
_KINDS: dict[str, KernelKind] = {  # by inductor's heuristic
    "pointwise": "pointwise",
    "template": "template",
    "split_scan": "reduction",
    "foreach": "combo",
    "user_autotune": "user",
}


def generated_kernels(modules: list[Any]) -> list[GeneratedKernel]:
    """Return the generated kernels of wrapper modules, of which each graph has one: the same name in two is
    two kernels. Raise LookupError where none of those that a wrapper defines is recognised."""
    kernels = []
    for graph in graphs(modules):
        own = {name: kernel for name, kernel in graph.kernels.items() if name.startswith(_GENERATED)}
        if not own and _DEFINED.search(Path(graph.module.__file__).read_text()):
            raise LookupError("the wrapper's kernels are not recognised")
        for name, kernel in own.items():
            # an autotuned Triton kernel has one launcher, with the hash of the binary that was chosen
            launchers = getattr(getattr(graph.module, name, None), "launchers", None) or []
            binary = str(getattr(launchers[0], "cache_hash", "")) if len(launchers) == 1 else ""
            kernels.append((name, binary or digest(kernel.source)))
    return kernels


def kernels_hash(kernels: Iterable[GeneratedKernel]) -> str:
    """Return a hash that is equal in two processes that run the same kernels (measuring rule 21), in any
    order of their graphs. It begins with the number of its rule: hashes of two rules are not comparable."""
    return f"{_HASH_RULE}:{digest(' '.join(map('='.join, sorted(kernels))))}"


@dataclass(frozen=True)
class Produced:
    """`code` is that of the ten largest kernels, by binary; `generated` is None where those of the wrappers
    are not recognised."""

    compiled: Compiled
    generated: list[GeneratedKernel] | None = None
    code: dict[str, str] = field(default_factory=dict)

    def facts(self, results: Sequence[Result]) -> dict[str, Json]:
        """Return what a record says of the compilation: the GPU's share of the call time among `results`, and
        by how much the kernels' times miss the busy time, if they do."""
        compiled = self.compiled
        facts: dict[str, Json] = {COMPILED: compiled.to_json()}
        if compiled.busy_us is None or "kernels" in compiled.blind:
            return facts
        total_us = sum(kernel.time_us or 0.0 for kernel in compiled.kernels)
        missed_us = total_us - (compiled.overlap_us or 0.0) - compiled.busy_us
        if abs(missed_us) > _AGREES * compiled.busy_us:
            facts["unaccounted_us"] = round(missed_us, 3)
        for result in results:
            if result.metric == "compiled_latency_ms":
                facts["busy_share_of_call"] = compiled.busy_us / 1e3 / median(result.values)
        return facts

    def count(self, extern: int, results: Sequence[Result], **more: Json) -> Result:
        """Return the number of generated kernels and of `extern` calls of libraries, none where the former
        is blind, with `facts` and `more` beside it."""
        facts = {"extern_calls": extern, **self.facts(results), **more}
        if self.generated is None:
            return Result("kernel_count", [], facts=facts)
        facts["kernels_hash"] = kernels_hash(self.generated)
        return Result("kernel_count", [float(len(self.generated) + extern)], facts=facts)

    def known_share(self, *, generated_only: bool) -> float:
        """Return the share of the kernels' time in those with known bytes."""
        times = [(kernel, kernel.time_us or 0.0) for kernel in self.compiled.kernels]
        known = sum(
            time_us
            for kernel, time_us in times
            if kernel.bytes is not None and not (generated_only and kernel.kind == "library")
        )
        return known / (sum(time_us for _kernel, time_us in times) or 1.0)


def keep_code(report: Report, code: Mapping[str, str], suffix: str = "") -> None:
    """Keep the artifact of kernels' code by binary."""
    data = gzip.compress(json.dumps(dict(code)).encode(), mtime=0)
    report.artifact(_CODE, f"{_CODE}{suffix}.json.gz", data)


def profiled_steps(
    call: Callable[[], Any], device: Device, before_call: Callable[[], None] = lambda: None
) -> list[list[Work]]:
    """Return what a call's steps run on the GPU; none on a CPU or where the profiler fails."""
    steps: list[list[Work]] = []
    if device.type == "cuda":
        with note("kernels"):
            trace = gpu_active_time.profile(call, before_call=before_call, steps=_STEPS)
            steps = gpu_active_time.active_time(trace, _STEPS).steps
    return steps


def produced(modules: list[Any], steps: Sequence[Sequence[Work]] = ()) -> Produced:
    """Return what the wrapper modules of one compilation contain, with times from the profiled `steps`, and
    the facts of its graphs.

    Without steps, as on a CPU, kernels have no times. Graphs that did not run in a step have 0 calls.
    """
    produced = Produced(_totals(steps))
    with note("kernel_count"):
        produced = replace(produced, generated=generated_kernels(modules))
    with note("kernels"):
        compiled, code = _kernels(modules, steps, any_generated=produced.generated != [])
        produced = replace(produced, compiled=compiled, code=code)
    compiled = graph_facts(produced.compiled)
    forced, unpinned = pinning.forced(), pinning.unpinned()
    return replace(produced, compiled=replace(compiled, forced=forced, unpinned=unpinned))


def _kernels(
    modules: list[Any], steps: Sequence[Sequence[Work]], *, any_generated: bool
) -> tuple[Compiled, dict[str, str]]:
    """Return the kernels and the code of the largest. Raise LookupError where generated ones have no call."""
    captured = graphs(modules)
    if any_generated and not any(call.generated for graph in captured for call in graph.calls):
        raise LookupError("the wrappers' calls of their kernels are not recognised")
    profile = _Profile(steps, captured)
    stacks: list[lines.Stacks] = [{} for _graph in captured]
    with note("lines"):
        stacks = lines.stacks_of(captured)
    kernels: list[Kernel] = []
    code: dict[str, str] = {}
    for number, graph in enumerate(captured):
        slots: dict[str, list[int]] = defaultdict(list)
        for index, call in enumerate(graph.calls):
            slots[call.slot].append(index)
        for places in slots.values():
            call = graph.calls[places[0]]
            kernel = (
                _generated(graph, call) if call.generated else _library(call, profile.work_of(number, places))
            )
            if kernel is None:
                continue
            calls = [graph.calls[index] for index in places]
            with note("lines"):
                of_calls = [stack for one in calls for stack in stacks[number].get(one.handle, ())]
                kernel = replace(kernel, lines=lines.lines_of(of_calls))
            if call.generated:
                generated = graph.kernels[call.name]
                sizes = [(moved_bytes(generated, kernel.kind, call), kernel.flops) for call in calls]
                code[kernel.binary] = _with_operands(generated, call)
            else:
                sizes = [library_sizes(call) for call in calls]
            kernels.append(profile.timed(kernel, number, places, sizes))
    kernels += profile.others()
    largest = sorted(kernels, key=lambda kernel: -(kernel.time_us or 0.0))
    binaries = dict.fromkeys(kernel.binary for kernel in largest if kernel.binary in code)
    of_largest = {binary: code[binary] for binary in list(binaries)[:_MOST_CODE]}
    return replace(profile.totals, kernels=tuple(kernels)), of_largest


@dataclass
class _Part:
    """What belongs to one call, in each step."""

    times_us: list[float]
    calls: list[int]
    work: list[Work] = field(default_factory=list)  # of the first step


class _Profile:
    """The profiled steps, joined to the calls of the graphs."""

    def __init__(self, steps: Sequence[Sequence[Work]], captured: Sequence[Graph]) -> None:
        self._steps = len(steps)
        self._parts: dict[Any, _Part] = {}
        for number, step in enumerate(steps):
            before: Owner = None
            for work, owner in zip(step, owners(step, captured), strict=True):
                part = self._part(owner or work.name)
                part.times_us[number] += work.duration_us
                is_new = owner is None or owner != before or captured[owner[0]].calls[owner[1]].generated
                part.calls[number] += is_new
                if number == 0:
                    part.work.append(work)
                before = owner
        self._ran = {owner[0] for owner in self._parts if isinstance(owner, tuple)}
        self.totals = _totals(steps)

    def _part(self, owner: Any) -> _Part:
        return self._parts.setdefault(owner, _Part([0.0] * self._steps, [0] * self._steps))

    def work_of(self, graph: int, places: Sequence[int]) -> list[Work] | None:
        """Return what ran for the first of these calls; None where nothing was profiled or the graph did not
        run."""
        if graph not in self._ran:
            return None
        part = self._parts.get((graph, places[0]))
        return part.work if part else []

    def timed(
        self,
        kernel: Kernel,
        graph: int,
        places: Sequence[int],
        sizes: Sequence[tuple[int | None, int | None]],
    ) -> Kernel:
        """Return the kernel with the time, calls, bytes and FLOPs of a step. `sizes` has the latter two of
        each of its calls."""
        runs = 1.0
        if self._steps:
            parts = [self._parts[(graph, index)] for index in places if (graph, index) in self._parts]
            if not parts:
                return replace(kernel, calls=0.0)
            times_us = [sum(part.times_us[step] for part in parts) for step in range(self._steps)]
            called = median(sum(part.calls[step] for part in parts) for step in range(self._steps))
            runs = called / len(places)
            kernel = replace(kernel, time_us=round(median(times_us), 3))
        moved, operations = (
            None if None in values else round(runs * sum(value or 0 for value in values))
            for values in zip(*sizes, strict=True)
        )
        return replace(kernel, calls=len(places) * runs, bytes=moved, flops=operations)

    def others(self) -> list[Kernel]:
        """Return what ran in a step and belongs to no call: copies, and kernels of eager code."""
        timed = []
        for name, part in self._parts.items():
            if isinstance(name, tuple):
                continue
            slot = digest("outside", name)
            kind: KernelKind = "other" if any(work.launch for work in part.work) else "copy"
            kernel = Kernel(slot, digest(slot), digest(name), name[:_MOST_NAME], kind)
            time_us = round(median(part.times_us), 3)
            timed.append(replace(kernel, calls=median(part.calls), time_us=time_us))
        return timed


def _totals(steps: Sequence[Sequence[Work]]) -> Compiled:
    """Return the medians over the steps of busy time, gaps and overlap."""
    if not steps:
        return Compiled()
    times_us = []
    for step in steps:
        begins, ends = zip(*(work.interval for work in step), strict=True)
        busy_us = union(work.interval for work in step)
        overlap_us = max(0.0, sum(work.duration_us for work in step) - busy_us)
        times_us.append((busy_us, max(ends) - min(begins) - busy_us, overlap_us))
    busy, gaps, overlap = (round(median(several), 3) for several in zip(*times_us, strict=True))
    return Compiled(busy_us=busy, gaps_us=gaps, overlap_us=overlap)


def _with_operands(generated: Generated, call: Call) -> str:
    """Return the code with what it is called with, where that is known."""
    operands = [[one.dtype, one.sizes, one.strides] for one in call.operands]
    are_known = all(one.bytes is not None and one.strides is not None for one in call.operands)
    if not are_known or len(pointers(generated)) != len(operands):
        return generated.code
    return with_operands(generated.code, operands, call.numels)


def _generated(graph: Graph, call: Call) -> Kernel:
    kernel = graph.kernels[call.name]
    chosen = tuning.Chosen()
    with note("choices"):
        # a wrapper in C++ has no autotuner, but the name of a binary's file
        is_tuned = _HEURISTIC.search(kernel.code) and kernel.source.startswith(f"{call.name} = async_")
        autotuner = getattr(graph.module, call.name) if is_tuned else None
        chosen = tuning.chosen(autotuner, kernel.source)
    config = chosen.config or tuning.template_config(kernel.code)
    kind = _kind(call.name, kernel)
    ranking = _ranking(call) if kind == "template" else None
    if ranking:
        pinning.keep_template(call.slot, call.name, ranking.entries)
    return Kernel(
        slot=call.slot,
        choice=digest(call.slot, config),
        binary=digest(chosen.binary or kernel.source),
        name=call.name[:_MOST_NAME],
        kind=kind,
        config=config,
        origins=call.origins,
        flops=_flops_of_ranking(ranking) if ranking else None,
        offered=chosen.offered,
        **{name: getattr(chosen, name) for name in ANATOMY},
        **{"candidates": chosen.candidates, **_ranked(ranking)},
    )


def _library(call: Call, work: list[Work] | None) -> Kernel | None:
    """Return an operator of a library; None for one that launched nothing, such as a view."""
    if work is not None and not work:
        return None
    launched = [part for part in work or [] if part.launch]
    name = max(launched, key=lambda part: part.duration_us).name if launched else call.name
    return Kernel(
        slot=call.slot,
        choice=digest(call.slot, *(f"{part.name} {part.launch}" for part in launched)),
        binary=digest(call.name, *(part.name for part in launched)),
        name=name[:_MOST_NAME],
        kind="library",
        origins=call.origins,
        **_ranked(_ranking(call)),
    )


def _ranked(ranking: Ranking | None) -> dict[str, Any]:
    """Return the fields of a kernel that say what max-autotune timed for it."""
    if ranking is None:
        return {}
    return {"candidates": len(ranking.ranked), "ranked": ranking.ranked, "default": ranking.default}


def _ranking(call: Call) -> Ranking | None:
    return next((ranking for ranking in tuning.rankings if ranking.is_of(call)), None)


def _flops_of_ranking(ranking: Ranking) -> int | None:
    """Return the FLOPs of a product that a template computes."""
    if not ranking.operator.endswith("mm"):
        return None
    left, right = ranking.operands[-2:]
    result = Operand(left.dtype, (*left.sizes[:-1], right.sizes[-1]))
    return library_sizes(Call(ranking.operator, False, (), ranking.operands, (result,)))[1]


def _kind(name: str, kernel: Generated) -> KernelKind:
    heuristic = _HEURISTIC.search(kernel.code)
    if not heuristic:
        return "cpp" if name.startswith("cpp_") else "other"
    if "'combo_grid_meta'" in kernel.code:
        return "combo"
    return _KINDS.get(heuristic["name"], "reduction" if "reduction" in heuristic["name"] else "other")
