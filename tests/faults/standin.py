"""A stand-in for the interpreter of a host: the real `runner.child`, with a suite that needs no torch.

Given to an agent as `--python default=<script that execs this file>,STANDIN=<control folder>`. Naming
interpreters is the host owner's business anyway, so the product needs no hook for its tests.

The control folder tells it what to do: ``plan.json`` maps the number of the start ("1", "2", … or "*") to
{"results": n, "spin": true, "deaf": true, "stray": true, "status": …, "wait_for": file, "print": text}.
It writes ``pid-<n>`` at each start, and ``shared`` where an earlier start was still alive.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SAMPLES = 20


def run(spec: Any, report: Any) -> Any:
    """What `runner.suites.micro` offers: one task."""
    control = Path(os.environ["STANDIN"])
    earlier = sorted(control.glob("pid-*"))
    plan = _plan(control, len(earlier) + 1)
    if plan.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("stray"):
        _leave_stray(control)
    print(plan.get("print", "stand-in at work"), flush=True)
    _note_start(control, earlier)
    sizes = list(spec.knobs.get("D", [256, 512]))[: plan.get("results", 16)]
    for place, size in enumerate(sizes):
        report.event("measure", place, len(sizes), f"D={size}")
        report.result(_record(spec, size))
    if plan.get("spin"):
        hashlib.pbkdf2_hmac("sha256", b"spin", b"in C", 2**31 - 1)
    if "wait_for" in plan:
        while not (control / plan["wait_for"]).exists():
            time.sleep(0.02)
    report.artifact("notes", "notes.txt", "made by the stand-in\n")
    if "status" in plan:
        from runner.failures import TaskFailure

        return TaskFailure(plan["status"], plan.get("code", ""), plan.get("reason", ""))
    return None


def _plan(control: Path, number: int) -> dict[str, Any]:
    path = control / "plan.json"
    plans: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return plans.get(str(number), plans.get("*", {}))


def _note_start(control: Path, earlier: list[Path]) -> None:
    """Notes the pid of this start, and whether it shares the accelerator with an earlier one."""
    for path in earlier:
        if _state(path.read_text()) not in "ZX":
            (control / "shared").write_text(f"{path.name} was alive")
    draft = control / "pid.new"
    draft.write_text(str(os.getpid()))
    draft.rename(control / f"pid-{len(earlier) + 1}")


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _leave_stray(control: Path) -> None:
    """A process in a session of its own whose parent is gone, as compile workers are."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    (control / "stray").write_text(str(os.getpid()))
    time.sleep(3600)


def _record(spec: Any, size: int) -> Any:
    from runner.records import Benchmark, Environment, Metric, Model, Record

    environment = Environment(torch="0.0+standin", python="3", cpu="stand-in", os="none", cpu_count=1)
    return Record(
        benchmark=Benchmark(
            name=f"Compiler HUD {spec.suite}",
            mode=spec.mode,
            dtype=spec.dtype,
            extra_info={
                "device": spec.device,
                "arch": "x86_64",
                "dynamic": spec.dynamic,
                "knobs": {"D": size},
            },
        ),
        model=Model(name=spec.case, type="benchmark", backend=spec.backend, origins=[spec.suite]),
        metric=Metric(
            name="compiled_latency_ms",
            benchmark_values=[size / 1000 + sample / 1e6 for sample in range(SAMPLES)],
            extra_info={"unit": "ms", "direction": "down", "status": "ok", "n": SAMPLES},
        ),
        timestamp=time.time(),
        **environment.to_record_fields(os.environ.get("RUNNER_HOST", "")),
    )


def main() -> int:
    if "runner.measure.environment" in sys.argv:
        print(json.dumps({"torch": "0.0+standin"}))
        return 0
    assert sys.argv[1:] == ["-m", "runner.child"], sys.argv
    sys.modules["runner.suites.micro"] = sys.modules["__main__"]
    from runner import child

    return child.main()


if __name__ == "__main__":
    sys.exit(main())
