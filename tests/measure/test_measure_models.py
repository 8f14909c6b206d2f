"""Arithmetic behind compile time, GPU busy time and memory: no device needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor.async_compile import AsyncCompile

from runner.measure.ceilings import peak_tflops
from runner.measure.kernels.produced import GeneratedKernel, kernels_hash
from runner.measure.kernels.produced import generated_kernels as kernels
from runner.measure.memory import high_water_bytes, private_pool_bytes
from runner.measure.state.device import Device
from runner.measure.timing import gpu_active_time
from runner.measure.timing.compile_time import FirstCalls, start_workers
from runner.measure.timing.gpu_active_time import Work, active_time, by_step, union


def test_compile_time_is_what_the_first_calls_take_more() -> None:
    assert FirstCalls([5000.0, 30.0], [10.0, 12.0, 10.0], True).compile_s == pytest.approx(5.01)
    assert FirstCalls([9.0], [10.0], True).compile_s == 0.0


def test_compile_workers_start_without_what_torch_2_6_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(AsyncCompile, "warm_pool", lambda: started.append("pool"))
    monkeypatch.delattr(AsyncCompile, "use_process_pool", raising=False)
    start_workers()
    assert started == ["pool"]


def test_a_union_counts_what_overlaps_once() -> None:
    assert union([]) == 0
    assert union([(0, 10), (5, 15), (20, 25), (21, 22)]) == 20


def test_steps_lie_between_synchronisations() -> None:
    intervals = [(0.0, 1.0), (2.0, 3.0), (10.0, 14.0), (12.0, 13.0), (20.0, 21.0)]
    work = [Work(str(place), begin, end - begin) for place, (begin, end) in enumerate(intervals)]
    steps = by_step(work, [-1.0, 4.0, 9.0, 15.0, 19.0, 22.0, 23.0], 3)
    assert [[one.name for one in step] for step in steps] == [["0", "1"], ["2", "3"], ["4"]]
    assert by_step(work, [], 3) == by_step(work, [4.0, 15.0], 3) == []


def event(name: str, category: str, begin_us: float, length_us: float) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin_us, "dur": length_us}


def test_busy_time_of_a_trace() -> None:
    trace = {
        "traceEvents": [
            event("ProfilerStep#1", "gpu_user_annotation", 0, 1000),
            event("cudaDeviceSynchronize", "cuda_runtime", 0, 1),
            event("triton_poi_fused_0", "kernel", 10, 100),
            event("Memcpy DtoD", "gpu_memcpy", 50, 100),
            event("cudaDeviceSynchronize", "cuda_runtime", 20, 200),
            event("triton_poi_fused_0", "kernel", 500, 120),
            event("cudaDeviceSynchronize", "cuda_runtime", 510, 200),
            {"ph": "i", "name": "note"},
        ]
    }
    found = active_time(trace, steps=2)
    assert found.steps_ms == pytest.approx([0.14, 0.12])
    assert [[one.name for one in step] for step in found.steps] == [
        ["triton_poi_fused_0", "Memcpy DtoD"],
        ["triton_poi_fused_0"],
    ]
    assert active_time(trace, steps=3).steps_ms == pytest.approx([0.26 / 3])
    assert found.launches == 1.5
    with pytest.raises(ValueError, match="no kernel"):
        active_time({"traceEvents": []})


def test_the_faster_half_of_the_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_us = iter([120, 100, 140, 100, 130, 110, 150, 100])

    def profile(_call: Any, **_settings: Any) -> dict[str, Any]:
        duration, ends = next(busy_us), [event(gpu_active_time._BOUNDARY, "cuda_runtime", 0, 1)]
        for begin in range(0, 1000 * gpu_active_time.STEPS, 1000):
            kernel = event("triton_poi_fused_0", "kernel", begin + 10, duration)
            ends += [kernel, event(gpu_active_time._BOUNDARY, "cuda_runtime", begin, 500)]
        return {"traceEvents": ends, "of": duration}

    monkeypatch.setattr(gpu_active_time, "profile", profile)
    monkeypatch.setattr(gpu_active_time, "_REST_S", 0.0)
    cpu = Device("cpu", "", "", 0, 1)
    found, trace = gpu_active_time.at_full_clock(lambda: None, cpu, before_call=lambda: None)
    assert sorted(set(found.steps_ms)) == pytest.approx([0.1, 0.11])
    assert len(found.steps) == len(found.steps_ms) == 4 * gpu_active_time.STEPS
    assert (found.launches, trace["of"]) == (1.0, 100)


def test_private_pools_are_told_from_the_general_one() -> None:
    segments: list[dict[str, Any]] = [
        {"total_size": 100, "segment_pool_id": (0, 0)},
        {"total_size": 20, "segment_pool_id": (0, 1)},
        {"total_size": 3, "segment_pool_id": [1, 0]},
        {"total_size": 7},
    ]
    assert private_pool_bytes(segments) == 23


def test_the_high_water_mark() -> None:
    assert high_water_bytes("VmPeak:\t  10 kB\nVmHWM:\t     5 kB\nVmRSS: 1 kB\n") == 5120


def test_the_hash_of_kernels_knows_no_order() -> None:
    a, b = ("a", "1"), ("b", "2")
    assert kernels_hash([a, b]) == kernels_hash([b, a])
    assert len({kernels_hash(each) for each in ([a], [a, a], [("a", "2")], [a, b])}) == 4


_MODULE = """# AOT ID: ['{number}_forward']
async_compile = AsyncCompile()
cpp_fused_sin_0 = async_compile.cpp_pybinding(['const float*'], r'''
#include "{cache}/c3fr.h"
{body}
''')
call = runner.call
"""
_CPP_MODULE = """cpp_wrapper_src = (
r'''
extern "C"  void  cpp_fused_sin_0(const float* in_ptr0,
                       float* out_ptr0);
void inductor_entry_impl() {{ cpp_fused_sin_0(a, b); }}
extern "C"  void  cpp_fused_sin_0(const float* in_ptr0,
                       float* out_ptr0)
{{
    {body}
}}
extern "C"  void  cpp_fused_cos_1(const float* in_ptr0)
{{
    cos;
}}
''')
call = runner.call
"""


_TRITON_IN_CPP = """cpp_wrapper_src = (
r'''
static CUfunction triton_poi_fused_sin_0 = nullptr;
void call_triton_poi_fused_sin_0() {{
    if (triton_poi_fused_sin_0 == nullptr) {{
        triton_poi_fused_sin_0 = loadKernel("{cache}/{binary}.cubin", "triton_poi_fused_sin_0", 0);
    }}
    launchKernel(triton_poi_fused_sin_0, grid);
}}
static CUfunction triton_red_fused_sum_1 = nullptr;
static const char* triton_red_fused_sum_1_source = R"TRITON(
def triton_red_fused_sum_1(): {binary}
)TRITON";
''')
call = runner.call
"""


def graphs(folder: Path, *texts: str) -> list[SimpleNamespace]:
    """Wrapper modules as inductor loads them."""
    found = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.py"
        path.write_text(text)
        found.append(SimpleNamespace(__file__=str(path), call=print, cpp_fused_sin_0=print))
    return found


def test_each_graphs_kernels_count_whatever_their_names_are(tmp_path: Path) -> None:
    def found(*bodies: str, cache: str = "/tmp/a") -> list[GeneratedKernel]:
        texts = [_MODULE.format(number=n, cache=cache, body=body) for n, body in enumerate(bodies)]
        return kernels(graphs(tmp_path, *texts))

    twice = found("sin", "sin")
    assert [name for name, _content in twice] == ["cpp_fused_sin_0", "cpp_fused_sin_0"]
    assert kernels_hash(twice) != kernels_hash(found("sin"))
    assert kernels_hash(twice) != kernels_hash(found("sin", "another sin"))
    assert kernels_hash(twice) == kernels_hash(found("sin", "sin", cache="/var/other"))
    assert kernels_hash(found("sin", "cos")) == kernels_hash(found("cos", "sin"))


def test_kernels_inside_a_cpp_wrapper_count_too(tmp_path: Path) -> None:
    found, other = (kernels(graphs(tmp_path, _CPP_MODULE.format(body=body))) for body in ("sin;", "tan;"))
    assert [name for name, _content in found] == ["cpp_fused_sin_0", "cpp_fused_cos_1"]
    assert found[0] != other[0]
    assert found[1] == other[1]


def test_triton_kernels_inside_a_cpp_wrapper_count_too(tmp_path: Path) -> None:
    texts = [
        _TRITON_IN_CPP.format(cache=c, binary=b) for c, b in (("/tmp/a", "c1"), ("/b", "c1"), ("/b", "c2"))
    ]
    found, moved, other = (kernels(graphs(tmp_path, text)) for text in texts)
    assert [name for name, _content in found] == ["triton_poi_fused_sin_0", "triton_red_fused_sum_1"]
    assert found == moved
    assert not set(found) & set(other)


def test_the_peak_is_that_of_the_products() -> None:
    assert peak_tflops("NVIDIA H200", "bfloat16", "high") == (
        989.0,
        "h200, data sheet, dense bfloat16 and float16",
    )
    assert peak_tflops("NVIDIA H200", "float32", "high") == (494.5, "h200, data sheet, dense TF32")
    assert peak_tflops("NVIDIA H200", "float32", "highest") is None
    assert peak_tflops("x86_64", "bfloat16", "high") is None
