"""Samples → records of one task."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.catalog import TaskSpec
from runner.catalog.metrics import metric_info
from runner.failures import TaskFailure
from runner.measure.device import Device
from runner.measure.environment import environment
from runner.records import Benchmark, Environment, Json, Metric, Model, Record
from runner.report import Report
from runner.summary import spread

_DIGITS = 7  # of a sample: a clock of nanoseconds says no more


@dataclass(frozen=True)
class Result:
    """One metric with all its samples, in the registry's unit.

    `n` is how many samples stand behind a value that was derived; `facts` are told beside the value.
    """

    metric: str
    values: list[float]
    clock: str = ""
    n: int | None = None
    target: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


class Recorder:
    """Writes one record for each metric of each shape, all with the same run time and environment.

    `known_environment` is given where this process cannot ask torch for it; `backend` is its name in the
    results where that is not the one it was asked by. What `about` holds is told of every record.
    """

    def __init__(
        self,
        spec: TaskSpec,
        report: Report,
        device: Device,
        *,
        known_environment: Environment | None = None,
        backend: str = "",
    ) -> None:
        self._spec = spec
        self._report = report
        self._device = device
        self._backend = backend or spec.backend
        self._host = os.environ.get("RUNNER_HOST") or platform.node()
        self._environment = known_environment or environment(device)
        self._timestamp = time.time()
        self.about: dict[str, Json] = {}

    def add(self, result: Result, *, knobs: Mapping[str, Json], warning: str = "") -> None:
        """One result of the shape that `knobs` name; what it warns of itself stands before `warning`, which
        is of clocks and so not told of a count."""
        shared = "" if metric_info(result.metric).kind == "deterministic" else warning
        warning = "; ".join(filter(None, (str(result.facts.get("warning", "")), shared)))
        said: dict[str, Json] = {
            "status": "ok",
            "n": result.n or len(result.values),
            "spread": spread(result.values),
            **({"clock": result.clock} if result.clock else {}),
            **result.facts,
            **({"warning": warning} if warning else {}),
        }
        values = [float(f"{value:.{_DIGITS}g}") for value in result.values]
        self._write(result.metric, values, result.target, knobs, said)

    def status(
        self, metric: str, status: str, code: str, facts: Mapping[str, Json], *, knobs: Mapping[str, Json]
    ) -> None:
        """A metric that is a word and no number, such as accuracy."""
        self._write(metric, None, None, knobs, {"status": status, "code": code, **facts})

    def missing(self, metric: str, failure: TaskFailure, *, knobs: Mapping[str, Json]) -> None:
        """A metric that has no value, with the status that says why."""
        said = {"status": failure.status, "code": failure.code, "reason": failure.reason}
        self._write(metric, None, None, knobs, said)

    def _write(
        self,
        metric: str,
        values: Sequence[float] | None,
        target: str | None,
        knobs: Mapping[str, Json],
        said: Mapping[str, Json],
    ) -> None:
        info = metric_info(metric)
        record = Record(
            benchmark=self._benchmark(knobs),
            model=Model(
                name=self._spec.case,
                type="benchmark",
                backend=self._backend,
                origins=[self._spec.suite],
            ),
            metric=Metric(
                name=metric,
                benchmark_values=None if values is None else list(values),
                target_value=target,
                extra_info={"unit": info.unit, "direction": info.direction, **said},
            ),
            timestamp=self._timestamp,
            **self._environment.to_record_fields(self._host),
        )
        self._report.result(record)

    def _benchmark(self, knobs: Mapping[str, Json]) -> Benchmark:
        spec = self._spec
        return Benchmark(
            name=f"Compiler HUD {spec.suite}",
            mode=spec.mode,
            dtype=spec.dtype,
            extra_info={
                "device": spec.device,
                "arch": self._device.name,
                "dynamic": spec.dynamic,
                "knobs": dict(knobs),
                "threads": self._device.threads,
                **self.about,
            },
        )
