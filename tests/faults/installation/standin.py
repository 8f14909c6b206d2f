"""A stand-in for the interpreter of a host: the real `runner.launch.child`, with a suite that needs no torch.

Given to an agent as `--python default=<script that execs this file>,STANDIN=<control folder>`. Naming
interpreters is the host owner's business anyway, so the product needs no hook for its tests.

The control folder tells it what to do: ``plan.json`` maps the number of the start ("1", "2", … or "*") to
{"results": n, "spin": true, "deaf": true, "stray": true, "status": …, "wait_for": file, "print": text,
"kernel_s": seconds, "orphan_s": seconds, "allocate_gib": n, "factor": of its times, "factors": {TORCH_SIDE:
of its times}, "spins": {TORCH_SIDE: true}, "compiled": true: with compile time and a kernel, whose
configuration is XBLOCK=8 where TORCH_SIDE is tuned, else 4, unless forced, "offered": {TORCH_SIDE: what its
autotuner may choose}, "facts": more of each result}.
It writes ``pid-<n>`` at each start, and ``shared`` where an earlier start was still alive; for a GPU in a
folder of the GPU's own below it. On a GPU it uses the card for what a plan asks of it, and needs torch then.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLES = 20
_CACHES = ("RUNNER_CACHES", "RUNNER_NEW_CACHES")
HANG_S = 3600  # longer than any test: what hangs is to be ended, but stays not for ever where that fails


def run(spec: Any, report: Any) -> Any:
    """Run one task in place of `runner.suites.micro.run`."""
    from runner.suites.micro import SIZES

    control = Path(os.environ["STANDIN"])
    place = control / os.environ.get("CUDA_VISIBLE_DEVICES", "")  # the folder itself where that is empty
    place.mkdir(exist_ok=True)
    earlier = sorted(place.glob("pid-*"))
    plan = _plan(control, len(earlier) + 1)
    _leave(control, plan, spec.device)
    print(plan.get("print", "stand-in at work"), flush=True)
    _note_start(control, place, earlier)
    sizes = list(spec.knobs.get("D", SIZES[spec.device][:2]))[: plan.get("results", 16)]
    for number, size in enumerate(sizes):
        report.event("measure", number, len(sizes), f"D={size}")
        for record in _records(spec, size, plan):
            report.result(record)
    _work(control, plan, spec.device)
    Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], f"kernel-{len(earlier) + 1}").touch()
    report.artifact("notes", "notes.txt", "made by the stand-in\n")
    if "status" in plan:
        from runner.launch.failures import TaskFailure

        return TaskFailure(plan["status"], plan.get("code", ""), plan.get("reason", ""))
    return None


def _leave(control: Path, plan: dict[str, Any], device: str) -> None:
    if plan.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("stray"):  # a helper process that outlives its benchmark until somebody kills it
        _leave_stray(control, lambda: time.sleep(HANG_S))
    if "orphan_s" in plan:
        _leave_stray(control, lambda: _use(device, plan["orphan_s"]))


def _work(control: Path, plan: dict[str, Any], device: str) -> None:
    if "allocate_gib" in plan:
        _allocate(device, plan["allocate_gib"])
    if "kernel_s" in plan:
        _use(device, plan["kernel_s"])
    if plan.get("spin") or plan.get("spins", {}).get(os.environ.get("TORCH_SIDE")):
        hashlib.pbkdf2_hmac("sha256", b"spin", b"in C", 2**31 - 1)
    if "wait_for" in plan:
        from tests.support.waiting import wait_for

        wait_for((control / plan["wait_for"]).exists, f"{plan['wait_for']} of the test", HANG_S)


def _plan(control: Path, number: int) -> dict[str, Any]:
    path = control / "plan.json"
    plans: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return plans.get(str(number), plans.get("*", {}))


def _note_start(control: Path, place: Path, earlier: list[Path]) -> None:
    """Notes the pid of this start, and whether it shares the accelerator with an earlier one."""
    for path in earlier:
        if _state(path.read_text()) not in "ZX":
            (control / "shared").write_text(f"{path} was alive")
    draft = place / "pid.new"
    draft.write_text(str(os.getpid()))
    draft.rename(place / f"pid-{len(earlier) + 1}")


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _leave_stray(control: Path, work: Callable[[], object]) -> None:
    """A process in a session of its own whose parent is gone, as compile workers are."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    (control / "stray").write_text(str(os.getpid()))
    try:
        work()
    finally:
        os._exit(0)


def _use(device: str, seconds: float) -> None:
    """Keeps a device busy without a break, for a bounded time: a GPU with one kernel, a CPU in C."""
    if device == "cuda":
        import torch

        spin = torch.cuda._sleep  # a kernel that counts cycles
        spin(1)
        torch.cuda.synchronize()
        started = time.monotonic()
        spin(10**9)
        torch.cuda.synchronize()
        spin(int(seconds * 10**9 / (time.monotonic() - started)))
        torch.cuda.synchronize()
    else:
        started = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"spin", b"in C", 10**5)
        hashlib.pbkdf2_hmac("sha256", b"spin", b"in C", int(seconds * 10**5 / (time.monotonic() - started)))


