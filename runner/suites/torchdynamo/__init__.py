"""The common part of the suites of PyTorch's torchdynamo harness.

Their cases are models that can be built with random weights, without a download. Each suite has a row for
each of them in its `models.csv`. A command can name others of the same package too.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.formats.torchdynamo.batch_sizes import default_batch_size
from runner.formats.torchdynamo.names import PARTS, backend_of, parts_of
from runner.schema.compilations import INDUCTOR_OPTIONS
from runner.schema.options import Option, OptionValue
from runner.schema.suite import BadRequest, Case, Expected, Suite, TaskSpec
from runner.schema.tasks import KEPT_CACHES
from runner.suites.tables import options_of, rows_of

DTYPES = ("bfloat16", "float16", "float32", "amp")
_NOT_HALF = ("float32", "amp")
# A stage with the metrics that it has on every device, a GPU, a CPU.
_STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "accuracy": (("accuracy",), (), ()),
    "cold": (
        ("speedup", "eager_latency_ms", "compiled_latency_ms", "back_to_back_latency_ms"),
        ("gpu_busy_ms",),
        (),
    ),
    "warm": (("warm_compile_s",), ("compiled_peak_memory_bytes",), ("peak_rss_bytes",)),
    "batch_size": (("largest_batch_size",), (), ()),
    "eager": ((), ("eager_peak_memory_bytes", "eager_gpu_busy_ms"), ("eager_peak_rss_bytes",)),
}
_TESTS = {
    "both": ("accuracy", "cold", "warm", "eager"),
    "accuracy": ("accuracy",),
    "performance": ("cold", "warm", "eager"),
    "batch_size": ("batch_size",),
}


# An option that the harness has is called as there, so that its results and ours are one experiment. What it
# says in a compiler's name (CUDA graphs, freezing, …) is part of the backend here too: an option of that kind
# changes the backend's name in the results and stands nowhere else.
OPTIONS = (*options_of("torchdynamo"), *INDUCTOR_OPTIONS.values())


@dataclass(frozen=True)
class HarnessSuite(Suite):
    """A suite of the harness: huggingface, timm, torchbench, or a file of the user's own."""

    modes: tuple[str, ...] = ("inference", "training")
    # As the results call them. Any other backend that dynamo knows can be named too.
    backends: tuple[str, ...] = (
        "inductor",  # with CUDA graphs on CUDA, as the harness's --inductor
        *("inductor_cudagraphs", "inductor_no_cudagraphs"),
        *("inductor_cudagraphs_freezing", "inductor_no_cudagraphs_freezing"),
        *("inductor_cudagraphs_max_autotune", "inductor_no_cudagraphs_max_autotune"),
        *("inductor_cpp_wrapper", "inductor_aot_inductor", "inductor_export"),
        *("aot_eager", "eager", "cudagraphs"),
    )
    backend_pattern: str = r"[A-Za-z][A-Za-z0-9_]{0,79}"
    options: tuple[Option, ...] = OPTIONS
    inductor_options: bool = True
    compiles: bool = True
    dynamic: bool = True
    timeout_s: int = 2400
    headline_metrics: tuple[str, ...] = (
        *("speedup", "accuracy", "abs_latency"),
        *("compilation_latency", "compression_ratio", "dynamo_peak_mem"),
    )

    other_cases: str = ""  # the names of models that only a command can name

    @property
    def module(self) -> str:
        return "runner.suites.torchdynamo.run"

    def has_case(self, name: str) -> bool:
        return bool(self._phases(name))

    def _phases(self, name: str) -> list[Case]:
        """Return a listed model; of a language model's name `MODEL`, the cases `MODEL:forward` and so on."""
        return [case for case in self.cases if name in (case.name, case.name.partition(":")[0])]

    def case(self, name: str) -> Case:
        """Return a listed model, or any other one of its package whose name fits."""
        listed = self.has_case(name) or not re.fullmatch(self.other_cases or "(?!)", name, re.ASCII)
        return super().case(name) if listed else Case(name, "not listed", DTYPES)

    def check_listed(self, name: str) -> None:
        super().case(name)

    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        """Leave out, where no case is named, what the harness skips on this device."""
        if names:
            return [case for name in names for case in self._phases(name) or [self.case(name)]]
        return [case for case in self.cases if not self._skipped(case.name, device)]

    def _skipped(self, name: str, device: str) -> bool:
        on_cpu = device == "cpu" and has_trait(self.name, name, "skipped_on_cpu")
        return on_cpu or has_trait(self.name, name, "skipped")

    def normalized(self, task: TaskSpec) -> TaskSpec:
        """Leave out, too, the model's own batch size, and a part of the backend's name that the backend has
        already or cannot have."""
        tiny = task.knobs.get("size") == "tiny"
        defaults = {option.name: option.default for option in self.options}
        defaults["batch_size"] = default_batch_size(self.name, task.case, task.mode, tiny=tiny)
        kept: dict[str, OptionValue] = {}
        for name in (option.name for option in self.options if option.name in task.knobs):
            value = task.knobs[name]
            with_it = replace(task, knobs={**kept, name: value})
            if name in PARTS:
                needed = backend_of(with_it) != backend_of(replace(task, knobs=kept))
            else:
                needed = value != defaults[name]
            if needed:
                kept[name] = value
        return replace(task, knobs=kept)

    def canonical(self, task: TaskSpec) -> TaskSpec:
        """Name the backend as the results call it, and leave out what its name says."""
        if parts_of(task.backend) is None:
            return task
        others = {name: value for name, value in task.knobs.items() if name not in PARTS}
        return replace(task, backend=backend_of(task).name(task.device), knobs=others)

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        fresh = not variables.get(KEPT_CACHES) and task.setting("caches") != "kept"
        metrics = [
            metric for stage in stages_of(task) for metric in stage_metrics(stage, task.device, fresh=fresh)
        ]
        named = self.canonical(task)
        return [Expected(task.case, named.backend, named.identity(), tuple(metrics))]

    def has_compilations(self, task: TaskSpec) -> bool:
        """Return whether inductor compiles it for a clock, and from empty caches."""
        timed = task.setting("test") in {"both", "performance"} and task.setting("caches") == "fresh"
        return timed and backend_of(task).is_inductor

    def explaining_knobs(self, metric: str, backend: str) -> dict[str, OptionValue]:
        """Leave out the stages before the one that failed."""
        knobs = super().explaining_knobs(metric, backend)
        return knobs and {**knobs, "test": "accuracy" if metric == "accuracy" else "performance"}

    def takes_inductor_options(self, task: TaskSpec) -> bool:
        return backend_of(task).is_inductor


