"""Load the model of a case onto its device, with inputs, a loss and the rules of its accuracy."""

from __future__ import annotations

import gc
import importlib
import traceback
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.launch.failures import TaskFailure, failure_of
from runner.measure.state.device import SEED
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import rules
from runner.suites.torchdynamo.model.built_model import BuiltModel, Inputs, ModelRequest

_PACKAGES = ("transformers", "timm", "torchvision", "PIL")


@dataclass(kw_only=True)
class LoadedModel(BuiltModel):
    """A model ready to be stepped: cast to the dtype (amp: float32), in train() or eval()."""

    parameters: int
    accuracy: rules.AccuracyRules

    def inputs_at(self, batch_size: int) -> Inputs:
        """Return the inputs' first rows. Raise TaskFailure (unsupported) where they have no batch."""
        if not self.batched:
            raise TaskFailure("unsupported", "no_batch", "the inputs of this model have no batch dimension")

        def rows(value: Any) -> Any:
            has_batch = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == self.batch_size
            return fresh(value[:batch_size]) if has_batch else value

        return pytree.tree_map(rows, self.inputs)

    def copy(self) -> LoadedModel:
        """Copy the module and the inputs; no input of the copy has a gradient yet."""
        inputs = pytree.tree_map(fresh, self.inputs)
        return replace(self, module=deepcopy(self.module), inputs=inputs)

    def new_values(self) -> None:
        """Draw the inputs' numbers anew, in place; integers stay, as indices and lengths must."""
        with torch.no_grad():
            for value in _floats(self.inputs):
                value.normal_()

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the compiled batch size and, if it is smaller but at least 2, three quarters of it."""
        smaller = max(2, self.batch_size * 3 // 4)
        return (self.batch_size, smaller) if smaller < self.batch_size else (self.batch_size,)

    def batch_tensors(self, inputs: Inputs) -> list[torch.Tensor]:
        """Return the tensors of `inputs` whose first dimension is the batch."""
        tensors = [value for value in pytree.tree_leaves(inputs) if isinstance(value, torch.Tensor)]
        return [value for value in tensors if value.dim() > 0 and self.batched]


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
    )
    models = importlib.import_module(f"runner.suites.{spec.suite}.models")
    try:
        built: BuiltModel = models.build(spec.case, request)
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
    return LoadedModel(
        **{**vars(built), "module": module, "inputs": inputs},
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        accuracy=rules.accuracy_rules(spec),
    )


def _check_effects(spec: TaskSpec, built: BuiltModel, *, for_accuracy: bool) -> None:
    """Raise TaskFailure (unsupported) for a knob that would change nothing of this model."""
    asked = spec.knobs.get("batch_size", built.batch_size)
    if asked != built.batch_size and not for_accuracy:
        reason = f"{spec.case} has a batch of {built.batch_size} and takes no other"
        raise TaskFailure("unsupported", "fixed_batch_size", reason)
    if spec.knobs.get("channels_last"):
        tensors = [*built.module.parameters(), *_floats(built.inputs)]
        if all(tensor.dim() != 4 for tensor in tensors):
            reason = f"no weight and no input of {spec.case} has four dimensions to be channels last"
            raise TaskFailure("unsupported", "no_channels", reason)
    if spec.knobs.get("randomize_input") and not _floats(built.inputs):
        reason = f"the inputs of {spec.case} hold no floating-point numbers to draw anew"
        raise TaskFailure("unsupported", "no_numbers", reason)


def _floats(values: Any) -> list[torch.Tensor]:
    tensors = [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


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

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kept = layout if value.dim() == 4 and value.is_floating_point() else torch.preserve_format
        found = value.detach().to(dtype=_dtype_of(value, dtype), memory_format=kept)
        return found.requires_grad_(value.requires_grad)

    return pytree.tree_map(one, values)


def cast_module(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Cast in place. Unlike `module.to(dtype)`, keep the imaginary part of complex weights."""
    module._apply(lambda tensor: tensor.to(_dtype_of(tensor, dtype)))
    return module


def _dtype_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype a tensor is cast to: complex ones have no half to compute with, integers stay."""
    if tensor.is_complex():
        return torch.complex128 if dtype == torch.float64 else torch.complex64
    return dtype if tensor.is_floating_point() else tensor.dtype


def fresh(value: object) -> object:
    """Copy a tensor; the copy asks for a gradient where the original does, and has none yet."""
    if not isinstance(value, torch.Tensor):
        return value
    own = value.detach().clone(memory_format=torch.preserve_format)
    return own.requires_grad_(value.requires_grad)
