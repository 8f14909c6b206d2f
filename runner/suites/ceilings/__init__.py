"""Measured ceilings of a host, to which bandwidths are compared."""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.schema.suite import Case, Expected, Suite, TaskSpec


@dataclass(frozen=True)
class CeilingSuite(Suite):
    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        return [Expected(task.case, task.backend, {}, (metric_of(task),))]


def metric_of(task: TaskSpec) -> str:
    if task.case == "matmul":
        return "matmul_tflops"
    return "device_bandwidth_gbps" if task.device == "cuda" else "call_bandwidth_gbps"


SUITE = CeilingSuite(
    name="ceilings",
    title="What the host itself reaches",
    class_packages=(),
    headline_metrics=("device_bandwidth_gbps", "matmul_tflops"),
    cases=(
        Case("copy", "Copy of a block larger than every cache, bytes read and written", ("bfloat16",)),
        Case("read", "Sum of a block larger than every cache, bytes read", ("bfloat16",)),
        Case("matmul", "Matrix product 8192×8192×8192 (1024 on a CPU), random data", ("bfloat16",)),
    ),
    backends=("eager",),
)
