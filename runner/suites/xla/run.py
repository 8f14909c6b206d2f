"""Run one cell of PyTorch/XLA's experiment matrix.

The timed runs are as in its own runner: no warm-up, the first repeat holds the compilation, every repeat is a
sample. Unlike there, one task both verifies and measures, in two stages. Verification is by its procedure and
with its codes.
"""

import copy
import dataclasses
import importlib.util
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters, same
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from runner.formats.metric_values import VERIFIER_CODES
from runner.formats.readers.xla import ON_XLA
from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.forked import run_stage
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import host_state, prepare, warning
from runner.schema.records import NO_WARNING, Json, MeasurementWarning
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.model import Inputs
from runner.suites.xla import METRICS, SUITE, models
from runner.suites.xla.models import Machine, compiled

_VERIFY_SHARE = 0.4  # of the time limit
_HLO, _IR = "hlo", "ir"  # kinds of artifacts that XLA itself writes
_PROFILING = ("profile_cuda_cpu", "profile_cuda_cpu_individual_ops", "dump_pytorch_profiles")
_NAME = 120  # characters of a counter
_CLOCK = "host clock around all iterations, the first run with compilation"
TOLERANCE = {("cuda", "training"): 1e-3, ("cpu", "inference"): 1e-2, ("cuda", "inference"): 1e-2}
_OTHER_TOLERANCE = 1e-4
_CHECK_STATUSES = {"ok": "passed", "wrong": "failed", "cannot_tell": "cannot_tell"}
Samples = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Verification:
    """`code` is PyTorch/XLA's word; `requested` and `reason` say which of its meanings holds."""

    code: str
    reason: str = ""
    requested: bool = True

    @property
    def status(self) -> str:
        return VERIFIER_CODES[self.code]

    def facts(self) -> dict[str, Json]:
        check_status = _CHECK_STATUSES.get(self.status, "not_run")
        facts = {"check_requested": self.requested, "check_status": check_status}
        return {**facts, "reason": self.reason} if self.reason else facts


