"""Write what torch.compile captures of a task as one file that runs with torch alone.

`python -m runner.measure.compiler.reproduce TASK` (in JSON) prints that file, in JSON.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
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

_FILE = Template(Path(__file__).with_name("reproduce.txt").read_text())


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
        return _FILE.substitute(
            command=spec.command(),
            version=torch.__version__,
            count="1 graph" if len(self.graphs) == 1 else f"{len(self.graphs)} graphs",
            settings="\n".join([*(line for line in lines if "_dir" not in line), precision]),  # no folders
            backend=repr(self.backend),
            options=repr(self.options),
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
    static = isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    return f"random{(*form, low, high, mean, std, value.requires_grad, static)}"


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
