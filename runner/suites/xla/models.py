"""The device and the models of the suite `xla`: small ones of our own, and those of other suites."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree

from runner.formats.readers.xla import ON_XLA, dynamo_backend
from runner.measure.state.device import SEED
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.model import Inputs, Loss, call, load
from runner.suites.xla import ORIGINS, batch_size_of

_LEARNING_RATE = 0.01


class Attention(nn.Module):
    """One transformer encoder layer and the mean over its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.head = nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


def _dummy() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32), nn.Softmax(dim=1)
    )


class Machine:
    """The device of a cell, used directly or through XLA."""

    def __init__(self, spec: TaskSpec) -> None:
        self._xla: Any = None
        self.device = torch.device(spec.device)
        if spec.backend in ON_XLA:
            for name in ("torch_xla.core.xla_model", "torch_xla.debug.metrics"):
                importlib.import_module(name)
            self._xla = importlib.import_module("torch_xla")
            self.device = self._xla.device()

    def seed(self) -> None:
        torch.manual_seed(SEED)
        if self._xla:
            self._xla.core.xla_model.set_rng_state(SEED, str(self.device))

    def launch(self) -> None:
        """Start the operations that lazy tensors have collected."""
        if self._xla:
            self._xla.sync()

    def wait(self) -> None:
        """Wait until the device has done everything that was started."""
        if self._xla:
            self._xla.core.xla_model.wait_device_ops()
        elif self.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def metrics(self) -> Any:
        """Return torch_xla.debug.metrics, which only an XLA device has."""
        return self._xla.debug.metrics


_OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # with the shape of one input
    "dummy": (_dummy, (32,)),
    "dummy_attention": (Attention, (64, 128)),
}


@dataclass
class Model:
    """A model on its device, its example inputs and, for training, its loss and its optimizer."""

    module: nn.Module
    inputs: Inputs
    loss: Loss
    optimizer: torch.optim.Optimizer | None

    def step(self, inputs: Inputs, *, full_output: bool = False) -> Any:
        """Run one iteration. In training return nothing, or with `full_output` the loss and every gradient,
        parameter and buffer."""
        if self.optimizer is None:
            return call(self.module, inputs)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(call(self.module, inputs))
        loss.backward()
        self.optimizer.step()
        if not full_output:
            return None
        parameters = dict(self.module.named_parameters())
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        return [loss, gradients, parameters, dict(self.module.named_buffers())]


def build(spec: TaskSpec, machine: Machine, dtype: torch.dtype) -> Model:
    """Build the task's model with the same weights and inputs on every device: they are made on the CPU in
    float32."""
    machine.seed()
    torch.manual_seed(SEED)
    training, batch = spec.mode == "training", batch_size_of(spec)
    inputs: Inputs
    if spec.case in _OWN:
        make, sample = _OWN[spec.case]
        module, inputs = make().train(training).to(dtype), (torch.randn(batch or 1, *sample).to(dtype),)
        loss: Loss = lambda output: output.float().mean()  # noqa: E731 - as the other branch has it
    else:
        knobs = {"batch_size": batch} if batch else {}
        built = load(replace(spec, suite=ORIGINS[spec.case], device="cpu", knobs=knobs), dtype=dtype)
        module, inputs, loss = built.module, built.inputs, built.loss
    module = module.to(machine.device)
    optimizer = torch.optim.Adam(module.parameters(), lr=_LEARNING_RATE) if training else None
    there = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(machine.device), inputs)
    return Model(module, there, loss, optimizer)


def compiled(step: Callable[..., Any], spec: TaskSpec) -> Callable[..., Any]:
    """Compile by the task's backend of dynamo, if it has one. As there, inductor has CUDA graphs on CUDA."""
    backend = dynamo_backend(spec.backend)
    if not backend:
        return step
    torch._dynamo.reset()
    inductor_config.triton.cudagraphs = spec.device == "cuda"
    return torch.compile(step, backend=backend, fullgraph=bool(spec.setting("single_graph")))