NOT_ASKED = Verification("VERIFIER_SKIPPED", "--verify was not given", requested=False)


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Verify if asked, measure, record. A wrong result withholds the times. Return the failure, if any."""
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process: stages are forked from it
    checked = NOT_ASKED
    try:
        if spec.setting("verify"):
            report.event("accuracy", 0, 2, spec.case)
            checked = _stage(spec, report, "verify")
        report.event("measure", 1, 2, spec.case)
        before = host_state(spec.device)
        samples = _stage(spec, report, "measure")
        disturbed = warning([before, host_state(spec.device)])
    except Exception as error:  # noqa: BLE001 - a cell that fails is a row too
        failure = failure_of(error)
        if spec.setting("verify") and checked is NOT_ASKED:
            skipped = failure.status == "unsupported"
            checked = Verification("VERIFIER_SKIPPED" if skipped else "VERIFIER_DIDNT_RUN", str(failure))
        return record(spec, report, checked, {}, failure=failure)
    report.event("finished", 2, 2)
    return record(spec, report, checked, samples, warning=disturbed)


def _stage(spec: TaskSpec, report: Report, name: str) -> Any:
    artifacts = report.folder / "artifacts"
    measures = name == "measure"
    share = 1 - _VERIFY_SHARE if measures else _VERIFY_SHARE

    def work() -> Verification | Samples:
        prepare(spec.device)
        torch.set_float32_matmul_precision(str(spec.setting("matmul_precision") or "high"))  # its runner's
        return Timed(spec, report).run() if measures else verify(spec)

    try:
        return run_stage(
            name,
            work,
            folder=report.folder,
            variables=_variables(spec, artifacts, dumps=measures),
            timeout_s=spec.timeout_s * share,
        )
    finally:
        # of XLA's dump only the texts: object files and LLVM's own are many times as large
        for path in (artifacts / _HLO).glob("*"):
            if path.suffix != ".txt" or "buffer-assignment" in path.name or "memory-usage" in path.name:
                path.unlink()


def _variables(spec: TaskSpec, artifacts: Path, *, dumps: bool) -> dict[str, str]:
    """Return the environment variables that must be set before torch_xla is imported; with `dumps` also those
    that make XLA keep its HLO and IR. Raise TaskFailure (unsupported) if it is not installed."""
    if spec.backend not in ON_XLA:
        return {}
    if importlib.util.find_spec("torch_xla") is None:
        reason = f"torch_xla is not installed beside torch {torch.__version__}"
        raise TaskFailure("unsupported", "no_torch_xla", f"{reason}: take an interpreter that has it")
    functional = spec.setting("enable_functionalization")
    variables = {
        "PJRT_DEVICE": spec.device.upper(),
        "XLA_DISABLE_FUNCTIONALIZATION": "0" if functional else "1",
    }
    flags = [os.environ.get("XLA_FLAGS", ""), str(spec.setting("xla_flags") or "")]
    if dumps and spec.setting("dump_hlo"):
        (artifacts / _HLO).mkdir(parents=True, exist_ok=True)
        flags.append(f"--xla_dump_to={artifacts / _HLO}")
    variables["XLA_FLAGS"] = " ".join(filter(None, flags))
    if dumps and (form := spec.setting("save_ir_format")):
        (artifacts / _IR).mkdir(parents=True, exist_ok=True)
        variables["XLA_SAVE_TENSORS_FMT"] = str(form)
        variables["XLA_SAVE_TENSORS_FILE"] = str(artifacts / _IR / f"ir.{form}")
    return variables


def verify(spec: TaskSpec) -> Verification:
    """Run eager twice without XLA, eager in float64, then the cell itself, each from the same weights."""
    Machine(spec)  # autograd counts the devices at a process's first backward pass: XLA's has to be there
    plain = dataclasses.replace(spec, backend="eager")
    dtype = getattr(torch, spec.dtype)
    try:
        first, second = (_outputs(plain, dtype) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - whatever eager raises is the answer
        return Verification("EAGER_FAILED", str(failure_of(error)))
    if not _same(first, second, tolerance=0.0):
        return Verification("NONDETERMINISTIC_EAGER_RUN", "two eager runs from the same seed differ")
    try:
        exact = _outputs(plain, torch.float64)
    except Exception:  # noqa: BLE001 - then results are compared by their cosine, as there
        exact = None
    try:
        result = _outputs(spec, dtype)
        tolerance = TOLERANCE.get((spec.device, spec.mode), _OTHER_TOLERANCE)
        good = _same(first, result, exact=exact, tolerance=tolerance)
    except Exception as error:  # noqa: BLE001 - so does PyTorch/XLA
        return Verification("EXCEPTION_RAISED", str(failure_of(error)))
    if good:
        return Verification("PASS")
    reason = f"differs from eager by more than its rounding explains (tolerance {tolerance:g})"
    return Verification("FAIL", reason)


def _outputs(spec: TaskSpec, dtype: torch.dtype) -> Any:
    """Return the output of the last step, on the CPU; in training the model's whole state."""
    machine = Machine(spec)
    model = models.build(spec, machine, dtype)
    step = compiled(model.step, spec)
    inputs = copy.deepcopy(model.inputs)
    steps = spec.number("verify_iterations")
    output = None
    with torch.set_grad_enabled(spec.mode == "training"):
        for number in range(steps):
            output = step(inputs, full_output=number == steps - 1)
            machine.launch()
        machine.wait()
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu().clone(), output)


def _same(reference: Any, result: Any, *, tolerance: float, exact: Any = None) -> bool:
    cosine = exact is None and tolerance > 0
    return bool(same(reference, result, exact, cos_similarity=cosine, tol=tolerance, equal_nan=True))


