"""cachebench: how long a model takes to compile with empty caches, and with full ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.schema.options import OptionValue
from runner.schema.suite import Case, Expected, Suite, TaskSpec
from runner.suites import huggingface, torchbench
from runner.suites.tables import options_of
from runner.suites.torchdynamo import check_origin

# cachebench's own lists, first here; it takes any other model of the two suites by name too.
DEFAULTS = (
    *("nanogpt", "BERT_pytorch", "resnet50", "moco", "llama"),
    *("AllenaiLongformerBase", "BertForMaskedLM", "GPT2ForSequenceClassification"),
)
_OF_MODELS = (torchbench.SUITE, huggingface.SUITE)
ORIGINS = {case.name: suite.name for suite in _OF_MODELS for case in suite.cases}
_CASES = {case.name: case for suite in _OF_MODELS for case in suite.cases}
_DTYPES = ("amp", "bfloat16", "float16", "float32")
_UPSTREAM_METRICS = ("Cold compile time (s)", "Warm compile time (s)", "Speedup (%)")
_OUR_METRICS = ("cold_compile_s", "warm_compile_s", "warm_to_cold_ratio", "compile_time_reduction")
METRICS = (*_OUR_METRICS, *_UPSTREAM_METRICS)


@dataclass(frozen=True)
class CacheSuite(Suite):
    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        """Return what the suites of the models measure where no case is named, cachebench's lists first."""
        suites = [suite for suite in _OF_MODELS if knobs.get("origin", suite.name) == suite.name]
        of_models = {case.name for suite in suites for case in suite.chosen_cases((), knobs, device)}
        every = [case.name for case in self.cases if case.name in of_models]
        return super().chosen_cases(names or every, knobs, device)

    def check(self, task: TaskSpec) -> None:
        super().check(task)
        check_origin(task, ORIGINS)

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        knobs = {**task.identity(), "origin": ORIGINS[task.case]}
        return [Expected(task.case, task.backend, knobs, METRICS)]

    def default_dtypes(self, mode: str) -> tuple[str, ...]:
        """Return cachebench's dtype."""
        return ("bfloat16",) if mode == "inference" else ("amp",)


SUITE = CacheSuite(
    name="cache",
    title="Compile time with cold and warm caches, as cachebench",
    headline_metrics=_UPSTREAM_METRICS,
    cases=tuple(
        replace(_CASES[name], dtypes=tuple(kind for kind in _DTYPES if kind in _CASES[name].dtypes))
        for name in dict.fromkeys((*DEFAULTS, *_CASES))
    ),
    backends=("inductor",),
    modes=("training", "inference"),
    options=options_of("cache"),
    dynamic=True,
    timeout_s=4000,
)
