"""The models of the harness's suites: as a suite builds one, as it is loaded onto its device, and one step of
it as the harness compiles it.
"""

from __future__ import annotations

import gc
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.launch.failures import TaskFailure, failure_of
from runner.measure.state.device import SEED
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import rules

Loss = Callable[[Any], torch.Tensor]  # of the module's output
Inputs = dict[str, Any] | tuple[Any, ...]
StepFunction = Callable[[Inputs], Any]
_OPERATORS = ("nms", "qnms")  # of torchvision
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library's declarations end with the object
_PACKAGES = ("transformers", "timm", "torchvision", "PIL")
_LEARNING_RATE = 0.01


@dataclass(frozen=True)
class ModelRequest:
    """The size and mode of a case's model. Without `dropout` every probability is 0, as for accuracy."""

    device: str
    batch_size: int | None
    tiny: bool = False
    training: bool = False
    dropout: bool = True
    checkpointing: bool = False  # of activations
    real_weights: bool = False


@dataclass
class LoadedModel:
    """A model on its device: as its suite builds it in float32; loaded, cast to the dtype (amp: float32) and
    in train() or eval(). `loss` is the suite's own, of the module's output.

    `batched` says that the first dimension of the inputs is the batch and may have another size.
    """

    module: torch.nn.Module
    inputs: Inputs
    loss: Loss
    batch_size: int
    size_note: str = ""  # how a reduced model differs from the real one; '' for the real one
    batched: bool = True
    tokens: int = 0  # that a language model reads or writes in one call
    answers_prompt: bool = False  # its call ends with the first token of an answer

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def inputs_at(self, batch_size: int) -> Inputs:
        """Return the inputs' first rows. Raise TaskFailure (unsupported) where they have no batch."""
        if not self.batched:
            raise TaskFailure("unsupported", "no_batch", "the inputs of this model have no batch dimension")

        def rows(tensor: torch.Tensor) -> torch.Tensor:
            has_batch = tensor.dim() > 0 and len(tensor) == self.batch_size
            return _fresh(tensor[:batch_size]) if has_batch else tensor

        return pytree.tree_map_only(torch.Tensor, rows, self.inputs)

    def copy(self) -> LoadedModel:
        """Copy the module and the inputs; no input of the copy has a gradient yet."""
        inputs = pytree.tree_map_only(torch.Tensor, _fresh, self.inputs)
        return replace(self, module=deepcopy(self.module), inputs=inputs)

    def new_values(self) -> None:
        """Draw the inputs' numbers anew, in place; integers stay, as indices and lengths must."""
        with torch.no_grad():
            for value in floats_in(self.inputs):
                value.normal_()

    def smaller_batch(self) -> int:
        """Return three quarters of the batch size, at least 2, or the batch size if that is not smaller."""
        return min(self.batch_size, max(2, self.batch_size * 3 // 4))

    def batch_tensors(self) -> list[torch.Tensor]:
        """Return the inputs whose first dimension is the batch."""
        return [value for value in tensors_in(self.inputs) if value.dim() > 0 and self.batched]


class Called(torch.nn.Module):
    """A function, or a module, as a module without parameters of its own."""

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)


def without_dropout(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0


def mean_of(output: Any) -> torch.Tensor:
    """Return the harness's loss where it takes none of the model: the mean of the tensors' means."""
    if isinstance(output, torch.Tensor):
        return output.sum() / output.numel()
    parts = list(output.values()) if isinstance(output, dict) else list(output)
    total: Any = sum(mean_of(part) for part in parts)
    return total / len(parts)


@contextmanager
def fetching(source: str) -> Iterator[None]:
    """Name what to fetch where the network, or the machine's own copy, has it not."""
    try:
        yield
    except OSError as error:
        reason = f"it is not on this machine and cannot be fetched: {source}"
        raise TaskFailure("unsupported", "not_downloaded", reason) from error


def torchvision() -> Any:
    """Import torchvision. Beside a torch for CPUs the import of its CUDA build fails for missing operators.

    Declared without an implementation, they let the models, which use none, be built.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(name + _SCHEMA)
    _declared.append(library)
    return importlib.import_module("torchvision")


def dtype_of(spec: TaskSpec) -> torch.dtype:
    """Return the dtype of weights and inputs; under autocast, which takes the half, float32."""
    return torch.float32 if spec.dtype == "amp" else getattr(torch, spec.dtype)


def load(spec: TaskSpec, *, for_accuracy: bool = False, dtype: torch.dtype | None = None) -> LoadedModel:
    """Build the case's model on its device, always with the same weights and inputs.

    `for_accuracy` takes the small batch of the check and no dropout. Raise TaskFailure: unsupported where a
    package is missing, the case has no such mode or a knob would change nothing of the model, oom, else
    failed with the code model_fail_to_load.
    """
    torch.manual_seed(SEED)
    request = ModelRequest(
        device=spec.device,
        batch_size=rules.batch_size_of(spec, for_accuracy=for_accuracy),
        tiny=spec.knobs.get("size") == "tiny",
        training=spec.mode == "training",
        dropout=not for_accuracy,
        checkpointing=bool(spec.knobs.get("enable_activation_checkpointing")),
        real_weights=spec.knobs.get("weights") == "real",
    )
    if request.real_weights and request.tiny:
        raise TaskFailure("unsupported", "no_weights", "a reduced model has random weights")
    models = importlib.import_module(f"runner.suites.{spec.suite}.models")
    try:
        built: LoadedModel = models.build(spec.case, request)
    except Exception as error:
        raise _load_failure(spec, error) from error
    _check_effects(spec, built, for_accuracy=for_accuracy)
    module = built.module.train(rules.trains(spec, for_accuracy=for_accuracy))
    kind = dtype or dtype_of(spec)
    layout = torch.channels_last if spec.knobs.get("channels_last") else torch.preserve_format
    module = cast_module(module.to(memory_format=layout), kind)
    inputs = cast(built.inputs, kind, layout)
    if spec.device == "cuda":
        gc.collect()  # what the making of the model left, before anyone counts memory
    return replace(built, module=module, inputs=inputs)


def _check_effects(spec: TaskSpec, built: LoadedModel, *, for_accuracy: bool) -> None:
    """Raise TaskFailure (unsupported) for a knob that would change nothing of this model."""
    asked = spec.knobs.get("batch_size", built.batch_size)
    if asked != built.batch_size and not for_accuracy:
        reason = f"{spec.case} has a batch of {built.batch_size} and takes no other"
        raise TaskFailure("unsupported", "fixed_batch_size", reason)
    if spec.knobs.get("channels_last"):
        tensors = [*built.module.parameters(), *floats_in(built.inputs)]
        if all(tensor.dim() != 4 for tensor in tensors):
            reason = f"no weight and no input of {spec.case} has four dimensions to be channels last"
            raise TaskFailure("unsupported", "no_channels", reason)
    if spec.knobs.get("randomize_input") and not floats_in(built.inputs):
        reason = f"the inputs of {spec.case} hold no floating-point numbers to draw anew"
        raise TaskFailure("unsupported", "no_numbers", reason)


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def floats_in(values: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(values) if tensor.is_floating_point()]


def _load_failure(spec: TaskSpec, error: Exception) -> TaskFailure:
    failure = failure_of(error)
    if isinstance(error, TaskFailure) or failure.status in ("oom", "crashed"):
        return failure
    if isinstance(error, NotImplementedError):
        return TaskFailure("unsupported", "not_implemented", failure.reason)
    package = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _PACKAGES:
        reason = f"suite {spec.suite} needs the package {package}, which this interpreter has not"
        return TaskFailure("unsupported", "not_installed", reason)
    traceback.print_exc()
    return TaskFailure("failed", "model_fail_to_load", failure.reason)


def cast(values: Any, dtype: torch.dtype, layout: torch.memory_format = torch.preserve_format) -> Any:
    """Return the same structure with its floating-point tensors in another dtype.

    `layout` is the memory format of 4-dimensional tensors. A tensor that asks for a gradient gets its own.
    """

    def one(tensor: torch.Tensor) -> torch.Tensor:
        kept = layout if tensor.dim() == 4 and tensor.is_floating_point() else torch.preserve_format
        found = tensor.detach().to(dtype=_dtype_of(tensor, dtype), memory_format=kept)
        return found.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, one, values)


def cast_module(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Cast in place. Unlike `module.to(dtype)`, keep the imaginary part of complex weights."""
    module._apply(lambda tensor: tensor.to(_dtype_of(tensor, dtype)))
    return module


def _dtype_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype a tensor is cast to: complex ones have no half to compute with, integers stay."""
    if tensor.is_complex():
        return torch.complex128 if dtype == torch.float64 else torch.complex64
    return dtype if tensor.is_floating_point() else tensor.dtype


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor; the copy asks for a gradient where the original does, and has none yet."""
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)


class Step:
    """`function(inputs)` is the step: what is compiled, and what eager mode runs.

    Inference: the forward pass under no_grad and autocast; its result is the module's output. Training:
    gradients set to None, forward and loss under autocast, backward, optimizer step; its result is the loss.
    Inputs are not cloned inside the step. A compiled inference step is called under `torch.no_grad()`, since
    freezing asks for it.
    """

    def __init__(self, model: LoadedModel, spec: TaskSpec, *, for_accuracy: bool = False) -> None:
        self.module = model.module
        self.training = spec.mode == "training"
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if spec.dtype == "amp":
            half = getattr(torch, str(spec.knobs.get("amp_dtype")), None)  # None: torch chooses
            self.autocast = lambda: torch.autocast(spec.device, dtype=half)
        self.optimizer: torch.optim.Optimizer | None = None
        if self.training:
            name = rules.optimizer_of(spec, for_accuracy=for_accuracy)
            self.optimizer = _optimizer(name, self.module, spec.device)
        self._loss = model.loss
        self._weights: list[torch.Tensor] = []
        self._saved: list[torch.Tensor] = []
        self.function = self.calling(self.module)

    def calling(self, forward: Callable[..., Any]) -> StepFunction:
        """Return the step with `forward` in the module's place: the module compiled alone, or exported.

        The step calls it itself, as the harness's does: a graph break counts once for each frame around it.
        """
        autocast, loss_of_output, optimizer = self.autocast, self._loss, self.optimizer
        zero_grad = self._zero_grad

        def infer(inputs: Inputs) -> Any:
            with torch.no_grad(), autocast():
                return forward(**inputs) if isinstance(inputs, dict) else forward(*inputs)

        def train(inputs: Inputs) -> torch.Tensor:
            zero_grad()
            with autocast():
                output = forward(**inputs) if isinstance(inputs, dict) else forward(*inputs)
                loss = loss_of_output(output)
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            return loss.detach()

        return train if self.training else infer

    def begin(self) -> None:
        """Drop gradients and free CUDA graphs' memory. Call it before each step, off the clock."""
        if self.training:
            self.module.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()

    def remember(self) -> None:
        """Copy weights and buffers for `restore`; a step of inference changes none."""
        if self.training:
            self._weights = [*self.module.parameters(), *self.module.buffers()]
            self._saved = [tensor.detach().clone() for tensor in self._weights]

    def restore(self) -> None:
        """Put weights, buffers and the optimizer's state back in place, as `remember` found them."""
        if not self.training:
            return
        with torch.no_grad():
            for tensor, saved in zip(self._weights, self._saved, strict=True):
                tensor.copy_(saved)
            for state in self.optimizer.state.values() if self.optimizer else ():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()  # every state of Adam begins with 0; SGD without momentum has none

    def outputs_for_comparison(self, result: Any, inputs: Inputs) -> Any:
        """Return what accuracy compares: the output, or loss, gradients (None is 0), parameters and buffers.

        The gradients of inputs add up over all steps: nothing resets them.
        """
        if not self.training:
            return result
        parameters = dict(self.module.named_parameters())
        asking = {
            pytree.keystr(path): value
            for path, value in pytree.tree_flatten_with_path(inputs)[0]
            if isinstance(value, torch.Tensor) and value.requires_grad
        }
        return {
            "loss": result,
            "gradients": _gradients(parameters),
            "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
            "buffers": dict(self.module.named_buffers()),
            "gradients_of_inputs": _gradients(asking),
        }

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _zero_grad(self) -> None:
        self.module.zero_grad(set_to_none=True)


def _gradients(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for name, tensor in tensors.items()
    }


def call(forward: Callable[..., Any], inputs: Inputs) -> Any:
    return forward(**inputs) if isinstance(inputs, dict) else forward(*inputs)


def _optimizer(name: str, module: torch.nn.Module, device: str) -> torch.optim.Optimizer | None:
    """Return the harness's optimizer. SGD's step, one multi-tensor addition, is not compiled."""
    if name == "none":
        return None
    if name == "sgd":
        sgd = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE, foreach=True)
        sgd.step = torch._dynamo.disable(sgd.step)
        return sgd
    # Where the step counts on the host, every step would be a graph of its own.
    return torch.optim.Adam(module.parameters(), lr=_LEARNING_RATE, capturable=device == "cuda", foreach=True)
