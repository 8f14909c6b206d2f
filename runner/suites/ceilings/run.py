"""Measured ceilings of the host. A run of this suite is the host's daily reading."""

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure import ceilings
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import device_state, prepare, warning
from runner.schema.suite import TaskSpec
from runner.suites.ceilings import metric_of

_CEILINGS = {"copy": ceilings.COPY, "read": ceilings.READ, "matmul": ceilings.MATMUL}


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Take one reading of one ceiling; it is kept in the host's file too."""
    device = prepare(spec.device)
    states = [device_state(device)]
    recorder = Recorder(spec, report, device)
    report.event("measure", 0, 1, spec.case)
    samples = ceilings.read(_CEILINGS[spec.case], device)
    states.append(device_state(device))
    report.event("finished", 1, 1)
    result = Result(metric_of(spec), samples, ceilings.CLOCKS[device.type])
    recorder.add(result, knobs={}, warning=warning(states))
    return None
