"""Turns samples into the records of one task."""

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.kernels import pinning
from runner.measure.state.device import Device, environment
from runner.schema import records
from runner.schema.compilations import COMPILED, blind_text
from runner.schema.devices import arch_key, falls_with, impossible_reason
from runner.schema.metrics import GPT_FAST_TARGET_ARCH, gpt_fast_target, metric_info
from runner.schema.protocol import version
from runner.schema.records import NO_WARNING, Json, MeasurementWarning
from runner.schema.statistics import median, spread
from runner.schema.suite import TaskSpec
from runner.system import machine

_WITHOUT_CLOCK = {"compression_ratio"}
_BANDWIDTHS = ("copy_gbps", "read_gbps")
_DIGITS = 7  # of a sample: a clock of nanoseconds is no more precise


@dataclass(frozen=True)
class Result:
    """One metric with all its samples, in the registry's unit."""

    metric: str
    values: list[float]
    clock: str = ""
    n: int | None = None  # how many samples a derived value was made of
    target: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)  # stored beside the value


def with_gpt_fast_target(spec: TaskSpec, result: Result) -> Result:
    """Return a result of the task with the target of gpt-fast's tables, if they have one."""
    target = gpt_fast_target(spec.case, spec.dtype, result.metric)
    facts = {**result.facts, "target_arch": GPT_FAST_TARGET_ARCH}
    return result if target is None else replace(result, target=target, facts=facts)


@dataclass
class Recorder:
    """Writes one record for each metric of each shape, all with the same run time and environment.

    `known_environment` is for a process that cannot ask torch for it; `backend` is the name in the results
    if it differs from the task's. Every record contains what is in `about`; `warning` is of every number, by
    default that of kernels which could not be pinned in this process.
    """

    spec: TaskSpec
    report: Report
    device: Device
    known_environment: records.Environment | None = None
    backend: str = ""
    about: dict[str, Json] = field(default_factory=dict)
    warning: str = ""

    def __post_init__(self) -> None:
        host = os.environ.get("RUNNER_HOST") or platform.node()
        self._place = (self.known_environment or environment(self.device)).to_record_fields(host, version())
        self._compilation = self.spec.compilation_facts(os.environ)
        self._timestamp = time.time()

    def add(
        self, *results: Result, knobs: Mapping[str, Json], warning: MeasurementWarning = NO_WARNING
    ) -> None:
        """Write results of the shape that `knobs` name. A result's own warning comes before `warning`, which
        is about the clocks and so left out for counts; memory may decide whatever slowed the clocks. One
        without values could not be read from torch's internals. Beside an impossible time no other clock
        decides: a call that skips its work has a speedup too."""
        reasons = {result.metric: self._impossible(result) for result in results if result.values}
        beside = next(filter(None, reasons.values()), "")
        for result in results:
            if not result.values:
                failure = TaskFailure("unsupported", "blind", blind_text(result.facts[COMPILED]["blind"]))
                self.missing([result.metric], failure, result.facts, knobs=knobs)
                continue
            metric = metric_info(result.metric)
            shared = NO_WARNING if metric.kind == "deterministic" else warning
            if metric.unit == "B" or result.metric in _WITHOUT_CLOCK:
                shared = MeasurementWarning(shared.text)
            own = MeasurementWarning(*(str(result.facts.get(name, "")) for name in ("warning", "quality")))
            of_process = MeasurementWarning(self.warning or pinning.pinned_warning())
            info: dict[str, Json] = {
                "status": "ok",
                "n": result.n or len(result.values),
                "spread": spread(result.values),
                **({"clock": result.clock} if result.clock else {}),
                **result.facts,
                **records.joined_warnings((own, shared, of_process)).facts(),
            }
            if why := beside if falls_with(metric, metric.unit, None) else "":
                why = reasons[result.metric] or f"beside it {why}"
                info |= {"status": records.IMPOSSIBLE, "quality": records.IMPOSSIBLE, "reason": why}
            values = [float(f"{value:.{_DIGITS}g}") for value in result.values]
            self._write(result.metric, values, result.target, knobs, info)

    def _impossible(self, result: Result) -> str:
        """Return why this card cannot have measured a result, or ''."""
        readings = machine.ceilings(machine.ceilings_path()).get(self.device.key, {})
        measured = [float(readings[name]["value"]) for name in _BANDWIDTHS if name in readings]
        about = metric_info(result.metric), median(result.values), result.facts.get("moved_bytes")
        return impossible_reason(arch_key(self.device.name), *about, max(measured, default=None))

    def status(
        self, metric: str, status: str, code: str, facts: Mapping[str, Json], *, knobs: Mapping[str, Json]
    ) -> None:
        """Write a metric that has a status and no number, such as accuracy."""
        self._write(metric, None, None, knobs, {"status": status, "code": code, **facts})

    def missing(
        self,
        metrics: Iterable[str],
        failure: TaskFailure,
        facts: Mapping[str, Json] = MappingProxyType({}),
        *,
        knobs: Mapping[str, Json],
    ) -> None:
        """Write that metrics have no value, and why."""
        facts = {"reason": failure.reason, **facts}
        for metric in metrics:
            self.status(metric, failure.status, failure.code, facts, knobs=knobs)

    def _write(
        self,
        metric: str,
        values: Sequence[float] | None,
        target: str | None,
        knobs: Mapping[str, Json],
        info: Mapping[str, Json],
    ) -> None:
        spec, known = self.spec, metric_info(metric)
        record = records.Record(
            benchmark=records.Benchmark(
                name=f"Compiler HUD {spec.suite}",
                mode=spec.mode,
                dtype=spec.dtype,
                extra_info={
                    "device": spec.device,
                    "arch": self.device.name,
                    "dynamic": spec.dynamic,
                    "knobs": dict(knobs),
                    "threads": self.device.threads,
                    **pinning.pinned_facts(),
                    **self.about,
                },
            ),
            model=records.Model(spec.case, "benchmark", self.backend or spec.backend, [spec.suite]),
            metric=records.Metric(
                name=metric,
                benchmark_values=None if values is None else list(values),
                target_value=target,
                extra_info={"unit": known.unit, "direction": known.direction, **self._compilation, **info},
            ),
            timestamp=self._timestamp,
            **self._place,
        )
        self.report.result(record)
