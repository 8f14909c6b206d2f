"""What a host itself reaches: the yardstick of every share."""

from __future__ import annotations

from runner.schema.suite import Case, Suite

SUITE = Suite(
    name="ceilings",
    title="What the host itself reaches",
    module="runner.suites.ceilings.run",
    cases=(
        Case("copy", "Copy of a block larger than every cache, bytes read and written", ("bfloat16",)),
        Case("read", "Sum of a block larger than every cache, bytes read", ("bfloat16",)),
        Case("matmul", "Matrix product 8192×8192×8192 (1024 on a CPU), random data", ("bfloat16",)),
    ),
    backends=("eager",),
)
