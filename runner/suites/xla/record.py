"""Record samples and codes of a cell under PyTorch/XLA's names."""

from __future__ import annotations

import dataclasses

from runner.formats.xla import Cell
from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import prepare
from runner.measure.state.environment import environment
from runner.schema.suite import TaskSpec
from runner.suites.xla import METRICS, SUITE
from runner.suites.xla.measure import CLOCK, WALL_CLOCK, Samples
from runner.suites.xla.verify import Verification

_STATUS = {"passed": "ok", "failed": "wrong", "cannot_tell": "cannot_tell", "not_run": "not_run"}


class Rows:
    """Writes the records of one cell. Create it after the last stage: it starts torch's threads."""

    def __init__(self, spec: TaskSpec, report: Report, cell: Cell) -> None:
        here = cell.accelerator == spec.device
        device = prepare(spec.device if here else "cpu")
        found = environment(device)
        if not here:  # this host's CPU says nothing of a device that is not there
            device = dataclasses.replace(device, name="")
            found = dataclasses.replace(found, cpu="", cpu_count=0)
        recorded = dataclasses.replace(spec, backend=cell.backend, device=cell.accelerator)
        self._recorder = Recorder(recorded, report, device, known_environment=found)
        (experiment,) = SUITE.expected(spec, {})
        self._knobs = experiment.knobs
        self._clock = WALL_CLOCK if spec.setting("pure_wall_time") else CLOCK

    def measured(self, samples: Samples, checked: Verification) -> TaskFailure | None:
        """Record the samples; of a wrong result the times are withheld, the counts are not."""
        self._checked(checked)
        failure = None
        if checked.status == "failed":
            failure = TaskFailure("wrong", checked.code, checked.reason)
        elif checked.requested and checked.status == "not_run":
            failure = TaskFailure("failed", checked.code, checked.reason)
        for metric, values in samples.items():
            if failure and failure.status == "wrong" and metric.endswith("_time"):
                self._recorder.missing(metric, failure, knobs=self._knobs)
            else:
                clock = self._clock if metric in METRICS else ""
                self._recorder.add(Result(metric, values, clock), knobs=self._knobs)
        return failure

    def failed(self, failure: TaskFailure, checked: Verification) -> None:
        self._checked(checked)
        for metric in METRICS:
            self._recorder.missing(metric, failure, knobs=self._knobs)

    def _checked(self, checked: Verification) -> None:
        """Record the verifier's code. One that was asked for and broke down has failed."""
        status = _STATUS[checked.status]
        if checked.requested and status == "not_run" and checked.code != "VERIFIER_DIDNT_RUN":
            status = "failed"
        self._recorder.status("verification_code", status, checked.code, checked.facts(), knobs=self._knobs)
