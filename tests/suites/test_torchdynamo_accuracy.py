"""The accuracy check: every word it can say, by subjects that are made to fail, and the harness's rule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._inductor import config

from runner.formats.metric_values import ACCURACY_CODES, status_of
from runner.launch.failures import TaskFailure
from runner.schema.options import OptionValue
from runner.schema.records import STATUSES
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import accuracy
from runner.suites.torchdynamo.accuracy import AccuracyResult
from runner.suites.torchdynamo.model import LoadedModel, Step, StepFunction
from runner.suites.torchdynamo.rules import AccuracyRules
from runner.suites.torchdynamo.stages import prepare_device

# Every word of the harness, and where each is met: a test here, or another system's part.
STATUS_OF_CODE = {
    "pass": "ok",
    "pass_due_to_skip": "ok",
    "fail_accuracy": "wrong",
    "fail_to_run": "failed",
    "OOM": "oom",
    "eager_1st_run_fail": "failed",
    "eager_1st_run_OOM": "oom",
    "eager_2nd_run_fail": "failed",
    "eager_2nd_run_OOM": "oom",
    "eager_two_runs_differ": "cannot_tell",
    "eager_variation": "cannot_tell",
    "eager_fail_to_run": "failed",
    "model_fail_to_load": "failed",
    "timeout": "timed_out",
    "warmup_failed": "failed",
    "infra_error": "failed",
    "not_bitwise_equivalent": "wrong",
    "fail_batch_invariance_at_4": "wrong",
    "fail_to_run_at_batch_2": "failed",
}
ROWS, WIDTH = 8, 40
Act = Callable[[int, torch.Tensor], torch.Tensor]


def test_every_code_of_the_harness_has_a_status() -> None:
    for code, status in STATUS_OF_CODE.items():
        assert status in STATUSES
        assert status_of(code) == status
    assert set(ACCURACY_CODES) <= set(STATUS_OF_CODE)


class Calls:
    """Counts the calls of a module and its copies."""

    def __init__(self) -> None:
        self.count = 0

    def __deepcopy__(self, _memo: object) -> Calls:
        return self


class Model(torch.nn.Module):  # type: ignore[misc]
    """`act` is called before each forward pass with the number of passes so far, and may raise."""

    def __init__(self, act: Act | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self._act = act
        self._calls = Calls()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self._calls.count += 1
        x = self._act(self._calls.count, x) if self._act else x
        return {"logits": self.linear(x).tanh()}


class Complex(Model):
    """Its weights are complex too."""

    def __init__(self, act: Act | None = None) -> None:
        super().__init__(act)
        self.turn = torch.nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": torch.fft.fft(self.linear(x)) * self.turn}


ACCURACY = AccuracyRules(tolerance=1e-3)


@pytest.fixture(autouse=True)
def _settings_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what the check sets for its whole process."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    cudnn, mkldnn, matmul = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.cuda.matmul
    found = [
        (module, name, getattr(module, name))
        for module, name in (
            *((cudnn, name) for name in ("deterministic", "benchmark", "allow_tf32")),
            (mkldnn, "deterministic"),
            *((matmul, f"allow_{half}_reduced_precision_reduction") for half in ("bf16", "fp16")),
        )
    ]
    with config.patch(dict.fromkeys(("fallback_random", "batch_invariant"), False)):
        yield
    for module, name, value in found:
        setattr(module, name, value)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)


class Large(Model):
    """It says that it has three billion parameters."""

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        yield from super().parameters(recurse)
        yield torch.empty(3_000_000_000, device="meta")


def loaded(module: torch.nn.Module, **changes: Any) -> LoadedModel:
    """Changes are fields of LoadedModel."""
    inputs = (torch.randn(ROWS, WIDTH),)
    model = LoadedModel(module, inputs, loss=lambda output: output["logits"].mean(), batch_size=ROWS)
    return replace(model, **changes)


def checked(
    act: Act | None = None,
    compiled: Callable[[Step], StepFunction] = lambda step: step.function,
    mode: str = "inference",
    dtype: str = "float32",
    *,
    knobs: dict[str, OptionValue] | None = None,
    model: Callable[[Act | None], Model] = Model,
    **changes: Any,
) -> AccuracyResult:
    """Changes are fields of LoadedModel or AccuracyRules."""
    spec = TaskSpec("huggingface", "BertForMaskedLM", mode, dtype, "inductor", "cpu", knobs=knobs or {})
    torch.manual_seed(3)
    rules = replace(ACCURACY, **{name: changes.pop(name) for name in changes.keys() & vars(ACCURACY).keys()})

    def load(spec: TaskSpec, **_asked: object) -> LoadedModel:
        module = model(act).train(spec.mode == "training")
        return loaded(module, **changes)

    with (
        patch.object(accuracy, "load", load),
        patch.object(accuracy, "accuracy_rules", lambda _spec: rules),
    ):
        return accuracy.check(spec, compiled)


def raising(error: Exception, at: int) -> Act:
    """Two steps a run: passes 1 and 2 are the reference's, 3 and 4 the first eager run's, …"""

    def act(call: int, x: torch.Tensor) -> torch.Tensor:
        if call >= at:
            raise error
        return x

    return act


def changed(by: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Step], StepFunction]:
    """A compiler that is wrong by this much."""

    def compiled(step: Step) -> StepFunction:
        return lambda inputs: {"logits": by(step.function(inputs)["logits"])}

    return compiled


OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("pass", checked),
        ("pass", lambda: checked(mode="training", knobs={"optimizer": "adam"})),
        ("pass", lambda: checked(compiled=changed(lambda x: x + 5e-4))),
        ("pass", lambda: checked(dtype="bfloat16")),
        ("pass", lambda: checked(dtype="amp", mode="training")),
        ("pass_due_to_skip", lambda: checked(skip="no deterministic algorithms")),
        ("fail_accuracy", lambda: checked(compiled=changed(lambda x: x + 0.01))),
        ("fail_accuracy", lambda: checked(compiled=changed(lambda x: x.double()))),
        ("fail_accuracy", lambda: checked(compiled=changed(lambda x: x[:3]))),
        ("fail_accuracy", lambda: checked(compiled=changed(lambda x: x / 0))),
        ("fail_accuracy", lambda: checked(compiled=lambda step: lambda inputs: (step.function(inputs),))),
        ("eager_1st_run_fail", lambda: checked(raising(ValueError("no"), 3))),
        ("eager_1st_run_OOM", lambda: checked(raising(OOM, 3))),
        ("eager_2nd_run_fail", lambda: checked(raising(ValueError("no"), 5))),
        ("eager_2nd_run_OOM", lambda: checked(raising(OOM, 5))),
        ("fail_to_run", lambda: checked(raising(ValueError("no"), 7))),
        ("OOM", lambda: checked(raising(OOM, 7))),
        ("eager_two_runs_differ", lambda: checked(lambda call, x: x + call)),
        (
            "infra_error",
            lambda: checked(compiled=changed(lambda x: x), tolerance=object()),
        ),
    ],
)
def test_outcomes_have_the_harness_s_codes(code: str, outcome: Callable[[], AccuracyResult]) -> None:
    result = outcome()
    assert (result.code, result.status) == (code, STATUS_OF_CODE[code]), result.details
    assert code == "pass" or result.details["reason"]
    if code in ("pass", "fail_accuracy"):
        assert result.details["reference"] == "float64"
        assert result.details["compared_by"] == "tolerance and error"
    if code == "pass":
        assert result.cosine == pytest.approx(1, abs=1e-3)
        assert result.rmse_ratio is not None


def with_gaps(value: float) -> Act:
    """The first column of the output is not finite, with `Gaps`."""

    def act(_call: int, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.full_like(x[:, :1], value), x[:, 1:]], dim=1)

    return act


class Gaps(Model):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        assert self._act
        return {"logits": self._act(1, self.linear(x))}


@pytest.mark.parametrize(
    ("code", "value", "dtype"),
    [
        ("pass", float("inf"), "float32"),
        ("pass", float("nan"), "bfloat16"),
        ("eager_two_runs_differ", float("nan"), "float32"),  # as the harness says it
    ],
)
def test_error_stats_leave_out_what_is_not_finite(code: str, value: float, dtype: str) -> None:
    result = checked(with_gaps(value), model=Gaps, dtype=dtype)
    assert result.code == code
    json.dumps(result.details, allow_nan=False)
    if code == "pass":
        assert result.details["not_finite"].startswith(f"{ROWS} of {ROWS * WIDTH} numbers")
        assert result.cosine == pytest.approx(1, abs=1e-3)
        assert result.rmse_ratio is not None
    else:
        assert "8 of 320 numbers are NaN on both sides" in result.details["reason"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)])
def test_nan_of_the_compiled_side_alone_is_wrong_and_no_number(dtype: str, where: slice) -> None:
    def spoils(x: torch.Tensor) -> torch.Tensor:
        x[where] = float("nan")
        return x

    result = checked(compiled=changed(spoils), dtype=dtype)
    assert (result.code, result.status) == ("fail_accuracy", "wrong")
    assert "eager has a number" in result.details["not_finite"]
    assert result.details["reason"].endswith("numbers are NaN or infinite where eager's are not")
    assert math.isnan(result.cosine or 0)
    assert math.isinf(result.rmse_ratio or 0)
    json.dumps(result.details, allow_nan=False)


def test_the_check_is_deterministic() -> None:
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.set_float32_matmul_precision("high")
    checked()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    assert config.fallback_random


def test_without_a_reference_the_check_is_by_cosine_and_says_so() -> None:
    def no_float64(_call: int, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise NotImplementedError("no float64 here")
        return x

    near = checked(no_float64, changed(lambda x: x + 0.002))
    assert (near.code, near.details["compared_by"], near.rmse_ratio) == ("pass", "cosine", None)
    assert "no float64 here" in near.details["reference"]
    assert checked(no_float64, changed(lambda x: -x)).code == "fail_accuracy"


def test_a_wrong_gradient_is_found_and_named() -> None:
    def forgets(step: Step) -> StepFunction:
        def function(inputs: Any) -> Any:
            loss = step.function(inputs)
            step.module.linear.bias.grad.mul_(40)
            return loss

        return function

    result = checked(compiled=forgets, mode="training", tolerance=1e-5)
    assert result.code == "fail_accuracy"
    assert result.details["reason"].startswith("gradients.linear.bias: ")
    assert result.cosine is not None
    assert result.cosine < 1


def adds_to_inputs(by: float) -> Callable[[Step], StepFunction]:
    """A compiler that is wrong in the gradients of the inputs alone."""

    def compiled(step: Step) -> StepFunction:
        def function(inputs: Any) -> Any:
            loss = step.function(inputs)
            inputs[0].grad.add_(by)
            return loss

        return function

    return compiled


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_an_input_that_asks_for_one_is_compared(dtype: str) -> None:
    inputs = (torch.randn(ROWS, WIDTH, requires_grad=True), torch.ones(1))
    assert checked(model=TwoInputs, mode="training", dtype=dtype, inputs=inputs).code == "pass"
    result = checked(
        model=TwoInputs, mode="training", dtype=dtype, inputs=inputs, compiled=adds_to_inputs(0.1)
    )
    assert result.code == "fail_accuracy"
    assert result.details["reason"].startswith("gradients_of_inputs.[0]: ")
    assert inputs[0].grad is None


class TwoInputs(Model):
    def forward(  # type: ignore[override]
        self, x: torch.Tensor, scale: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return super().forward(x * scale)


def test_complex_numbers_have_the_tolerance_and_keep_their_imaginary_part() -> None:
    assert checked(model=Complex, compiled=changed(lambda x: x * (1 + 1e-5j))).code == "pass"
    wrong = checked(model=Complex, compiled=changed(lambda x: x.real + 0j))
    assert wrong.code == "fail_accuracy"
    assert wrong.cosine is not None
    assert wrong.cosine < 0.9
    by_cosine = checked(model=Complex, cosine=True, compiled=changed(lambda x: x.real + 0j))
    assert by_cosine.code == "fail_accuracy"


def test_an_unsupported_backend_raises_instead_of_failing_accuracy() -> None:
    def refuses(_step: Step) -> StepFunction:
        raise TaskFailure("unsupported", "inference_only", "not in training")

    with pytest.raises(TaskFailure) as refused:
        checked(compiled=refuses)
    assert refused.value.code == "inference_only"


def test_large_models_are_compared_on_their_logits_in_float32() -> None:
    result = checked(model=Large, dtype="bfloat16")
    assert (result.code, result.details["reference"]) == ("pass", "float32")
    assert checked(model=Large).details["compared_by"] == "cosine"


def by_the_batch(_call: int, x: torch.Tensor) -> torch.Tensor:
    return x + x.mean() if len(x) > 2 else x


def small_batches_fail(_call: int, x: torch.Tensor) -> torch.Tensor:
    if len(x) <= 2:
        raise ValueError("too small")
    return x


@pytest.mark.parametrize(
    ("code", "act"),
    [
        ("pass", lambda _call, x: x.relu()),
        ("fail_batch_invariance_at_4", by_the_batch),
        ("fail_to_run_at_batch_2", small_batches_fail),
        ("fail_to_run", raising(ValueError("no"), 1)),
        ("OOM", raising(OOM, 3)),
    ],
)
def test_batch_invariance_has_the_harness_s_codes(code: str, act: Act) -> None:
    """Each row by itself, so that only what `act` does depends on the batch."""

    class Rows(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self._calls.count += 1
            assert self._act
            return {"logits": self._act(self._calls.count, x) * 2, "loss": x.mean()}

    result = checked(act, mode="training", knobs={"batch_invariant": True}, model=Rows)
    assert (result.code, result.status) == (code, STATUS_OF_CODE[code]), result.details


def test_batch_invariance_is_skipped_without_a_batch() -> None:
    assert checked(knobs={"batch_invariant": True}, batched=False).code == "pass_due_to_skip"


def test_timing_lets_attention_sum_in_its_own_type_as_the_harness_does() -> None:
    prepare_device(TaskSpec("huggingface", "BertForMaskedLM", "inference", "bfloat16", "inductor", "cpu"))
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