class Timed:
    """The timed runs of one cell, with the counts of runtime, compiler and profiler in each."""

    def __init__(self, spec: TaskSpec, report: Report) -> None:
        self._spec = spec
        self._report = report
        self._setting = spec.setting
        self._on_xla, self._on_cuda = spec.backend in ON_XLA, spec.device == "cuda"
        self._samples: Samples = {}
        self._iterations = spec.number("iterations_per_run")
        self._machine = Machine(spec)
        self._model = models.build(spec, self._machine, getattr(torch, spec.dtype))
        self._step = compiled(self._model.step, spec)

    def run(self) -> Samples:
        """Return one value a repeat for each metric."""
        repeats = self._spec.number("repeat")
        with torch.set_grad_enabled(self._spec.mode == "training"):
            for repeat in range(repeats):
                self._report.event("measure", repeat, repeats, self._spec.case)
                self._once(repeat)
        return self._samples

    def _once(self, repeat: int) -> None:
        machine = self._machine
        machine.seed()
        make = _other_values if self._setting("randomize_input") else copy.deepcopy
        inputs = [make(self._model.inputs) for _ in range(self._iterations)]
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
        self._add("per_iter_time", total_s / self._iterations)
        if self._on_xla:
            self._add("trace_total_time", traced_s)
            self._add("trace_per_iter_time", traced_s / self._iterations)
        return output

    def _count(self, repeat: int) -> None:
        if self._setting("dump_dynamo_counters"):
            self._file("dynamo_counters", repeat, "json").write_text(json.dumps(counters))
        if self._setting("collect_dynamo_counters"):
            # A graph break's name is the first line of its reason: the rest names files. Equal ones add up.
            totals: Counter[str] = Counter()
            for group, counts in counters.items():
                for name, count in counts.items():
                    line = next(iter(str(name).splitlines()), "")
                    totals[f"dynamo_counters.{group}.{line[:_NAME]}"] += count
            for name, count in totals.items():
                self._add(name, float(count))
        if not self._on_xla:
            return
        if self._setting("dump_pytorch_xla_metrics"):
            self._file("xla_metrics", repeat, "txt").write_text(self._machine.metrics.metrics_report())
        for name in ("CompileTime", "ExecuteTime"):
            number, total_ns, _samples = self._machine.metrics.metric_data(name) or (0, 0, [])
            self._add(f"xla_{name}_time_s", total_ns * 1e-9)
            self._add(f"xla_{name}_number", float(number))

    def _profile(self, profiled: profile, repeat: int) -> None:
        events = profiled.key_averages()
        if self._setting("profile_cuda_cpu"):
            total_us = {"cpu": sum(event.self_cpu_time_total for event in events)}
            if self._on_cuda:
                on_cuda = [event for event in events if event.device_type == DeviceType.CUDA]
                total_us["cuda"] = sum(event.self_device_time_total for event in on_cuda)
            for device, time_us in total_us.items():
                self._add(f"total_{device}_time_s", time_us * 1e-6)
                self._add(f"per_iter_{device}_time_s", time_us * 1e-6 / self._iterations)
        if self._setting("profile_cuda_cpu_individual_ops"):
            self._operators(events)
        if self._setting("dump_pytorch_profiles"):
            profiled.export_chrome_trace(str(self._file("trace", repeat, "json")))
            table = events.table(sort_by="cpu_time_total", row_limit=500)
            self._file("profile", repeat, "txt").write_text(table)

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
        self._samples.setdefault(metric, []).append(value)

    def _file(self, kind: str, repeat: int, ending: str) -> Path:
        folder = self._report.folder / "artifacts" / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{repeat}.{ending}"


def _other_values(inputs: Inputs) -> Inputs:
    """Return random numbers in their place; integers stay, as indices and lengths must."""
    return pytree.tree_map_only(
        torch.Tensor, lambda one: torch.randn_like(one) if one.is_floating_point() else one.clone(), inputs
    )


def record(
    spec: TaskSpec,
    report: Report,
    checked: Verification,
    samples: Samples,
    *,
    warning: MeasurementWarning = NO_WARNING,
    failure: TaskFailure | None = None,
) -> TaskFailure | None:
    """Record the verifier's code and the samples, or why there are none; return the failure, if any. Of a
    wrong result the times are withheld, the counts are not. Call it after the last stage: it starts torch's
    threads."""
    recorder = Recorder(spec, report, prepare(spec.device))
    (experiment,) = SUITE.expected(spec, {})
    knobs, status = experiment.knobs, checked.status
    recorder.status("verification_code", status, checked.code, checked.facts(), knobs=knobs)
    if failure:
        recorder.missing(METRICS, failure, knobs=knobs)
    elif status in {"wrong", "failed"}:
        failure = TaskFailure(status, checked.code, checked.reason)
    for metric, values in samples.items():
        if failure and failure.status == "wrong" and metric.endswith("_time"):
            recorder.missing([metric], failure, knobs=knobs)
        else:
            clock = _CLOCK if metric in METRICS else ""
            recorder.add(Result(metric, values, clock), knobs=knobs, warning=warning)
    return failure
