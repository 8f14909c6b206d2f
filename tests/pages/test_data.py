"""The CSV of each page has the same header with and without rows."""

from __future__ import annotations

import pytest
from django.test import Client

from hud.accounts import keys
from hud.accounts.roles import Role
from hud.models import Follow, Target
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_experiment,
    create_measurement,
    create_metric,
    create_regression,
    create_run,
    create_user,
)

pytestmark = pytest.mark.django_db


def test_a_csv_without_rows_has_the_header_of_one_with_rows(client: Client) -> None:
    admin = create_user(role=Role.ADMIN)
    client.force_login(admin)
    one, other, pairs = create_run(), create_run(), create_run(base_interpreter="old", interpreter="new")
    model, measured = create_experiment(case="model", knobs={}), create_experiment()
    for run in (one, other):
        store(compiled(), experiment=model, run=run)
    sides = f"base=run:{one.pk}&head=run:{other.pk}"
    points = f"base=run:{one.pk}/experiment:{model.pk}&head=run:{other.pk}/experiment:{model.pk}"
    pages = {
        "audit.csv": "?subject=x", "code.csv": "?q=x", f"code.csv?{points}": "", f"compare.csv?{sides}": "",
        "compilers.csv": "", f"experiments/{measured.pk}.csv": "", "hosts.csv": "", "keys.csv": "",
        "follow.csv": "", "limits.csv": "", "overview.csv": "", "regressions.csv": "", "rules.csv": "",
        f"runs/{one.pk}.csv": "", f"runs/{pairs.pk}.csv?table=pairs": "", "runs.csv": "?q=x",
        "search.csv?q=model": "", "streams.csv": "", "suites/micro.csv?q=layer": "",
        "models/micro/layer_norm.csv": "?stream=nightly",
    }  # fmt: skip

    def header(address: str) -> str:
        answer = client.get(f"/{address}")
        assert answer.status_code == 200, address
        return answer.content.decode().splitlines()[0]

    empty = {
        address: header(address.partition("?")[0] + nothing if nothing else address)
        for address, nothing in pages.items()
    }
    create_ceiling()
    for run, us in ((one, 10.0), (other, 20.0)):
        create_measurement(measured, run=run, value=us, target=5.0)
        store(compiled(kernel("copies", us, bytes=8)), experiment=model, run=run, repeat=1)
        create_measurement(
            create_experiment(suite="timm", case="model", knobs={}), metric="device_speedup", run=run
        )
    create_regression(create_measurement(create_experiment(case="gemv")))
    for side in (0, 1):
        create_measurement(measured, run=pairs, side=side)
    create_accelerator()
    keys.create_key(name="k", scopes=["read"], who="olga", owner=admin)
    Follow.objects.create(url="https://example.org/", events=["open"])
    Target.objects.create(metric=create_metric(), value=1.0)
    for address in pages:
        assert empty[address] == header(address), address
