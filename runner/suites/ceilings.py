"""What the host itself reaches. A run of this suite is the host's daily reading."""

from __future__ import annotations

from runner.catalog import TaskSpec
from runner.failures import TaskFailure
from runner.measure import ceilings
from runner.measure.device import prepare
from runner.measure.device_state import device_state, warning
from runner.measure.recorder import Recorder, Result
from runner.report import Report

_CEILINGS = {"copy": ceilings.COPY, "read": ceilings.READ, "matmul": ceilings.MATMUL}


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """One reading of one ceiling, kept in the host's file too."""
    device = prepare(spec.device)
    states = [device_state(device)]
    recorder = Recorder(spec, report, device)
    report.event("measure", 0, 1, spec.case)
    samples = ceilings.read(_CEILINGS[spec.case], device)
    states.append(device_state(device))
    report.event("finished", 1, 1)
    recorder.add(
        Result(_metric(spec), samples, ceilings.CLOCKS[device.type]), knobs={}, warning=warning(states)
    )
    return None


def _metric(spec: TaskSpec) -> str:
    if spec.case == "matmul":
        return "matmul_tflops"
    return "device_bandwidth_gbps" if spec.device == "cuda" else "call_bandwidth_gbps"
