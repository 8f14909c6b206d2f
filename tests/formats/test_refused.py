"""Files that are known and not read are refused by name, with what to do."""

from __future__ import annotations

import json
import pickle

import pytest

from runner.formats import format_of
from runner.formats.errors import BadUpload, MalformedUpload
from runner.formats.format import Preview
from runner.formats.readers.refused import kinds, refused
from tests.support.observed import SAMPLES
from tests.support.records import as_list, v3_record

_NVBENCH = {"meta": {"version": {}}, "devices": [], "benchmarks": []}
_ASV = {"commit_hash": "a", "params": {"machine": "m"}, "results": {"time_a": [1]}, "version": 2}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("name,min,max,mean,stddev,rounds\ntest_a,1,2,3,4,5\n", "pytest-benchmark"),
        ("name,iterations,real_time,cpu_time,time_unit\nBM,1,2,3,ns\n", "google-benchmark"),
        (json.dumps(_NVBENCH), "nvbench"),
        ("Benchmark,Device,Device Name,Samples,CPU Time (sec)\na,0,H100,3,1\n", "nvbench"),
        (json.dumps(_ASV), "asv"),
        (json.dumps([{"jmhVersion": "1.29", "benchmark": "a.b", "primaryMetric": {}}]), "JMH"),
        (json.dumps({"Title": "a", "HostEnvironmentInfo": {}, "Benchmarks": []}), "BenchmarkDotNet"),
        (json.dumps([{"Julia": "1.7.0", "BenchmarkTools": "1.0.0"}, []]), "Julia"),
        (json.dumps([{"name": "a", "unit": "ms", "value": 1}]), "github-action-benchmark"),
        ("m,k,n\n1024,1024,2304\n", "torchao"),
        ("name,quantization,m,k,n,high_precision_dtype\na,int4wo,1,2,3,torch.bfloat16\n", "torchao"),
        (json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1, "name": "a"}]}), "Kineto"),
        (json.dumps([{"ph": "B", "ts": 1, "name": "dynamo"}]), "trace"),
        (json.dumps({"avg_latency": 7.4, "latencies": [7.4], "percentiles": {}}), "vLLM"),
        (json.dumps({"elapsed_time": 72, "requests_per_second": 2, "tokens_per_second": 1}), "vLLM"),
        (json.dumps({"backend": "vllm", "mean_ttft_ms": 171.3, "mean_tpot_ms": 65.7}), "vLLM"),
        ("<!DOCTYPE html>\n<html><body>a</body></html>", "web page"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (pickle.dumps({"a": 1}), "pickle"),
    ],
)
def test_a_known_file_is_refused_by_name_with_what_to_do(body: bytes | str, word: str) -> None:
    with pytest.raises(BadUpload) as caught:
        format_of("", body.encode() if isinstance(body, str) else body)
    assert not isinstance(caught.value, MalformedUpload), "422, not 400"
    assert word in caught.value.detail
    assert caught.value.faults[0].detail


def test_nothing_that_is_read_is_refused() -> None:
    for path in SAMPLES.iterdir():
        if path.suffix in {".csv", ".js", ".json", ".jsonl", ".log"}:
            format_of("", path.read_bytes())
    assert refused(Preview(as_list(v3_record()))) is None
    assert all(kind.name and kind.instead for kind in kinds())
