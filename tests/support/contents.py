"""Something on every page, under names that attack."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.urls import reverse
from django.utils import timezone

from hud.files import files
from hud.models import Correction
from hud.runs import logs
from hud.states.regressions import RegressionState
from tests.support.compilations import BEFORE, mobilenet, planted, store
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_experiment,
    create_host,
    create_measurement,
    create_regression,
    create_run,
    create_task,
    create_upload,
    create_verdict,
)

ATTACK = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
REVERSED = "\u202egnp.exe\u202c"  # shown from right to left
LONG = "long_" * 40


@dataclass(frozen=True)
class Contents:
    parts: dict[str, Any]  # what stands for <int:pk> or <name:name>, by the first word of the address
    more: list[str]  # pages that only a query string fills


def fill() -> Contents:
    create_ceiling()
    now = timezone.now()
    host = create_host(f"{ATTACK}{REVERSED}", labels={"rack": ATTACK}, note=ATTACK)
    accelerator = create_accelerator(host)
    about: dict[str, Any] = {"branch": f"pr/{ATTACK}"[:200], "source": ATTACK[:100], "host_name": ATTACK}
    upload = create_upload(f"{LONG}{ATTACK}.json", parameters={"suite": ATTACK})
    run = create_run(title=f"{ATTACK}{LONG}", commit="ca3512f" * 5, upload=upload, host=host, **about)
    experiment = create_experiment(case=LONG)
    for case in (ATTACK, REVERSED, LONG, "layer_norm"):
        one = create_experiment(case=case)
        for day in range(3):
            past = create_run(order_time=now - timedelta(days=9 - day), commit=f"{day:040x}")
            create_measurement(one, samples=[2500.0 + day, 2510.0, 2490.0], run=past)
        measured = create_measurement(one, samples=[1200.0, 1210.0], run=run)
        create_verdict(measured, "regressed", change=-0.5, noise=0.01, factor=-50, level=2500.0)
        regression = create_regression(measured, state=RegressionState.OPEN, note=ATTACK, cause=ATTACK)
        create_measurement(one, metric="speedup", value=None, status="crashed", run=run, note=ATTACK)
    active = create_run("running", host=host, device="cuda", experiment=experiment, title=ATTACK)
    task = create_task(active, state="running", accelerator=accelerator)
    log = f"{ATTACK}\nRuntimeError: {LONG}\n".encode()
    files.append(logs.log_name(task), 0, log)
    task.log_bytes = len(log)
    task.save()
    create_task(create_run("queued", device="cuda"))
    correction = Correction.objects.create(
        action="run.delete",
        subject=ATTACK,
        arguments={},
        who=ATTACK,
        rows=9,
        problem=ATTACK,
        finished=timezone.now(),
    )
    parts = {
        "suites": "micro",
        "models": "micro",
        "experiments": experiment.pk,
        "runs": run.pk,
        "uploads": upload.pk,
        "corrections": correction.pk,
        "regressions": regression.pk,
        "hosts": host.pk,
        "follow": "token",
        "runner": "none.whl",
    }
    more = [f"/runs/{active.pk}/", f"/runs/{run.pk}/?q=nothing", f"/regressions/?id={regression.pk}"]
    more += [reverse("model", args=["micro", case]) for case in (ATTACK, REVERSED, LONG)]
    more.append(f"/streams/?change={run.stream.name}")
    return Contents(parts, [*more, _compared()])


def _compared() -> str:
    """Return the address of two points with other choices and code."""
    first, second = mobilenet()[:2]
    model = create_experiment(suite="timm", case="mobilenetv2_100", knobs={})
    sides = []
    for found in (first, planted(second)):
        code = {kernel.name: BEFORE for kernel in found.kernels if kernel.name.endswith("hardtanh_7")}
        sides.append(f"run:{store(found, experiment=model, code=code).run_id}/experiment:{model.pk}")
    return f"/code/?base={sides[0]}&head={sides[1]}"
