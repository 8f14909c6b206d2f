"""Unit and direction of the names that PyTorch's own tools write."""

from __future__ import annotations

import pytest

from runner.schema.devices import arch_key, device_kind
from runner.schema.metrics import metric_info

# test-infra, torchci/lib/benchmark/llms/common.ts: IS_INCREASING_METRIC_VALUE_GOOD and UNIT_FOR_METRIC; the
# other units stand in the names or in METRIC_DISPLAY_HEADERS.
HUD_NAMES = {
    "flops_utilization": ("ratio", "up"),
    "memory_bandwidth(GB/s)": ("GB/s", "up"),
    "token_per_sec": ("token/s", "up"),
    "compilation_time(s)": ("s", "down"),
    "speedup": ("x", "up"),
    "avg_inference_latency(ms)": ("ms", "down"),
    "trimmean_inference_latency(ms)": ("ms", "down"),
    "model_load_time(ms)": ("ms", "down"),
    "peak_inference_mem_usage(mb)": ("MB", "down"),
    "peak_load_mem_usuage(mb)": ("MB", "down"),
    "generate_time(ms)": ("ms", "down"),
    "latency": ("s", "down"),
    "median_itl_ms": ("ms", "down"),
    "median_tpot_ms": ("ms", "down"),
    "median_ttft_ms": ("ms", "down"),
    "p99_itl_ms": ("ms", "down"),
    "p99_tpot_ms": ("ms", "down"),
    "p99_ttft_ms": ("ms", "down"),
    "requests_per_second": ("request/s", "up"),
    "tokens_per_second": ("token/s", "up"),
    "Cold compile time (s)": ("s", "down"),
    "Warm compile time (s)": ("s", "down"),
    "Speedup": ("x", "up"),
    "Speedup (%)": ("%", "up"),
    "triton_speedup": ("x", "up"),
    "torch_compile_speedup": ("x", "up"),
    "helion_speedup": ("x", "up"),
}
OTHER_NAMES = {
    "speedup(wrt bf16)": ("x", "up"),
    "fwd speedup (x)": ("x", "up"),
    "bfloat16 fwd time (ms)": ("ms", "down"),
    "latency_ms": ("ms", "down"),
    "helion_latency_ms": ("ms", "down"),
    "helion_compile_time_s": ("s", "down"),
    "helion_accuracy": ("", "up"),
    "tritonbench_gemm_fwd[x_(256, 256, 256)-triton_tutorial_matmul]_tflops": ("TFLOP/s", "up"),
    "tritonbench_gemm_fwd[aten_matmul]-gbps-avg": ("GB/s", "up"),
    "triton_matmul-speedup": ("x", "up"),
    "triton_bundler_time": ("s", "down"),  # a phase of the compiler
    "xla_median_trace_per_iter_time": ("s", "down"),  # PyTorch/XLA's report of an older version
    "odd": ("", "none"),
    "latency_budget": ("", "none"),
}


@pytest.mark.parametrize(("name", "meaning"), [*HUD_NAMES.items(), *OTHER_NAMES.items()])
def test_a_name_has_the_unit_and_direction_of_its_tool(name: str, meaning: tuple[str, str]) -> None:
    info = metric_info(name)
    assert (info.unit, info.direction) == meaning


@pytest.mark.parametrize(
    ("name", "kind", "arch"),
    [
        ("cuda:0", "cuda", "cuda-0"),
        ("NVIDIA B200", "cuda", "b200"),
        ("AMD Instinct MI325X", "rocm", "mi325x"),
        ("TPU v7", "tpu", "tpu-v7"),
        ("linux.rocm.gpu.gfx942.1", "rocm", "linux.rocm.gpu.gfx942.1"),
        ("linux.dgx.b200", "cuda", "b200"),
        ("linux.idc.xpu", "xpu", ""),
        ("linux.google.tpuv7x.1", "tpu", ""),
        ("linux.mtia.1", "mtia", ""),
        ("A100", "cuda", "a100"),
        ("a100", "cuda", "a100"),
        ("A100 80GB", "cuda", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "cuda", "a100-40gb"),
        ("pallas", "pallas", "pallas"),
    ],
)
def test_a_device_name_or_runner_label_gives_device_and_arch(name: str, kind: str, arch: str) -> None:
    assert (device_kind(name), arch_key(name)) == (kind, arch)