def _allocate(device: str, gib: int) -> None:
    """Asks for memory that is not there, after some that is."""
    if device == "cuda":
        import torch

        held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
        torch.zeros(gib * 2**30, dtype=torch.uint8, device="cuda")
        del held
    raise MemoryError(f"tried to allocate {gib} GiB")


def _torch() -> str:
    """The version that lies in the control folder as torch's would in a folder of packages."""
    path = Path(os.environ["STANDIN"]) / "torch" / "version.py"
    return path.read_text() if path.exists() else "0.0+standin"


def _records(spec: Any, size: int, plan: dict[str, Any]) -> list[Any]:
    """The call time of a size, and of a compilation its time and its kernel."""
    factor = plan.get("factor", 1.0) * plan.get("factors", {}).get(os.environ.get("TORCH_SIDE"), 1.0)
    values = [factor * (size / 1000 + sample / 1e6) for sample in range(SAMPLES)]
    facts = plan.get("facts", {})
    found = [_record(spec, size, "compiled_latency_ms", values, "ms", **facts)]
    if plan.get("compiled"):
        found.append(_record(spec, size, "cold_compile_s", [2.0], "s", **facts))
        facts = {**facts, "compiled": _compiled(size, plan)}
        found.append(_record(spec, size, "kernel_count", [1.0], "count", **facts))
    return found


def _compiled(size: int, plan: dict[str, Any]) -> dict[str, Any]:
    slot = hashlib.sha256(f"{size}".encode()).hexdigest()[:16]
    own = f"XBLOCK={8 if os.environ.get('TORCH_SIDE') == 'tuned' else 4} num_warps=4"
    path = os.environ.get("STANDIN_PINNED")
    forced = json.loads(Path(path).read_text()) if path else {}
    config = forced.get(slot, own)
    choice = hashlib.sha256(config.encode()).hexdigest()[:16]
    kernel = {"slot": slot, "choice": choice, "binary": choice, "name": "triton_poi", "kind": "pointwise"}
    offered = plan.get("offered", {}).get(os.environ.get("TORCH_SIDE"), [])
    timed = {**kernel, "config": config, "time_us": 10.0, **({"offered": offered} if offered else {})}
    return {"kernels": [timed], "phases_s": {"inductor": 1.0}}


def _record(spec: Any, size: int, metric: str, values: Any, unit: str, **facts: Any) -> Any:
    from runner.schema.records import Benchmark, Environment, Metric, Model, Record

    tried = {name: text for name, text in os.environ.items() if name == "RUNNER_INDUCTOR_OPTIONS"}
    environment = Environment(
        torch=_torch(), python="3", cpu="stand-in", os="none", cpu_count=1, variables=tried
    )
    return Record(
        benchmark=Benchmark(
            name=f"Compiler HUD {spec.suite}",
            mode=spec.mode,
            dtype=spec.dtype,
            extra_info={
                "device": spec.device,
                "arch": "x86_64" if spec.device == "cpu" else "NVIDIA H200",
                "dynamic": spec.dynamic,
                "knobs": {"D": size},
            },
        ),
        model=Model(name=spec.case, type="benchmark", backend=spec.backend, origins=[spec.suite]),
        metric=Metric(
            name=metric,
            benchmark_values=values,
            extra_info={
                "unit": unit,
                "direction": "down",
                "status": "ok",
                "n": len(values),
                **facts,
                **spec.compilation_facts(os.environ),
                "caches": next((name for name in _CACHES if os.environ.get(name)), ""),
                "is_empty": not any(os.scandir(os.environ["TORCHINDUCTOR_CACHE_DIR"])),
            },
        ),
        timestamp=time.time(),
        **environment.to_record_fields(os.environ.get("RUNNER_HOST", "")),
    )


def main() -> int:
    if "runner.measure.state.device" in sys.argv:
        print(json.dumps({"torch": _torch()}))
        return 0
    if "runner.measure.compiler.compiled" in sys.argv:
        print(
            json.dumps(
                {"compiled_s": 0.1, "noted": ["kernels"], "blind": {"phases": "AttributeError: phases"}}
            )
        )
        return 0
    if "runner.system.interpreters" in sys.argv:
        from runner.system.interpreters import stamp

        folders = [os.environ["STANDIN"]]
        print(json.dumps({"torch": _torch(), "packages": "0", "folders": folders, "stamp": stamp(folders)}))
        return 0
    assert sys.argv[1:] == ["-m", "runner.launch.child"], sys.argv
    sys.modules["runner.suites.micro.run"] = sys.modules["__main__"]
    if path := os.environ.pop("RUNNER_PINNED", ""):  # the child would import torch for it
        os.environ["STANDIN_PINNED"] = path
    from runner.launch import child

    return child.main()


if __name__ == "__main__":
    sys.exit(main())
