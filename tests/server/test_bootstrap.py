"""`manage.py bootstrap`: first account, this machine as a host, registry of metrics; twice is once."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import call_command
from django.db.models.functions import Now

from hud.accounts.keys import find_key
from hud.models import ApiKey, Host, Metric
from runner.schema.metrics import METRICS

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(data: Path) -> Iterator[Path]:
    yield data
    for name in ("operator.json", "host.json"):
        (data / name).unlink(missing_ok=True)


def bootstrap(**options: str) -> str:
    said = StringIO()
    call_command("bootstrap", stdout=said, **options)
    return said.getvalue()


def read(path: Path) -> dict[str, str]:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known: dict[str, str] = json.loads(path.read_text())
    return known


def test_the_operators_password_is_printed_once_and_works(folder: Path) -> None:
    said = bootstrap()
    operator = read(folder / "operator.json")
    assert operator["password"] in said
    assert authenticate(username=operator["username"], password=operator["password"])
    assert operator["password"] not in bootstrap()
    assert read(folder / "operator.json") == operator


def test_a_changed_password_stays(folder: Path) -> None:
    bootstrap()
    user = get_user_model().objects.get(username="operator")
    user.set_password("changed")
    user.save()
    bootstrap()
    assert authenticate(username="operator", password="changed")


def test_a_new_database_gets_the_account_of_the_file(folder: Path) -> None:
    bootstrap()
    password = read(folder / "operator.json")["password"]
    get_user_model().objects.all().delete()
    bootstrap()
    assert authenticate(username="operator", password=password)


def test_this_machine_is_a_host_whose_key_stays_while_it_is_valid(folder: Path) -> None:
    bootstrap(hud="http://127.0.0.1:8000")
    first = read(folder / "host.json")
    key = find_key(first["key"])
    assert key
    assert key.scopes == ["host"]
    assert key.host
    assert key.host.name == first["name"]

    bootstrap(hud="http://127.0.0.1:9000")
    assert read(folder / "host.json") == {**first, "hud": "http://127.0.0.1:9000"}

    ApiKey.objects.update(revoked=Now())
    bootstrap(hud="http://127.0.0.1:9000")
    assert find_key(read(folder / "host.json")["key"])
    assert Host.objects.count() == 1


def test_a_web_machine_without_an_agent_is_no_host(folder: Path) -> None:
    bootstrap()
    assert not Host.objects.exists()
    assert not (folder / "host.json").exists()


def test_a_detached_host_stays_detached(folder: Path) -> None:
    bootstrap(hud="http://127.0.0.1:8000")
    Host.objects.update(detached_at=Now())
    ApiKey.objects.update(revoked=Now())
    said = bootstrap(hud="http://127.0.0.1:8000")
    assert find_key(read(folder / "host.json")["key"]) is None
    assert f"detached the host {Host.objects.get().name}" in said


def test_the_registry_follows_the_catalogue() -> None:
    bootstrap()
    Metric.objects.filter(name="speedup").update(unit="furlong")
    Metric.objects.create(name="somebody's own", title="Somebody's own")
    bootstrap()
    assert Metric.objects.get(name="speedup").unit == METRICS["speedup"].unit
    assert set(Metric.objects.values_list("name", flat=True)) == {*METRICS, "somebody's own"}
