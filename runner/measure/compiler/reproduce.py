"""Write what torch.compile captures of a task as one file that runs with torch alone.

`python -m runner.measure.compiler.reproduce TASK` (in JSON) prints that file, in JSON.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

import torch
from torch._dynamo.debug_utils import NNModuleToString
from torch._dynamo.repro import after_dynamo
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from runner.formats.torch_trace.compile_notes import plain
from runner.launch.failures import TaskFailure, failure_of
from runner.schema.suite import TaskSpec
from runner.suites import suite_of

_FILE = '''"""{command}

What torch {version} captured of it: {count}. Weights and inputs are random, with the mean, spread and
range of those of the model. It runs with torch alone, eager and compiled in turn. The error is relative; of
a graph that draws random numbers, such as dropout, it means nothing.
"""
import time

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import device, inf, nan, tensor
from torch.nn import *
from torch.utils._pytree import tree_leaves

{settings}
BACKEND, OPTIONS, DYNAMIC = {backend!r}, {options!r}, {dynamic!r}
GRAPHS = []


def random(size, stride, dtype, place, low, high, mean, std, grad):
    value = torch.empty_strided(size, stride, dtype=dtype, device=place)
    flat = torch.empty(0, dtype=dtype, device=place).set_(value.untyped_storage())
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.randn(len(flat), device=place) * std + mean
        flat.copy_(drawn.clamp(low, high))
    else:
        flat.random_(int(low), int(high) + 1)
    return value.requires_grad_(grad)


def call(function, inputs):
    """Return the results with the gradients, and the milliseconds."""
    torch.compiler.cudagraph_mark_step_begin()
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    for value in tensors:
        value.grad = None
    wait = torch.cuda.synchronize if any(value.is_cuda for value in tensors) else lambda: None
    wait()
    started = time.perf_counter()
    results = [value for value in tree_leaves(function(*inputs)) if isinstance(value, torch.Tensor)]
    losses = [value.float().mean() for value in results if value.requires_grad]
    if losses:
        sum(losses).backward()
    wait()
    time_ms = (time.perf_counter() - started) * 1e3
    grads = [value.grad for value in tensors if value.grad is not None]
    return [value.detach() for value in (*results, *grads)], time_ms


def main():
    for number, (make, grad) in enumerate(GRAPHS):
        torch.set_grad_enabled(grad)
        module, inputs = make()
        settings = {{"options": OPTIONS}} if OPTIONS else {{}}
        compiled = torch.compile(module, backend=BACKEND, dynamic=DYNAMIC, **settings)
        results = []
        for function in (module, compiled):
            torch.manual_seed(0)
            results.append([value.double() for value in call(function, make()[1])[0]])
        pairs = zip(*results, strict=True)
        error = max((float((b - a).norm() / (a.norm() or 1)) for a, b in pairs if a.numel()), default=0.0)
        times_ms = [[], []]
        for _ in range(30):
            for side, function in enumerate((module, compiled)):
                times_ms[side].append(call(function, inputs)[1])
        eager_ms, compiled_ms = (sorted(times)[len(times) // 2] for times in times_ms)
        times = f"eager {{eager_ms:.4f}} ms, compiled {{compiled_ms:.4f}} ms"
        print(f"graph {{number}}: {{times}}, error {{error:.3g}}")

{graphs}

if __name__ == "__main__":
    main()
'''


class Capture:
    """Stands in for the backends of torch.compile: notes each graph, and runs it eagerly."""

    def __init__(self) -> None:
        self.graphs: list[str] = []
        self.backend = "inductor"
        self.options: dict[str, Any] = {}

    def wrap(self, compiler: Any, name: str | None) -> Callable[..., Any]:
        self.backend, self.options = name or self.backend, dict(getattr(compiler, "config", {}))

        def compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any], **_how: Any) -> Any:
            self.graphs.append(_graph(module, inputs, len(self.graphs)))
            return module.forward

        return compile_graph

    def file(self, spec: TaskSpec) -> str:
        configs = (torch._dynamo.config, torch._inductor.config)
        lines = "\n".join(config.codegen_config() for config in configs).splitlines()
        precision = f"torch.set_float32_matmul_precision({torch.get_float32_matmul_precision()!r})"
        return _FILE.format(
            command=spec.command(),
            version=torch.__version__,
            count="1 graph" if len(self.graphs) == 1 else f"{len(self.graphs)} graphs",
            settings="\n".join([*(line for line in lines if "_dir" not in line), precision]),  # no folders
            backend=self.backend,
            options=self.options,
            dynamic=True if spec.dynamic else None,
            graphs="\n".join(self.graphs),
        )


def _graph(module: torch.fx.GraphModule, inputs: Sequence[Any], number: int) -> str:
    imports = _format_import_block(module.graph.python_code("self").globals, sys_importer)
    values = "".join(f"    {_input(value)},\n" for value in inputs)
    code = NNModuleToString.convert(module).replace("from torch.nn import *", imports)
    body = f"{code}\nreturn Repro(), [\n{values}]"
    return (
        f"\ndef graph_{number}():\n{indent(body, '    ')}\n\n\n"
        f"GRAPHS.append((graph_{number}, {torch.is_grad_enabled()}))\n"
    )


def _input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(int(value))
    numbers = value.detach() if value.numel() else value.new_zeros(1)
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers)
    rounded = numbers.float()
    exact = rounded if numbers.is_floating_point() else numbers
    found = (exact.min(), exact.max(), rounded.mean(), rounded.std(correction=0))
    low, high, mean, std = (float(f"{float(number):.9g}") for number in found)
    form = tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device)
    return f"random{(*form, low, high, mean, std, value.requires_grad)}"


def reproduced(spec: TaskSpec) -> str:
    """Return the file of a task. Raise TaskFailure where torch.compile captures nothing of it."""
    compile_all = getattr(importlib.import_module(suite_of(spec.suite).module), "compile_all", None)
    capture, failure = Capture(), None
    after_dynamo.wrap_backend_debug = capture.wrap
    try:
        if compile_all:
            compile_all(spec)
    except Exception as error:  # noqa: BLE001 - what was captured before it may be what fails
        failure = failure_of(error)
    if not capture.graphs:
        raise failure or TaskFailure(
            "unsupported", "no_graph", "torch.compile captures no graph of this task"
        )
    return capture.file(spec)


if __name__ == "__main__":
    try:
        answer = reproduced(TaskSpec.from_json(json.loads(sys.argv[1])))
    except TaskFailure as error:
        sys.exit(plain(str(error)))
    sys.stdout.write(f"\n{json.dumps({'file': answer})}\n")
