"""operatorbench: one operator at a time, eager against inductor, over shapes that models really call."""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.schema.metrics import STEP_METRICS
from runner.schema.options import OptionValue
from runner.schema.suite import BadRequest, Case, Expected, Suite, TaskSpec
from runner.suites.operators.inputs import INPUTS, OWN, OWN_INPUTS, BadInputs, calls_of_task, recorded
from runner.suites.tables import options_of

_DIGITS = 8
_OWN_NAME = f"{OWN}(-[0-9a-f]{{{_DIGITS}}})?"
_SHAPE = r"(\S{0,200}#[0-9a-f]{8})?"  # '' for the quantiles over all calls
_DTYPES = ("float16", "float32", "bfloat16")
_OPERATOR = re.compile(r"aten\.\w{1,80}\.\w{1,80}", re.ASCII)
_FREQUENT, _MOST_FREQUENT = "frequent", 20  # a name for the operators that models call most
_QUANTILES = ("20th", "50th", "80th")
METRICS_CUDA = ("device_latency_ms", "device_speedup")
_CALL_QUANTILES = tuple(f"call_{quantile}" for quantile in _QUANTILES)  # without operatorbench's own clock


@dataclass(frozen=True)
class OperatorSuite(Suite):
    """A task measures the quantiles over the recorded calls of an operator, and each call."""

    def case(self, name: str) -> Case:
        """Return any operator as a case: a log of one's own may hold it."""
        return _case_of(name) if _OPERATOR.fullmatch(name) else super().case(name)

    def has_case(self, name: str) -> bool:
        return name == _FREQUENT or bool(_OPERATOR.fullmatch(name))

    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        """Return those with recorded inputs where none is named; `frequent` stands for the first of them."""
        found = [name for name in recorded(knobs.get("inputs", INPUTS[0])) if _OPERATOR.fullmatch(name)]
        frequent = found[:_MOST_FREQUENT]
        named = [one for name in names for one in (frequent if name == _FREQUENT else [name])]
        return super().chosen_cases(named or found, knobs, device)

    def check(self, task: TaskSpec) -> None:
        super().check(task)
        inputs = task.setting("inputs")
        if inputs != OWN and task.case not in recorded(inputs):
            raise BadRequest(f"inputs={inputs} has no recorded call of {task.case}")

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        knobs = {**task.identity(), "inputs": inputs_name(str(task.setting("inputs")), variables)}
        quantiles = _CALL_QUANTILES if task.compilation else _QUANTILES
        metrics = call_metrics(task) if task.setting("shape") else quantiles
        return [Expected(task.case, task.backend, knobs, metrics)]

    def expected_in_full(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        """Add an experiment for each recorded call."""
        (whole,) = self.expected(task, variables)
        if task.setting("shape"):
            return [whole]
        try:
            calls = calls_of_task(task, variables)
        except (BadInputs, OSError):
            return [whole]
        metrics = call_metrics(task)
        of_calls = (
            replace(whole, knobs={**whole.knobs, "shape": call.label}, metrics=metrics) for call in calls
        )
        return [whole, *of_calls]

    def open_knobs(self, task: TaskSpec) -> dict[str, str]:
        found = {} if task.setting("shape") else {"shape": _SHAPE}
        return {**found, "inputs": _OWN_NAME} if task.setting("inputs") == OWN else found

    def files_digest(self, task: TaskSpec, variables: Mapping[str, str]) -> str:
        return digest_of_own(variables) if task.setting("inputs") == OWN else ""

    def asked_knobs(self, stored: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Ask for the host's own file without the digest that results carry."""
        own = str(stored.get("inputs", "")).startswith(f"{OWN}-")
        return {**stored, "inputs": OWN} if own else dict(stored)


def _case_of(name: str) -> Case:
    return Case(name, f"{name.split('.')[1]} over its recorded shapes", _DTYPES)


def call_metrics(task: TaskSpec) -> tuple[str, ...]:
    on_cuda = task.device == "cuda" and task.setting("graph_replay")
    return (*STEP_METRICS, *(METRICS_CUDA if on_cuda else ()))


def inputs_name(asked: str, variables: Mapping[str, str]) -> str:
    """Return what results call these inputs: with the digest of a file of one's own, since another file is
    another experiment."""
    digest = digest_of_own(variables) if asked == OWN else ""
    return f"{OWN}-{digest}" if digest else asked


def digest_of_own(variables: Mapping[str, str]) -> str:
    """Return a digest of the file behind `inputs=own`, where these are the variables of the environment; ''
    if there is none that can be read."""
    try:
        content = Path(variables[OWN_INPUTS]).read_bytes()
    except (KeyError, OSError):
        return ""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


SUITE = OperatorSuite(
    name="operators",
    title="Operators over recorded shapes, eager against inductor",
    class_packages=("numpy",),
    headline_metrics=("50th", "20th", "80th", "device_speedup", "abs"),
    reference_backends=("eager",),
    cases=tuple(map(_case_of, dict.fromkeys(itertools.chain(*map(recorded, INPUTS[:-1]))))),
    backends=("inductor", "autotune"),
    compiles=True,
    options=options_of("operators"),
    timeout_s=1800,
    axes=(("dtype", ("float16",)),),
)
