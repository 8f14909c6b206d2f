"""Time the runs of a cell, and collect the counts of runtime, compiler and profiler in each."""

import copy
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch._dynamo.utils import counters
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from runner.formats.readers.xla import ON_XLA
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.model import Inputs
from runner.suites.xla import models
from runner.suites.xla.models import Machine

_PROFILING = ("profile_cuda_cpu", "profile_cuda_cpu_individual_ops", "dump_pytorch_profiles")
_NAME = 120  # characters of a counter
Samples = dict[str, list[float]]


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return random numbers in its place; integers stay, as indices and lengths must."""
    return torch.randn_like(tensor) if tensor.is_floating_point() else tensor.clone()


class Timed:
    """The runs of one cell. `samples` has one value a repeat for each metric."""

    def __init__(self, spec: TaskSpec, artifacts: Path) -> None:
        self._setting = spec.setting
        self._on_xla, self._on_cuda = spec.backend in ON_XLA, spec.device == "cuda"
        self._artifacts = artifacts
        self.samples: Samples = {}
        self.iterations = cast("int", spec.setting("iterations_per_run"))
        self._machine = Machine(spec)
        self._training = spec.mode == "training"
        self._model = models.build(spec, self._machine, getattr(torch, spec.dtype))
        self._step = models.compiled(self._model.step, spec)

    def run(self, repeats: int, say: Callable[[int], None]) -> None:
        with torch.set_grad_enabled(self._training):
            for repeat in range(repeats):
                say(repeat)
                self._once(repeat)

    def _once(self, repeat: int) -> None:
        machine = self._machine
        machine.seed()
        if self._setting("randomize_input"):
            inputs = [
                pytree.tree_map_only(torch.Tensor, _other_values, self._model.inputs)
                for _ in range(self.iterations)
            ]
        else:
            inputs = [copy.deepcopy(self._model.inputs) for _ in range(self.iterations)]
        machine.seed()
        machine.launch()
        machine.wait()
        counters.clear()
        if self._on_xla:
            machine.metrics.clear_all()
        if any(self._setting(option) for option in _PROFILING):
            kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._on_cuda
            with profile(activities=kinds) as profiled:
                output = self._iterate(inputs)
            self._profile(profiled, repeat)
        else:
            output = self._iterate(inputs)
        self._count(repeat)
        if self._setting("save_output") and output is not None:
            on_cpu = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, output)
            torch.save(on_cpu, self._file("output", repeat, "pt"))

    def _iterate(self, inputs: list[Inputs]) -> Any:
        machine, full = self._machine, bool(self._setting("collect_full_output"))
        traced_s, output = 0.0, None
        started = time.perf_counter()
        for one in inputs:
            began = time.perf_counter()
            output = self._step(one, full_output=full)
            traced_s += time.perf_counter() - began
            machine.launch()
        machine.wait()
        total_s = time.perf_counter() - started
        self._add("total_time", total_s)
        self._add("per_iter_time", total_s / self.iterations)
        if self._on_xla:
            self._add("trace_total_time", traced_s)
            self._add("trace_per_iter_time", traced_s / self.iterations)
        return output

    def _count(self, repeat: int) -> None:
        if self._setting("dump_dynamo_counters"):
            self._keep("dynamo_counters", repeat, "json", json.dumps(counters))
        if self._setting("collect_dynamo_counters"):
            # A graph break's name is the first line of its reason: the rest names files. Equal ones add up.
            found: Counter[str] = Counter()
            for group, counts in counters.items():
                for name, count in counts.items():
                    line = next(iter(str(name).splitlines()), "")
                    found[f"dynamo_counters.{group}.{line[:_NAME]}"] += count
            for name, count in found.items():
                self._add(name, float(count))
        if not self._on_xla:
            return
        if self._setting("dump_pytorch_xla_metrics"):
            self._keep("xla_metrics", repeat, "txt", self._machine.metrics.metrics_report())
        for name in ("CompileTime", "ExecuteTime"):
            number, total_ns, _samples = self._machine.metrics.metric_data(name) or (0, 0, [])
            self._add(f"xla_{name}_time_s", total_ns * 1e-9)
            self._add(f"xla_{name}_number", float(number))

    def _profile(self, profiled: profile, repeat: int) -> None:
        events = profiled.key_averages()
        if self._setting("profile_cuda_cpu"):
            self._total("cpu", sum(event.self_cpu_time_total for event in events))
            if self._on_cuda:
                on_cuda = [event for event in events if event.device_type == DeviceType.CUDA]
                self._total("cuda", sum(event.self_device_time_total for event in on_cuda))
        if self._setting("profile_cuda_cpu_individual_ops"):
            self._operators(events)
        if self._setting("dump_pytorch_profiles"):
            profiled.export_chrome_trace(str(self._file("trace", repeat, "json")))
            self._keep("profile", repeat, "txt", events.table(sort_by="cpu_time_total", row_limit=500))

    def _total(self, device: str, time_us: float) -> None:
        self._add(f"total_{device}_time_s", time_us * 1e-6)
        self._add(f"per_iter_{device}_time_s", time_us * 1e-6 / self.iterations)

    def _operators(self, events: Any) -> None:
        """Add the times of each aten operator; on XLA of those that it had to leave to the CPU."""
        unlowered = set(self._machine.metrics.executed_fallback_ops()) if self._on_xla else None
        kind = "inductor_ops" if unlowered is None else "xla_unlowered_ops"
        for event in events:
            if event.key in unlowered if unlowered is not None else "aten::" in event.key:
                name = f"{kind}.{event.key}"
                self._add(f"{name}.self_cpu_time_s", event.self_cpu_time_total * 1e-6)
                self._add(f"{name}.total_cpu_time_s", event.cpu_time_total * 1e-6)
                if self._on_cuda:
                    self._add(f"{name}.self_cuda_time_s", event.self_device_time_total * 1e-6)
                    self._add(f"{name}.total_cuda_time_s", event.device_time_total * 1e-6)
                self._add(f"{name}.num_of_calls", float(event.count))

    def _add(self, metric: str, value: float) -> None:
        self.samples.setdefault(metric, []).append(value)

    def _keep(self, kind: str, repeat: int, ending: str, text: str) -> None:
        self._file(kind, repeat, ending).write_text(text)

    def _file(self, kind: str, repeat: int, ending: str) -> Path:
        folder = self._artifacts / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{repeat}.{ending}"
