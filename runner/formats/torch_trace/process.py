"""The facts of one process, out of the lines of its TORCH_TRACE."""

import contextlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.formats.scalars import finite, text
from runner.formats.torch_trace import compile_notes
from runner.schema.compilations import Compiled, Note
from runner.schema.tables import rows

HEAD = re.compile(rb"(?:\[rank\d+\]:\s*)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]\n]{1,500}:\d+\] (?=\{)")
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000|\x00")
_ARTIFACTS = {"dynamo_graph_break_reason", "recompile_reasons"}
_CACHED = re.compile(r"(?P<cache>\w+)_cache_(?P<end>hit|miss)")
_KERNEL = re.compile(rb"= async_compile\.\w+\(|\bextern_kernels\.\w+\(")
# In AOTInductor's C++: a function of each kernel, and the calls of library kernels
_AOT_KERNEL = re.compile(
    rb'static inline void call_\w+\(|\blaunchKernel\(kernels\.|extern "C"\s+void \w+\('
    rb"|\baoti_torch_(?:cpu|cuda|xpu|mps)_\w+\("
)
_CARD = re.compile(rb"system_info\[device\]: \{'name': '([^']{1,100})'")
_DEVICE = re.compile(r"device\(type='(\w+)'")
_RESUMED = re.compile(r"_at_\d+(?:_\d+)?$")
_NO_REASON = "the reason is not in this file"  # tlparse's raw.jsonl has no payloads
_INDEX = re.compile(r"[0-9]{1,9}")
_MOST_PAYLOAD_BYTES = 1 << 20
_EARLIEST_US = 1.5e15  # in 2017; what is less is no time since 1970
_TIMES = {row["key"]: (row["name"], float(row["per_s"])) for row in rows(__file__, "durations.csv")}
TOTAL = "entire_frame_compile_time_s"
_COUNTS = {"guard_count": "guards", "graph_op_count": "graph_ops"}
_NO_BREAK = "<class "  # begins the reason of a restart for other causes: the exception's type


@dataclass
class Function:
    """What was compiled of one function of the user's code."""

    time_s: float = 0.0
    compiles: int = 0
    failure: tuple[str, str] | None = None  # type and reason of the last one
    line: int = 0


@dataclass
class Trace:
    """The facts of a process, as its lines tell them one after the other."""

    strings: dict[int, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=lambda: defaultdict(Function))
    times_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    breaks: list[Note] = field(default_factory=list)
    restarts: list[Note] = field(default_factory=list)  # of torch that does not tell breaks apart
    counted_breaks: int | None = None
    recompiles: list[Note] = field(default_factory=list)
    skips: list[Note] = field(default_factory=list)
    caches: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    phases_us: Counter[str] = field(default_factory=Counter)
    begun_us: dict[tuple[Any, ...], list[float]] = field(default_factory=lambda: defaultdict(list))
    versions: dict[str, str] = field(default_factory=dict)
    script: str = ""
    device: str = ""
    card: str = ""
    rank: int | None = None
    kernels: int = 0
    lacks_code: bool = False  # whether some generated code is not in the file, or too long
    started_s: float | None = None
    first_event_s: float | None = None  # for torch up to 2.5, which says no other time
    compiled_by_inductor: bool = False
    graphs: set[str] = field(default_factory=set)  # kinds: aot_inference_graph, …
    frame: compile_notes.Frame | None = None  # the function that is being compiled
    payload: bytes = b""  # of the line that is being read
    line: int = 0
    begun: set[tuple[Any, Any]] = field(default_factory=set)  # compiles without metrics, by frame and number
    unreadable: int = 0  # lines

    @property
    def missing(self) -> str:
        """Return what the trace lacks, '' where it is whole."""
        phases = [name for (_pid, _tid, name), times in self.begun_us.items() if times]
        unfinished = len(self.begun) or len(phases)
        if unfinished or self.unreadable:
            return f"{unfinished} compiles have begun and not ended, {self.unreadable} lines cannot be read"
        return ""

    @property
    def graph_breaks(self) -> list[Note]:
        """Return the graph breaks that the trace lists. Older torch has them as reasons of restarts alone."""
        listed = self.breaks or (self.restarts if self.counted_breaks is None else [])
        return compile_notes.without_twins(listed)

    def compiled(self) -> Compiled:
        phases_s = {name: round(us / 1e6, 4) for name, us in self.phases_us.items() if us >= 1000}
        times_s = {name: round(seconds, 4) for name, seconds in self.times_s.items() if seconds >= 0.001}
        return Compiled(
            graph_breaks=compile_notes.summed(self.graph_breaks),
            recompiles=compile_notes.summed(self.recompiles),
            cudagraph_skips=compile_notes.summed(self.skips),
            phases_s=phases_s or times_s,
            caches={name: (hits, misses) for name, (hits, misses) in self.caches.items()},
        )


