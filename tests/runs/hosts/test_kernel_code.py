"""The source of kernels comes with a task, and is kept once for each content."""

from __future__ import annotations

import gzip
import json
import uuid
from typing import Any

import pytest
from django.test import Client

from hud import retention
from hud.ingest import deliveries
from hud.models import Accelerator, Artifact, KernelBinary, KernelCode, Run, Task, Upload
from hud.points.kernels import code_of
from hud.runs import tasks
from runner.formats.errors import BadUpload
from runner.schema.compilations import Compiled, Kernel, digest
from runner.schema.replay import with_operands
from runner.schema.suite import TaskSpec
from tests.support.claims import attach, claim, request
from tests.support.factories import create_run
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db


def kernels(count: int) -> list[Kernel]:
    """Kernels of one compilation, the largest last."""
    keys = [digest(str(place)) for place in range(count)]
    return [
        Kernel(key, key, key, f"triton_{place}", "pointwise", time_us=1.0 + place)
        for place, key in enumerate(keys)
    ]


def delivered(accelerator: Accelerator, found: list[Kernel]) -> dict[str, Any]:
    """Have a task deliver a compilation; return the keys of its lease."""
    request(host=accelerator.host)
    task = claim(accelerator, uuid.uuid4().hex)
    metric = {
        "name": "kernel_count",
        "benchmark_values": [len(found)],
        "extra_info": {"compiled": Compiled(tuple(found)).to_json(), "compilation": 0},
    }
    lease: dict[str, Any] = {"uid": task.uid, "token": task.token, "host": accelerator.host}
    deliveries.take_results(**lease, body=as_lines(task_record(TaskSpec.from_json(task.spec), metric=metric)))
    return lease


def packed(texts: Any) -> bytes:
    return gzip.compress(json.dumps(texts).encode(), compresslevel=0, mtime=0)


def test_the_code_of_the_task_s_own_kernels_is_kept(accelerator: Accelerator) -> None:
    found = kernels(14)
    other = delivered(accelerator, kernels(20))  # of another run of the same experiment
    tasks.finish(**other, status="ok", code="", reason="")
    lease = delivered(accelerator, found)
    run = Task.objects.get(uid=lease["uid"]).run_id
    own = {kernel.binary: f"def {kernel.name}(): ..." for kernel in found}
    others = {kernel.binary: "of another task" for kernel in kernels(20)[14:]}
    texts = own | others | {"f" * 16: "of no kernel", "../../etc/passwd": "no key"}
    assert deliveries.take_kernel_code(**lease, data=packed(texts)) == 14
    of_run = {(run, binary): text for binary, text in own.items()}
    assert code_of([*texts], run) == of_run
    again = dict.fromkeys(own, "another text")
    assert deliveries.take_kernel_code(**lease, data=packed(again)) == 14
    assert code_of([*own], run) == of_run
    assert code_of([*own], 0) == {}
    assert not Artifact.objects.exists()


def test_equal_code_is_stored_once_and_short(accelerator: Accelerator) -> None:
    found = kernels(3)
    lease = delivered(accelerator, found)
    body = packed({kernel.binary: "x" * 100_000 for kernel in found})
    assert deliveries.take_kernel_code(**lease, data=body) == 3
    assert KernelBinary.objects.count() == 3
    assert len(KernelCode.objects.get().text) == 64 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        packed([1]),
        packed({"a" * 16: 5}),
        gzip.compress(b"0" * 2**25, mtime=0),
        gzip.compress(b'{"\xff": ""}', mtime=0),
    ],
)
def test_what_is_no_code_is_refused(accelerator: Accelerator, body: bytes) -> None:
    lease = delivered(accelerator, kernels(1))
    with pytest.raises(BadUpload):
        deliveries.take_kernel_code(**lease, data=body)


def test_code_that_no_host_has_delivered_for_long_is_removed(accelerator: Accelerator) -> None:
    found = kernels(1)
    lease = delivered(accelerator, found)
    deliveries.take_kernel_code(**lease, data=packed({found[0].binary: "text"}))
    assert dict(retention.batches()).get("kernel code") is None
    KernelCode.objects.update(delivered="2020-01-01T00:00:00Z")
    assert "kernel code" in dict(retention.batches())
    assert not KernelBinary.objects.exists()


def test_code_is_that_of_the_run_s_own_host(accelerator: Accelerator, client: Client) -> None:
    """Another host may deliver first, and claim any binary."""
    (kernel,) = kernels(1)
    texts, runs = {}, {}
    for name, own in (("other", attach("other")), ("h1", accelerator)):
        lease = delivered(own, [kernel])
        text = f"@triton.jit\ndef {kernel.name}(in_ptr0, xnumel):\n    '{name}'\n"
        texts[name] = with_operands(text, [["int8", [8], [1]]], [8])
        deliveries.take_kernel_code(**lease, data=packed({kernel.binary: texts[name]}))
        tasks.finish(**lease, status="ok", code="", reason="")
        runs[name] = Task.objects.get(uid=lease["uid"]).run_id
    of_runs = {(runs[name], kernel.binary): text for name, text in texts.items()}
    assert code_of([kernel.binary], *runs.values()) == of_runs
    address = f"/code/kernel-{kernel.binary}.py"
    for name, run in runs.items():
        (row,) = client.get(f"/api/v1/kernels?stream={Run.objects.get(pk=run).stream.name}").json()["items"]
        assert texts[Run.objects.get(pk=row["run"]).host_name] == row["code"]
        assert f"'{name}'" in client.get(f"{address}?run={run}").text
    upload = Upload.objects.create(content_key="u", stream=Run.objects.get(pk=runs["h1"]).stream)
    uploaded = create_run(host_name="h1", upload=upload)
    for unknown in ("", f"?run={uploaded.pk}", "?run=x"):
        assert client.get(f"{address}{unknown}").status_code == 404
