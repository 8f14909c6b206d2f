"""PyTorch/XLA's experiment matrix, on the device of the run: xla × dynamo × test.

Its runner's `--xla` and `--dynamo` are one backend here: torch_xla has one runtime, PJRT, which openxla and
lazy tensors (`xla`) need and eager and inductor cannot use.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from runner.formats.readers.xla import ON_XLA, RUNTIME
from runner.formats.torchdynamo.batch_sizes import default_batch_size
from runner.schema.options import OptionValue
from runner.schema.statistics import ValueRule
from runner.schema.suite import Case, Expected, Matrix, Suite, TaskSpec
from runner.suites import huggingface, timm, torchbench
from runner.suites.tables import options_of, rows_of
from runner.suites.torchdynamo import check_origin

_DTYPES = ("float32", "bfloat16", "float16")
_OWN = (
    Case("dummy", "Three linear layers and a softmax, as PyTorch/XLA's own dummy", _DTYPES),
    Case("dummy_attention", "One transformer encoder layer of width 128", _DTYPES),
)
# What is measured where no case is named, in small batches.
_BATCH_SIZES = {
    "dummy": 16,
    "dummy_attention": 8,
    **dict.fromkeys(("resnet18", "mobilenet_v2", "squeezenet1_1", "alexnet"), 4),
}
_OF_MODELS = (torchbench.SUITE, huggingface.SUITE, timm.SUITE)
# Each case's suite, which builds its model; ours are of PyTorch/XLA's suite of dummies.
ORIGINS = {case.name: suite.name for suite in _OF_MODELS for case in suite.cases}
ORIGINS |= dict.fromkeys((case.name for case in _OWN), "dummy")
METRICS = ("total_time", "per_iter_time")
_FIRST_COMPILES = re.compile(
    r"(trace_)?(total|per_iter)_time|(total|per_iter)_(cpu|cuda)_time_s|xla_ExecuteTime_(time_s|number)"
)
_IN_ALL_RUNS = re.compile(r"xla_CompileTime_(time_s|number)")


def batch_size_of(task: TaskSpec) -> int | None:
    """Return the batch size that was asked for, or the case's own."""
    asked = task.knobs.get("batch_size") or _BATCH_SIZES.get(task.case)
    return cast("int", asked) if asked else default_batch_size(ORIGINS[task.case], task.case, task.mode)


@dataclass(frozen=True)
class XlaSuite(Suite):
    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        """Return small models where no case is named, or all of the suite that `origin` names."""
        origin = knobs.get("origin")
        suites = [suite for suite in _OF_MODELS if suite.name == origin]
        of_origin = [case.name for suite in suites for case in suite.chosen_cases((), knobs, device)]
        small = [name for name in _BATCH_SIZES if origin in (None, ORIGINS[name])]
        return super().chosen_cases(names or of_origin or small, knobs, device)

    def check(self, task: TaskSpec) -> None:
        super().check(task)
        check_origin(task, ORIGINS)

    def normalized(self, task: TaskSpec) -> TaskSpec:
        """Leave out XLA's flags in cells without XLA, as its runner has no such cells."""
        found = super().normalized(task)
        if task.backend in ON_XLA:
            return found
        return replace(
            found, knobs={name: value for name, value in found.knobs.items() if name != "xla_flags"}
        )

    def backends_on(self, device: str) -> tuple[str, ...]:
        """Leave out XLA's on CUDA, which torch_xla no longer supports."""
        return tuple(name for name in self.backends if device == "cpu" or name not in ON_XLA)

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        knobs = {
            **task.identity(),
            **({"xla": RUNTIME} if task.backend in ON_XLA else {}),
            "batch_size": batch_size_of(task),
            "origin": ORIGINS[task.case],
        }
        checks = ("verification_code",) if task.setting("verify") else ()
        return [Expected(task.case, task.backend, knobs, (*checks, *METRICS))]

    def asked_knobs(self, stored: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Leave out the runtime that the backend says already."""
        return {name: value for name, value in stored.items() if (name, value) != ("xla", RUNTIME)}

    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        """Return torch_xla for cells on it, and what the suite of the model needs."""
        runtime = ("torch_xla",) if task.backend in ON_XLA else ()
        owners = [suite for suite in _OF_MODELS if suite.name == ORIGINS[task.case]]
        return (*runtime, *(name for suite in owners for name in suite.packages_of(task)))

    def value_rule(self, metric: str) -> ValueRule:
        """Leave out the first repeat where it traces, compiles and warms up, as result_analyzer.py does. The
        repeats run one after the other in one process, its counters cleared before each."""
        if _FIRST_COMPILES.fullmatch(metric):
            return "steady"
        return "sum" if _IN_ALL_RUNS.fullmatch(metric) else "median"


SUITE = XlaSuite(
    name="xla",
    title="PyTorch/XLA's experiment matrix",
    headline_metrics=(
        *("verification_code", "per_iter_time", "trace_per_iter_time"),
        *("xla_CompileTime_time_s", "xla_ExecuteTime_time_s", "total_time"),
    ),
    matrix=Matrix(
        backends=("eager", "inductor", *ON_XLA),
        ratio=("inductor", "openxla"),
        time_metric="per_iter_time",
        code_metric="verification_code",
        runtime_knob="xla",
        runtime_backends=ON_XLA,
        codes={row["code"]: (row["meaning"], row["action"]) for row in rows_of("xla", "codes")},
    ),
    cases=(
        *_OWN,
        *(
            replace(case, dtypes=tuple(dtype for dtype in _DTYPES if dtype in case.dtypes))
            for suite in _OF_MODELS
            for case in suite.cases
        ),
    ),
    backends=("eager", "inductor", "openxla", "xla"),
    modes=("inference", "training"),
    options=options_of("xla"),
    timeout_s=1800,
    axes=(
        ("backend", ("eager", "inductor", *ON_XLA)),
        ("mode", ("inference", "training")),
        ("dtype", ("float32",)),
    ),
)