def entries(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number of each line with JSON, its JSON, and its payload (of up to a MiB), without NUL
    characters, which PostgreSQL does not store."""
    if b"\0" in body or b"\\u0000" in body:
        body = _NUL.sub(rb"\1", body)
    number, head, payload, size = 0, b"", [], 0
    for count, line in enumerate(io.BytesIO(body.removeprefix(b"\xef\xbb\xbf")), start=1):
        if line.startswith(b"\t"):
            if size < _MOST_PAYLOAD_BYTES:
                payload.append(line[1:])
                size += len(line)
            continue
        if head:
            yield number, head, b"".join(payload)
        match = HEAD.match(line)
        number, head, payload, size = count, line[match.end() :] if match else b"", [], 0
        if not match and line.startswith(b"{"):
            head = line  # tlparse's raw.jsonl
    if head:
        yield number, head, b"".join(payload)


def take(trace: Trace, event: dict[str, Any], payload: bytes, line: int) -> None:
    """Add what one line says."""
    trace.payload, trace.line = payload, line
    compiled = event.get("frame_id"), event.get("frame_compile_id")
    if "dynamo_start" in event:
        trace.begun.add(compiled)
    elif "compilation_metrics" in event:
        trace.begun.discard(compiled)
    if isinstance(event.get("rank"), int):
        trace.rank = event["rank"]
    for key, value in event.items():
        if isinstance(value, dict) and key in _TAKERS:
            _TAKERS[key](trace, value)
        elif key.startswith("aot_"):
            trace.graphs.add(key)
        elif key in {"str", "string_table"}:
            _take_strings(trace, value, is_table=key == "string_table")


def _take_strings(trace: Trace, value: Any, *, is_table: bool) -> None:
    """Take a string with its number, or a table of all strings."""
    if isinstance(value, dict):
        trace.strings = {
            int(number): text(name) for number, name in value.items() if _INDEX.fullmatch(number)
        }
    elif isinstance(value, list) and is_table:
        trace.strings = dict(enumerate(map(text, value)))
    elif isinstance(value, list) and len(value) == 2 and isinstance(value[1], int):
        trace.strings[value[1]] = text(value[0])


def _take_tensor(trace: Trace, value: Mapping[str, Any]) -> None:
    match = _DEVICE.search(text(value.get("device")))
    if match and match[1] != "meta" and trace.device in {"", "cpu"}:
        trace.device = match[1]


def _count_kernels(trace: Trace, kernel: re.Pattern[bytes]) -> None:
    code = trace.payload
    trace.compiled_by_inductor = True
    trace.lacks_code |= not 0 < len(code) < _MOST_PAYLOAD_BYTES
    trace.kernels += len(kernel.findall(code))


def _take_start(trace: Trace, value: Mapping[str, Any]) -> None:
    frames, stack = [], value.get("stack")
    for frame in stack if isinstance(stack, list) else []:
        if isinstance(frame, dict) and isinstance(frame.get("line"), int):
            number = frame.get("filename")
            frames.append((trace.strings.get(number, "") if isinstance(number, int) else "", frame["line"]))
    trace.frame = frames[-1] if frames else None
    named = (compile_notes.short_path(file) for file, _line in frames if file and not file.startswith("<"))
    trace.script = trace.script or next((file for file in named if not file.startswith("torch/")), "")


def _take_metrics(trace: Trace, metrics: Mapping[str, Any]) -> None:
    """Add the compile of one frame."""
    times_s = _times_of(metrics)
    for phase, seconds in times_s.items():
        trace.times_s[phase] += seconds
    if metrics.get("is_runtime"):
        return
    file = compile_notes.short_path(text(metrics.get("co_filename")))
    name = _RESUMED.sub("", text(metrics.get("co_name"))) or "an exported program"
    function = trace.functions[f"{file}:{name}" if file else name]
    function.time_s += times_s.get(TOTAL, 0.0)
    function.compiles += 1
    function.line = function.line or trace.line
    trace.counts["compiles"] += 1
    if kind := text(metrics.get("fail_type")):
        trace.counts["compile_failures"] += 1
        function.failure = (kind, compile_notes.plain(text(metrics.get("fail_reason"))))
    for key, count in _COUNTS.items():
        trace.counts[count] += _integer(metrics.get(key))
    if isinstance(metrics.get("num_graph_breaks"), int):  # of the process so far
        trace.counted_breaks = max(trace.counted_breaks or 0, metrics["num_graph_breaks"])
    listed = metrics.get("restart_reasons")
    place = compile_notes.place([(text(metrics.get("co_filename")), _integer(metrics.get("co_firstlineno")))])
    for reason in listed if isinstance(listed, list) else []:
        if text(reason) and not reason.startswith(_NO_BREAK):
            trace.restarts.append(Note(compile_notes.plain(reason.strip("'")), place))
    if reason := text(metrics.get("cudagraph_skip_reason")):
        trace.skips.append(compile_notes.cudagraph_skip(reason))
    _take_environment(trace, metrics)


def _take_environment(trace: Trace, metrics: Mapping[str, Any]) -> None:
    for name in ("pytorch_version", "triton_version", "cuda_version", "python_version"):
        if version := text(metrics.get(name)).split(" ")[0]:
            trace.versions[name.removesuffix("_version")] = version
    started_us = finite(metrics.get("start_time_us"))
    started_s = started_us / 1e6 if started_us else finite(metrics.get("start_time"))
    if trace.started_s is None and started_s:
        trace.started_s = started_s
    if metrics.get("is_forward") is False:
        trace.graphs.add("aot_backward_graph")


def _times_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of a compile by our names."""
    times_s = {}
    for key, (name, per_s) in _TIMES.items():
        if (duration := finite(metrics.get(key))) is not None and duration >= 0:
            times_s[name] = duration / per_s
    start_us, end_us = (finite(metrics.get(f"{name}_time_us")) for name in ("start", "end"))
    if metrics.get("co_name") is None and not metrics.get("is_runtime") and start_us and end_us:
        times_s.setdefault(TOTAL, max(end_us - start_us, 0) / 1e6)  # AOTInductor has no frame
    return times_s


def _take_artifact(trace: Trace, value: Mapping[str, Any]) -> None:
    name = text(value.get("name"))
    if cached := _CACHED.fullmatch(name):
        trace.caches[cached["cache"]][cached["end"] == "miss"] += 1
        if card := _CARD.search(trace.payload):
            trace.card = card[1].decode(errors="replace")
    if name not in _ARTIFACTS:
        return
    content: Any = trace.payload.decode(errors="replace").strip() or _NO_REASON
    if name == "dynamo_graph_break_reason":
        trace.breaks.append(compile_notes.graph_break_of_trace(content))
        return
    with contextlib.suppress(ValueError):  # torch writes a single reason as plain text
        content = json.loads(trace.payload)
    guards = content if isinstance(content, list) else [content]
    if guards and text(guards[0]):  # the entry that was used last comes first
        trace.recompiles.append(compile_notes.recompile(guards[0], trace.frame))


def _take_event(trace: Trace, value: Mapping[str, Any]) -> None:
    """Add the time between the begin and the end of one of dynamo's phases, under the phase's own name."""
    try:
        event = json.loads(trace.payload)
    except ValueError:
        return
    if not isinstance(event, dict) or event.get("ph") not in {"B", "E"} or not text(event.get("name")):
        return
    at_us = finite(event.get("ts"))
    if at_us is None:
        return
    if trace.first_event_s is None and at_us > _EARLIEST_US:
        trace.first_event_s = at_us / 1e6
    begun = trace.begun_us[str(event.get("pid")), str(event.get("tid")), event["name"]]
    if event["ph"] == "B":
        begun.append(at_us)
    elif begun:
        trace.phases_us[event["name"]] += round(max(at_us - begun.pop(), 0))


_TAKERS: dict[str, Callable[[Trace, Mapping[str, Any]], None]] = {
    "dynamo_start": _take_start,
    "compilation_metrics": _take_metrics,
    "compilation_metrics_runtime": _take_metrics,
    "artifact": _take_artifact,
    "describe_tensor": _take_tensor,
    "inductor_output_code": lambda trace, _value: _count_kernels(trace, _KERNEL),
    # the wrapper of AOTInductor, which writes no inductor_output_code
    "graph_dump": lambda trace, value: (
        _count_kernels(trace, _AOT_KERNEL) if value.get("name") == "inductor_aot_wrapper_code" else None
    ),
    "chromium_event": _take_event,
}


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0
