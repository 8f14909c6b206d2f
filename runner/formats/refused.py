"""Files that look like results and are not read: how to recognise each, and what to do instead.

They are refused by name, since "none of the formats" or "no v3 record" helps nobody. Only what no format
recognises comes here; for JSON that is before v3, which takes whatever is JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runner.formats.format import Preview

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PROFILE = "a profile has no results"
AS_V3 = "write its numbers as v3 records (docs/formats.md, “Your own benchmark”)"


@dataclass(frozen=True)
class Refused:
    """A kind of file: its name, how to recognise it, and what to do with it."""

    name: str
    matches: Callable[[Preview], bool]
    instead: str = AS_V3


def _keys(*alternatives: str, text: bytes = b"") -> Callable[[Preview], bool]:
    """Recognise an object, or the first of a list, by all of its keys, and by a text at the beginning."""

    def matches(preview: Preview) -> bool:
        value = preview.first_value if preview.is_json else None
        value = value[0] if isinstance(value, list) and value else value
        has_keys = isinstance(value, dict) and any(value.keys() >= {*keys.split()} for keys in alternatives)
        return has_keys and text in preview.start

    return matches


def _columns(*alternatives: str) -> Callable[[Preview], bool]:
    return lambda preview: any({*names.split(",")}.issubset(preview.header) for names in alternatives)


def _begins(*magic: bytes) -> Callable[[Preview], bool]:
    return lambda preview: preview.start.startswith(magic)


def _begins_like(*words: bytes) -> Callable[[Preview], bool]:
    return lambda preview: preview.start.lstrip(b"\xef\xbb\xbf \t\r\n")[:200].lower().startswith(words)


_VLLM = (  # `vllm bench serve`, `latency` and `throughput`
    "request_throughput output_throughput",
    "mean_ttft_ms mean_tpot_ms",
    "median_ttft_ms median_itl_ms",
    "avg_latency latencies",
    "requests_per_second tokens_per_second elapsed_time",
)
REFUSED = (
    # JSON
    Refused("a result of nvbench", _keys("devices benchmarks")),
    Refused("a result of nvbench", _columns("Benchmark,Device,CPU Time (sec)")),
    Refused("a result of asv", _keys("results params commit_hash")),
    Refused(
        "asv's list of its benchmarks",
        lambda preview: preview.names("param_names", "params", "timeout"),
        "it has no results; " + AS_V3,
    ),
    Refused("a result of pyperf", _keys("benchmarks metadata version")),
    Refused(
        "a result of hyperfine",
        lambda preview: _keys("results", text=b'"command"')(preview) and b'"stddev"' in preview.start,
    ),
    Refused(
        "a trace of a profiler (Kineto, torch.profiler, chrome://tracing)",
        _keys("traceEvents", "ph ts name"),
        "a trace has events, no results. This runner keeps kernels: python -m runner run …; for compile times"
        " upload the log of TORCH_TRACE",
    ),
    Refused(
        "results of KernelBench's evaluation of generated kernels",
        lambda preview: preview.names("sample_id", "compiled", "correctness"),
        "only its baselines are read: results/timing/<hardware>/baseline_time_torch*.json",
    ),
    Refused(
        "a result of vLLM's or SGLang's own benchmark, which does not name what was measured",
        _keys(*_VLLM),
        "run `vllm bench` (of SGLang's server too) with SAVE_TO_PYTORCH_BENCHMARK_FORMAT=1, and upload the"
        " *.pytorch.json that it writes beside this file",
    ),
    Refused(
        "a report of Helion's autotuner",
        _keys("runs", text=b'"num_configs_tested"'),
        "upload the file of Helion's benchmark: benchmarks/run.py --output results.json",
    ),
    Refused(
        "tlparse's index of compiles",
        lambda preview: preview.is_json and b'"artifacts"' in preview.start and b'"links"' in preview.start,
        "upload the log that tlparse read, dedicated_log_torch_trace_*.log, or its raw.jsonl",
    ),
    # CSV
    Refused(
        "google-benchmark's CSV",
        lambda preview: b"name,iterations,real_time,cpu_time,time_unit" in preview.start,
        "write JSON: --benchmark_out=FILE --benchmark_out_format=json",
    ),
    Refused("torchao's micro-benchmark", _columns("quantization,high_precision_dtype")),
    Refused(
        "torchao's results of Segment Anything",
        _columns("batchsize,compile,memory", "sam_model_type,img_s(avg)"),
    ),
    Refused(
        "pytest-benchmark's CSV",
        _columns("name,min,max,mean,stddev,rounds"),
        "write JSON: --benchmark-json=FILE",
    ),
    Refused("a table of Nsight Systems", _columns("Total Time (ns),Instances"), _PROFILE),
    Refused("a table of Nsight Compute", _columns("Kernel Name,Metric Name"), _PROFILE),
    Refused("tritonbench's list of shapes", _columns("M,K,N"), "upload the output of run.py"),
    # not text, or no table
    Refused(
        "a web page",
        _begins_like(b"<!doctype html", b"<html"),
        "download the data behind the page: of tlparse raw.jsonl, of a CI job its artifact",
    ),
    Refused("an XML file (JUnit?)", _begins_like(b"<?xml", b"<testsuite"), "test reports have no results"),
    Refused(
        "a zip archive (a CI artifact, a .pt checkpoint, a wheel)",
        _begins(b"PK\x03\x04", b"PK\x05\x06"),
        "unzip it and upload the result files in it; `runner upload FOLDER/*` takes many at once",
    ),
    Refused("a tar archive", lambda preview: preview.start[257:262] == b"ustar", "unpack it first"),
    Refused(
        "a compressed file (xz, bzip2, 7z)",
        _begins(b"\xfd7zXZ\x00", b"BZh", b"7z\xbc\xaf\x27\x1c"),
        "decompress it first; gzip is read as it is",
    ),
    Refused("a pickle (torch.save, memory snapshot)", _begins(*_PICKLES)),
    Refused("a Parquet file", _begins(b"PAR1"), "convert it to CSV or JSON lines of v3 records"),
    Refused("a SQLite database (Nsight Systems?)", _begins(b"SQLite format 3\x00"), _PROFILE),
    Refused("a NumPy array", _begins(b"\x93NUMPY")),
    Refused(
        "an image or a PDF", _begins(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"%PDF"), "upload its numbers"
    ),
)


def refused(preview: Preview) -> Refused | None:
    """Return the kind of a file that is known and not read, None for others."""
    return next((kind for kind in REFUSED if kind.matches(preview)), None)
