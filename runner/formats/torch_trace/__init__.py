"""TORCH_TRACE: the structured log that torch.compile writes for each process,
`dedicated_log_torch_trace_*.log`, and the `raw.jsonl` that tlparse makes of it.

Source: `torch/_logging/_internal.py`, trace_structured, and `torch/_dynamo/utils.py`, CompilationMetrics. A
line has glog's head and one JSON object; the lines of its payload begin with a tab.

A trace is one process: an experiment with the sums over all that it compiled, called by the user's script,
and one for each function with its own. The sums come with the facts of its graphs, which pages show like
those of our own runner: breaks, recompiles, skipped CUDA graphs, phases, caches.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.formats import reasons
from runner.formats.errors import BadUpload, Fault
from runner.formats.format import FileWarning, Format, Item, LocatedRecord, Preview, Skipped
from runner.formats.measurement import ParsedMeasurement, knobs_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import shortened
from runner.formats.torch_trace.process import HEAD, TOTAL, Trace, entries, take
from runner.schema.compilations import COMPILED
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "TORCH_TRACE"
_MOST_FUNCTIONS = 100
_NO_CODE = "the code that inductor generated is not in this file, or over 1 MiB: upload the log itself"
_NO_COMPILES = (
    "the trace has no compilation_metrics: nothing was compiled in this process, or it ended before. Upload"
    " the log of a process that compiled; torch.export alone writes none"
)


def read(body: bytes, filename: str) -> Iterator[Item]:
    trace = Trace()
    number = 0
    for number, head, payload in entries(body):
        try:
            event = json.loads(head)
        except (ValueError, RecursionError):
            yield Skipped("", reasons.BAD_JSON, number)
            trace.unreadable += 1
            continue
        if isinstance(event, dict):
            take(trace, event, payload, number)
    if not number:
        detail = "its lines begin as: V1122 12:00:00.000000 1 torch/_dynamo/utils.py:1] {"
        raise BadUpload("this is no TORCH_TRACE", [Fault("", detail)])
    if not trace.counts["compiles"]:
        raise BadUpload("this TORCH_TRACE has nothing to store", [Fault("", _NO_COMPILES)])
    last = body.rpartition(b"\n")[2]
    trace.unreadable += bool(last.strip()) and not last.startswith((b"\t", b"{"))
    if trace.missing:
        yield FileWarning(trace.missing, is_partial=True)
    yield from _items(trace)


def _items(trace: Trace) -> Iterator[Item]:
    knobs = {} if trace.rank is None else {"rank": trace.rank}
    first = next(iter(trace.functions))
    case = shortened(trace.script or first.rpartition(":")[0] or first or "a process")
    compiled = trace.compiled()
    counts = trace.counts
    counts["graph_breaks"] = max(sum(note.count for note in trace.graph_breaks), trace.counted_breaks or 0)
    counts["recompiles"] = len(trace.recompiles)
    counts["cudagraph_skips"] = len(trace.skips)
    counts["compile_failures"] += 0
    counts["functions_compiled"] = len(trace.functions)
    facts = Metric("kernel_count", [trace.kernels], extra_info={COMPILED: compiled.to_json()})
    if trace.lacks_code:
        unknown = {"status": "cannot_tell", "reason": _NO_CODE}
        facts = replace(facts, benchmark_values=None, extra_info={**(facts.extra_info or {}), **unknown})
    yield LocatedRecord(_record(trace, case, knobs, facts), "/inductor_output_code")
    times_s = {name: round(seconds, 6) for name, seconds in trace.times_s.items()}
    metrics = [Metric(name, [value]) for name, value in (times_s | counts).items()]
    failures = (function.failure for function in trace.functions.values() if function.failure)
    if failure := next(failures, None):  # what the others took is no total
        metrics = [_failed(failure) if metric.name == TOTAL else metric for metric in metrics]
    for metric in metrics:
        yield LocatedRecord(_record(trace, case, knobs, metric), f"/{metric.name}")
    longest = sorted(trace.functions.items(), key=lambda item: -item[1].time_s)
    for name, function in longest[:_MOST_FUNCTIONS]:
        of_function = {**knobs, "function": shortened(name or "?")}
        metrics = [Metric("compiles", [function.compiles])]
        own = Metric(TOTAL, [round(function.time_s, 6)])
        metrics.append(_failed(function.failure) if function.failure else own)
        for metric in metrics:
            yield LocatedRecord(_record(trace, case, of_function, metric), f"/{metric.name}", function.line)
    if rest := longest[_MOST_FUNCTIONS:]:
        seconds = sum(function.time_s for _name, function in rest)
        yield FileWarning(
            f"{len(longest)} functions were compiled: the {_MOST_FUNCTIONS} longest are listed, the other"
            f" {len(rest)} with {seconds:.3f} s are only in the sums"
        )


def _failed(failure: tuple[str, str]) -> Metric:
    code, reason = failure
    return Metric(TOTAL, extra_info={"status": "failed", "code": code[:200], "reason": reason})


def _record(trace: Trace, case: str, knobs: dict[str, Any], metric: Metric) -> Record:
    training = trace.graphs & {"aot_joint_graph", "aot_backward_graph"}
    mode = "training" if training else "inference" if "aot_inference_graph" in trace.graphs else None
    info = {"device": trace.device, "arch": trace.card, "knobs": dict(knobs)}
    versions = {"torch": trace.versions.get("pytorch"), "triton": trace.versions.get("triton")}
    facts = {name: trace.versions[name] for name in ("cuda", "python") if name in trace.versions}
    return Record(
        Benchmark(_BENCHMARK, mode, extra_info=info),
        Model(case, "torch.compile", "inductor" if trace.compiled_by_inductor else None),
        metric,
        runners=[{"extra_info": facts}] if facts else None,
        dependencies={name: {"version": version} for name, version in versions.items() if version},
        timestamp=trace.started_s or trace.first_event_s,
    )


def describe(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    """Take the suite of the upload, so that a benchmark's own traces stand beside its results."""
    measurement.suite = parameters.suite or "torch_trace"
    measurement.knobs = knobs_of(record)
    measurement.compilation = 0  # and no record says so, since each trace of a run has its own time


def _matches(preview: Preview) -> bool:
    if HEAD.match(preview.start.lstrip(b"\xef\xbb\xbf")):
        return True
    # tlparse's raw.jsonl, by its first line
    is_raw = preview.is_json and b'"frame_compile_id"' in preview.start
    value = preview.first_value if is_raw else None
    marks = {"string_table", "str", "compilation_metrics", "dynamo_start"}
    return isinstance(value, dict) and bool(value.keys() & marks)


FORMAT = Format("torch_trace", matches=_matches, read=read, describe={_BENCHMARK: describe})