@functools.cache
def models_of(suite: str) -> Mapping[str, Mapping[str, str]]:
    """Return the rows of a suite's `models.csv` by model. The column `traits` has words: `rules.py` and the
    suite's `models.py` ask for them by `has_trait`, and say what they mean."""
    return {row["name"]: row for row in rows_of(suite, "models")}


def has_trait(suite: str, case: str, trait: str) -> bool:
    row = models_of(suite).get(case)
    return row is not None and trait in row["traits"].split()


def check_origin(task: TaskSpec, origins: Mapping[str, str]) -> None:
    """Raise BadRequest for a model of another suite than the option `origin` names."""
    if task.knobs.get("origin", origins[task.case]) != origins[task.case]:
        raise BadRequest(f"{task.case} is a case of {origins[task.case]}", "origin")


def cases_of(suite: str) -> tuple[Case, ...]:
    """Return the models of a suite as cases. Asked for halves, the harness runs one of `amp_for_halves`
    under autocast."""
    cases = []
    for name, row in models_of(suite).items():
        dtypes = _NOT_HALF if has_trait(suite, name, "amp_for_halves") else DTYPES
        only_float32 = has_trait(suite, name, "float32")
        cases.append(Case(name, row["title"], ("float32",) if only_float32 else dtypes))
    return tuple(cases)


def stages_of(task: TaskSpec) -> tuple[str, ...]:
    """Return the stages of a task in order; a further compilation has one."""
    return ("cold",) if task.compilation else _TESTS[str(task.setting("test"))]


def largest_batch_size(fits: Callable[[int], bool]) -> int:
    """Return the largest batch that fits as the harness's `--find-batch-sizes` looks for it: from 1024 on,
    halved until it fits."""
    size = 1024
    while not fits(size):
        size = size // 2 if size > 4 else size - 1
    return size


def stage_metrics(stage: str, device: str, *, fresh: bool) -> tuple[str, ...]:
    """Return the metrics of a stage; with `fresh` caches the first compile is a cold one."""
    metrics, on_cuda, on_cpu = _STAGES[stage]
    cold = ("cold_compile_s",) if stage == "cold" and fresh else ()
    return (*metrics, *(on_cuda if device == "cuda" else on_cpu), *cold)
