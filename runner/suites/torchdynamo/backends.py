"""Compile a step by the backend that a task names.

Settings are made for the whole process, as the harness makes them: a stage is a process of its own.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config, list_mode_options
from torch.nn import Module

from runner.formats.torchdynamo.names import Backend, backend_of
from runner.launch.failures import TaskFailure
from runner.measure.compiler.inductor_options import candidate_options, check_option
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import rules
from runner.suites.torchdynamo.model import Called, LoadedModel, Step, StepFunction

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


class Compiler:
    """Compiles functions and steps by a task's backend.

    Creating one changes settings of dynamo and inductor. Raises TaskFailure (unsupported) for a backend, an
    option or a combination that this torch does not have.
    """

    def __init__(self, spec: TaskSpec) -> None:
        self.backend: Backend = backend_of(spec)
        self._spec = spec
        if self._exports and spec.dynamic:
            raise TaskFailure("unsupported", "static_export", "exporters are measured with static shapes")
        if (self._exports or self.backend.freezing) and spec.mode == "training":
            reason = "exporters and freezing take the forward pass alone"
            raise TaskFailure("unsupported", "inference_only", reason)
        known = torch._dynamo.list_backends(exclude_tags=())
        if not self._exports and self.backend.dynamo not in known:
            reason = f"torch {torch.__version__} has no backend {self.backend.dynamo!r}; it has {known}"
            raise TaskFailure("unsupported", "no_such_backend", reason)
        dynamo = torch._dynamo.config
        dynamo.suppress_errors = bool(spec.knobs.get("suppress_errors"))
        dynamo.specialize_int = bool(spec.knobs.get("specialize_int"))
        if spec.knobs.get("compiled_autograd"):
            dynamo.compiled_autograd = True
        if spec.dynamic and spec.knobs.get("dynamic_dimensions") == "all":
            dynamo.assume_static_by_default = False
        if self.backend.is_inductor:
            _set_inductor(self.backend, spec)

    @property
    def _exports(self) -> bool:
        return self.backend.export != "none"

    def function(self, function: Function) -> Function:
        """Compile any function; return it as it is where the backend is an exporter."""
        if self._exports:
            return function
        whole_graph = bool(self._spec.knobs.get("nopython"))
        return torch.compile(function, backend=self.backend.dynamo, fullgraph=whole_graph)

    def step(self, step: Step) -> StepFunction:
        """Return the step compiled as a whole, or with the model exported."""
        if self._exports:
            return step.calling(_exported(self.backend.export, step.module))
        return self.function(step.function)

    def mark_dynamic(self, model: LoadedModel) -> None:
        """Mark the batch of the inputs as dynamic where the task asks for that."""
        if not self._spec.dynamic or self._spec.knobs.get("dynamic_dimensions") == "all":
            return
        if model.batch_size < 2:
            raise TaskFailure("unsupported", "batch_of_one", "a batch of 1 is a shape of its own to dynamo")
        tensors = model.batch_tensors()
        if not tensors:
            raise TaskFailure("unsupported", "no_batch", "no input has the batch as its first dimension")
        for tensor in tensors:
            if self._spec.knobs.get("unbacked_batch_only"):
                torch._dynamo.decorators.mark_unbacked(tensor, 0)
            else:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _set_inductor(backend: Backend, spec: TaskSpec) -> None:
    options: dict[str, Any] = {}
    if backend.compile_mode != "default":
        options |= list_mode_options(backend.compile_mode, None)
    if rules.has(spec, "emulate_casts"):  # fused ones grow in its very small gradients
        options["emulate_precision_casts"] = True
    options |= backend.options
    threads = spec.knobs.get("threads")
    if threads:
        options["cpp.threads"] = threads
    options |= candidate_options()
    for path, value in options.items():
        check_option(path)
        setattr(config, path, value)


def _exported(exporter: str, module: Module) -> Function:
    """Return a stand-in for a model; its first call exports it."""
    exported: list[Function] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not exported:
            exported.append(_EXPORTERS[exporter](module, args, kwargs))
        return exported[0](*args, **kwargs)

    return call


def _aot_inductor(module: Module, args: Arguments, kwargs: Keywords) -> Function:
    program = torch.export.export(module, args, dict(kwargs), strict=False)
    path = str(Path(tempfile.mkdtemp()) / "model.pt2")
    package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(package)


def _aot_precompile(module: Module, args: Arguments, kwargs: Keywords) -> Function:
    if not hasattr(torch._dynamo.config, "enable_aot_compile"):
        raise TaskFailure("unsupported", "no_aot_precompile", f"torch {torch.__version__} has no aot_compile")
    options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
    model = Called(module)  # torch's own classes are compiled into functions that do not take `self`
    with torch._dynamo.config.patch("enable_aot_compile", True):
        compiled = torch.compile(model, fullgraph=True, options=options).forward.aot_compile(
            (args, dict(kwargs))
        )
    return lambda *args, **kwargs: compiled(model, *args, **kwargs)


_EXPORTERS: dict[str, Callable[[Module, Arguments, Keywords], Function]] = {
    "aot_inductor": _aot_inductor,
    "export": lambda module, args, kwargs: torch.export.export(
        module, args, dict(kwargs), strict=True
    ).module(),
    "aot_precompile": _aot_precompile,
}
