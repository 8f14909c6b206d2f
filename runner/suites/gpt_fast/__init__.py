"""gpt-fast's models: token generation with a static KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.schema.metrics import STEP_METRICS
from runner.schema.suite import BadRequest, Case, Expected, Suite, TaskSpec
from runner.schema.tasks import KEPT_CACHES
from runner.suites.tables import options_of, rows_of

_MIXTURES = ("Mixtral", "toy-mixtral")  # whose experts are stacked, and no linear layers
SEQUENCE_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)")
DEVICE_METRICS = ("gpu_busy_ms", "device_bandwidth_gbps", "share_of_ceiling")
COMPILE_METRICS = ("compilation_time(s)", "cold_compile_s", "warm_compile_s")


@dataclass(frozen=True)
class GenerationSuite(Suite):
    def check(self, task: TaskSpec) -> None:
        super().check(task)
        if task.setting("quantization") != "none" and (
            task.dtype == "int8" or task.case.startswith(_MIXTURES)
        ):
            raise BadRequest(
                f"{self.name}/{task.case}: torchao quantises linear layers of bfloat16", "quantization"
            )

    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        return () if task.setting("quantization") == "none" else ("torchao",)

    def has_compilations(self, task: TaskSpec) -> bool:
        return task.setting("caches") == "fresh"

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        metrics = metrics_of(task, kept=bool(variables.get(KEPT_CACHES)))
        return [Expected(task.case, task.backend, task.identity(), metrics)]


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
    cases=tuple(
        Case(row["name"], row["title"], tuple(row["dtypes"].split())) for row in rows_of("gpt_fast", "models")
    ),
    backends=("inductor",),
    compiles=True,
    options=options_of("gpt_fast"),
    timeout_s=1800,
)
