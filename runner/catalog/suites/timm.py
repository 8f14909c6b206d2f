"""The torchdynamo harness's suite `timm`."""

from __future__ import annotations

from runner.catalog.suites.suite import Suite
from runner.catalog.suites.torchdynamo_cases import TIMM
from runner.catalog.suites.torchdynamo_knobs import BACKEND_PATTERN, BACKENDS, KNOBS, MODES
from runner.catalog.suites.torchdynamo_options import OPTIONS

SUITE = Suite(
    name="timm",
    title="TIMM models, eager against compiled",
    module="runner.suites.torchdynamo",
    cases=TIMM,
    backends=BACKENDS,
    backend_pattern=BACKEND_PATTERN,
    modes=MODES,
    knobs=KNOBS,
    inductor_options=True,
    dynamic=True,
    timeout_s=2400,
    options=OPTIONS,
)
