"""gpt-fast's models: token generation with a static KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.schema.metrics import STEP_METRICS
from runner.schema.options import BUDGET_S, EXPLAIN_FAILURE, Option, choice, count, repeat, switch
from runner.schema.suite import Case, Expected, Suite, TaskSpec
from runner.schema.tasks import KEPT_CACHES

SEQUENCE_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)")
DEVICE_METRICS = ("gpu_busy_ms", "device_bandwidth_gbps", "share_of_ceiling")
COMPILE_METRICS = ("compilation_time(s)", "cold_compile_s", "warm_compile_s")
_MEASURED_MODES = ("bfloat16", "int8")


@dataclass(frozen=True)
class GenerationSuite(Suite):
    def has_compilations(self, task: TaskSpec) -> bool:
        return task.setting("caches") == "fresh"

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        metrics = metrics_of(task, kept=bool(variables.get(KEPT_CACHES)))
        return [Expected(task.case, task.backend, task.device, task.identity(), metrics)]


def metrics_of(task: TaskSpec, *, kept: bool = False) -> tuple[str, ...]:
    """Return the metrics of a model; kept caches leave no cold and warm compile time, and a further
    compilation has no warm one."""
    compiles = COMPILE_METRICS[:2] if task.compilation else COMPILE_METRICS
    return (
        *SEQUENCE_METRICS,
        *STEP_METRICS,
        *(DEVICE_METRICS if task.device == "cuda" else ()),
        *(compiles if task.setting("caches") == "fresh" and not kept else COMPILE_METRICS[:1]),
    )


SUITE = GenerationSuite(
    name="gpt_fast",
    title="Token generation, as gpt-fast",
    class_packages=("numpy",),
    headline_metrics=("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)"),
    cases=(
        Case("Llama-2-7b-chat-hf", "7 billion random weights in the shape of Llama 2", _MEASURED_MODES),
        Case("Mixtral-8x7B-v0.1", "Random weights in the shape of Mixtral, 16 of its 32 layers", ("int8",)),
        Case("toy-llama", "Two layers of 64 like Llama's, no real model: for a CPU and CI", _MEASURED_MODES),
        Case(
            "toy-mixtral", "Two layers of 64 like Mixtral's, no real model: for a CPU and CI", _MEASURED_MODES
        ),
    ),
    backends=("inductor",),
    compiles=True,
    options=(
        Option("layers", "int", "of the model; the case's own where not given", low=1, high=80),
        Option("prompt", "int", "tokens of the prompt", low=1, high=4096, default=6),
        Option("new_tokens", "int", "tokens to generate", low=4, high=4096, default=200),
        count("samples", "sequences that are timed", 1, 100, 5),
        repeat("pairs of an eager and a compiled step, at least", 10, 1000, 30),
        BUDGET_S,
        Option("top_k", "int", "likeliest tokens of which one is drawn", low=1, high=1000, default=200),
        Option("temperature_percent", "int", "of the drawing, in hundredths", low=1, high=500, default=80),
        switch("cudagraphs", "CUDA graphs for the step, as mode reduce-overhead", default=True),
        switch("coordinate_descent_tuning", "inductor's; fuses int8 weights into the products", default=True),
        EXPLAIN_FAILURE,
        choice("caches", "fresh: cold and warm compile; kept: the host's own caches", "fresh", "kept"),
    ),
    timeout_s=1800,
)
