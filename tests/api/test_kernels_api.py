"""The export of stored kernels, which the suite `kernels` takes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from hud.runs.requests import spec_of
from runner.schema.replay import with_operands
from runner.schema.suite import BadRequest
from runner.suites import kernels
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_measurement,
    create_run,
    create_user,
)

CODE = "def triton_{0}(in_ptr0, xnumel):\n    pass\n"


@pytest.mark.django_db
def test_the_largest_kernels_with_operands_are_exported(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        name: with_operands(CODE.format(name), [["int8", [8], [1]]], [8])
        for name in ("small", "large", "b200")
    }
    code = known | {"no_operands": CODE.format("no_operands")}
    old, new = create_run(order_time=timezone.now() - timedelta(days=1)), create_run()
    small, large, alone, without = (
        kernel(name, time_us, bytes=1200, calls=2.0)
        for name, time_us in (("small", 4.0), ("large", 30.0), ("b200", 9.0), ("no_operands", 50.0))
    )
    model, other = create_experiment(), create_experiment(arch="b200")
    store(compiled(replace(small, time_us=90.0)), experiment=model, run=old, code=code)
    store(compiled(small, large, without, kernel("no_code", 80.0)), experiment=model, run=new, code=code)
    store(compiled(alone), experiment=other, run=new, code=code)
    stream = new.stream.name
    found = client.get("/api/v1/kernels", {"arch": model.arch, "stream": stream}).json()
    assert [(row["name"], row["time_us"], row["bytes"]) for row in found["items"]] == [
        ("large", 15.0, 600),
        ("small", 2.0, 600),
    ]
    assert (found["items"][0]["binary"], found["items"][0]["run"]) == (large.binary, new.pk)
    limited = client.get("/api/v1/kernels", {"stream": stream, "limit": "2"}).json()["items"]
    assert [row["name"] for row in limited] == ["large", "b200"]
    assert client.get("/api/v1/kernels", {"limit": "201"}).status_code == 422
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(found))
    monkeypatch.setenv(kernels.VARIABLE, str(path))
    stored = kernels.stored_kernels()[f"large-{large.binary}"]
    assert (stored.device, stored.case.dtypes, stored.time_us) == ("cuda", ("int8",), 15.0)
    assert stored.config == large.config


@pytest.mark.django_db
def test_a_result_of_the_suite_has_a_page_and_no_rerun(client: Client) -> None:
    own = create_experiment(suite="kernels", case="large-0123456789abcdef", knobs={})
    create_measurement(own)
    create_accelerator(suites=["kernels", "micro"])
    client.force_login(create_user())
    address = f"/experiments/{own.pk}/"
    assert client.get(address).status_code == 200
    for page in ("/suites/", "/suites/kernels/", "/runs/new/?suite=kernels"):
        assert client.get(page).status_code == 200
    with pytest.raises(BadRequest):
        spec_of(own, device="cuda")
