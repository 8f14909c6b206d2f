"""What the suites of PyTorch's torchdynamo harness have in common.

Their cases are the models that can be built with random weights, without a download.
"""

from __future__ import annotations

from runner.schema.suite import Case, Suite
from runner.suites.torchdynamo.options import KNOBS

DTYPES = ("bfloat16", "float16", "float32", "amp")
_MODES = ("inference", "training")
# As the results call them. Any other backend that dynamo knows can be named too.
_BACKENDS = (
    "inductor",  # with CUDA graphs on CUDA, as the harness's --inductor
    "inductor_cudagraphs",
    "inductor_no_cudagraphs",
    "inductor_cudagraphs_freezing",
    "inductor_no_cudagraphs_freezing",
    "inductor_cudagraphs_max_autotune",
    "inductor_no_cudagraphs_max_autotune",
    "inductor_cpp_wrapper",
    "inductor_aot_inductor",
    "inductor_export",
    "aot_eager",
    "eager",
    "cudagraphs",
)
_BACKEND_PATTERN = r"[A-Za-z][A-Za-z0-9_]{0,79}"


def torchdynamo_suite(
    name: str,
    title: str,
    cases: tuple[Case, ...],
    *,
    axes: tuple[tuple[str, tuple[str, ...]], ...] = (),
    packages: tuple[str, ...] = (),
) -> Suite:
    """One of them, of which this is what it has for its own."""
    return Suite(
        name=name,
        title=title,
        module="runner.suites.torchdynamo.run",
        cases=cases,
        backends=_BACKENDS,
        backend_pattern=_BACKEND_PATTERN,
        modes=_MODES,
        knobs=KNOBS,
        inductor_options=True,
        dynamic=True,
        timeout_s=2400,
        axes=axes,
        packages=packages,
    )
