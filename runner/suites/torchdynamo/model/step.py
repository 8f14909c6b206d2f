"""One step of a model as the harness compiles it: a forward pass, or a whole training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import rules
from runner.suites.torchdynamo.model.built_model import Inputs
from runner.suites.torchdynamo.model.loaded_model import LoadedModel

_LEARNING_RATE = 0.01

StepFunction = Callable[[Inputs], Any]


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
        """Return the step with `forward` in the module's place: the module compiled alone, or exported."""
        autocast, loss_of_output, optimizer = self.autocast, self._loss, self.optimizer
        zero_grad = self._zero_grad

        def infer(inputs: Inputs) -> Any:
            with torch.no_grad(), autocast():
                return _call(forward, inputs)

        def train(inputs: Inputs) -> torch.Tensor:
            zero_grad()
            with autocast():
                loss = loss_of_output(_call(forward, inputs))
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


def _call(forward: Callable[..., Any], inputs: Inputs) -> Any:
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
