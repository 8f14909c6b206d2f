"""No page, answer or message reads raw measurements, but for what rule P5 of points allows.

Every address that can be read is read, as `hud/urls.py` and the API list them, and the statements that it
executes are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import URLPattern, get_resolver
from django.utils import timezone

from hud.accounts.roles import Role, needs_of
from hud.api import api
from hud.models import (
    Bisect,
    Cause,
    Channel,
    Compilation,
    Delivery,
    Follow,
    Import,
    Notice,
    Regression,
    Run,
)
from hud.notifications.messages import queue_messages, queue_overdue
from hud.notifications.texts import request_of
from tests.support.compilations import compiled, kernel, store
from tests.support.contents import fill
from tests.support.factories import (
    create_artifact,
    create_experiment,
    create_measurement,
    create_run,
    create_task,
    create_user,
)

pytestmark = pytest.mark.django_db
RAW = re.compile(r"\bhud_measurement\b")
# What reads measurements, and by which statements
ALLOWED = {
    r"/experiments/\d+/": r"m.run_id = %\(run\)s AND m.series_id = %\(series\)s",  # samples of one point
    # pairs of an A/B run
    r"(/api/v1)?/runs/\d+(/|/live|\.json|/result)": r'FROM "hud_measurement" WHERE \S+"run_id" IN \(%',
    r"/api/v1/export": "",  # raw
    r"/(runs|uploads)/\d+/delete": "",  # what would go
}
FORMER = re.compile(r"/runs/\d+/(log|artifacts/\d+)|/notifications(/|\.json)|/upload/")  # lead elsewhere
STATUSES = {
    "/statusz": {200, 503},
    "/login/": {302},
    "/login/sso/": {404},
    "/follow/feed/x.xml": {404},
    "/runner/none.whl": {404},
    f"/code/kernel-{16 * '0'}.py": {404},
    "/login/sso/callback/": {404},
}


class RawReads(list[str]):
    """The statements that name measurements, as they are executed."""

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if RAW.search(str(sql)):
            self.append(" ".join(str(sql).split()))
        return execute(sql, params, many, context)


@pytest.fixture
def addresses() -> list[str]:
    """Everything that can be read, with something to show."""
    contents = fill()
    model = create_experiment(suite="timm", case="model", knobs={})
    base, head = (create_run(commit=f"{number:040x}") for number in (1, 2))
    for run, us in ((base, 10.0), (head, 20.0)):
        create_measurement(model, metric="device_speedup", run=run, samples=[us, us + 1])
        store(compiled(kernel("copies", us, bytes=8)), experiment=model, run=run, repeat=1)
    pairs = create_run(base_interpreter="old", interpreter="new")
    for side in (0, 1):
        create_measurement(model, run=pairs, side=side, value=10.0 + side)
    regression = Regression.objects.latest("pk")
    cause = Cause.objects.create(stream=regression.series.stream, night=timezone.now(), title="gemv")
    Regression.objects.update(cause_row=cause)
    task = create_task(pairs, state="done")
    artifact = create_artifact(task, "log", b"text").pk
    bisect = Bisect.objects.create(regression=regression, builds=[], state="succeeded")
    job = Import.objects.create(content_key="c", state="done", finished=timezone.now(), stream=head.stream)
    ids = {
        "run_id": pairs.pk, "artifact_pk": artifact, "artifact_id": artifact, "uid": job.uid,
        "cause_id": cause.pk, "bisect_id": bisect.pk, "regression_id": regression.pk, "experiment": model.pk,
        "metric": "device_speedup", "variant": Compilation.objects.exclude(variant="")[0].variant,
        "token": "x", "correction_id": contents.parts["corrections"], "suite": model.suite,
        "case": model.case, "binary": 16 * "0",
    }  # fmt: skip
    sides = f"base=run:{base.pk}&head=run:{head.pk}"
    points = f"base=run:{base.pk}/experiment:{model.pk}&head=run:{head.pk}/experiment:{model.pk}"
    routes = [str(pattern.pattern) for pattern in get_resolver().url_patterns if _is_readable(pattern)]
    pages = [_filled(route, {**ids, "run_id": head.pk}, contents.parts) for route in routes]
    calls = [
        _filled(path.lstrip("/").replace("{", "<").replace("}", ">"), ids, {})
        for path, operations in api.get_openapi_schema()["paths"].items()
        if "get" in operations and path.rpartition("/")[2] not in {"attribution", "compare"}  # below
    ]
    owner = {"artifacts": pairs.pk, "log": Run.objects.get(state="running").pk}
    found = [
        re.sub(r"/runs/\d+/(artifacts|log)", lambda m: f"/runs/{owner[m[1]]}/{m[1]}", path)
        for path in [*pages, *calls]
    ]
    return [
        *found, *contents.more, f"/runs/{pairs.pk}/", f"/runs/{pairs.pk}/live",
        f"/runs/{pairs.pk}.json?table=pairs", f"/experiments/{model.pk}/?point={head.pk}&table=all",
        *(f"/{page}?{sides}&rows=all" for page in ("compare/", "compare.json", "compare.csv")),
        *(f"/{page}?{points}" for page in ("code/", "code.json", "api/v1/attribution")),
        f"/api/v1/compare?{sides}", f"/api/v1/compare?{sides}&format=md",
        f"/experiments/{model.pk}/?base={base.pk}&head={head.pk}",
        "/api/v1/export?layout=wide&format=csv&suite=timm", "/?arch=h200", "/search/?q=model",
    ]  # fmt: skip


def _is_readable(pattern: Any) -> bool:
    return isinstance(pattern, URLPattern) and "GET" in (needs_of(pattern.name or "") or {})


def _filled(route: str, ids: dict[str, Any], of_first_word: dict[str, Any]) -> str:
    first = route.partition("/")[0].partition(".")[0]

    def value(match: re.Match[str]) -> str:
        name = match[1].rpartition(":")[2]
        if name == "data_format":
            return "json"
        return str(ids[name] if name in ids else of_first_word[first])

    return "/" + re.sub(r"<([^>]+)>", value, route)


def test_no_address_reads_measurements_but_where_it_must(addresses: list[str], client: Client) -> None:
    client.force_login(create_user(role=Role.ADMIN))
    read: dict[str, list[str]] = {}
    for address in addresses:
        raw = RawReads()
        with connection.execute_wrapper(raw):
            answer: Any = client.get(address)
            if answer.streaming:
                b"".join(answer.streaming_content)
        moved = {302} if FORMER.fullmatch(address) else set()
        assert answer.status_code in STATUSES.get(address, {200}) | moved, (address, answer.content[:300])
        if raw:
            read[address] = raw
    used = set()
    for address, statements in read.items():
        place = next((place for place in ALLOWED if re.fullmatch(place, address.partition("?")[0])), None)
        assert place is not None, (address, statements)
        used.add(place)
        assert all(re.search(ALLOWED[place], statement) for statement in statements), (address, statements)
        assert len(statements) == 1 or "delete" in address, (address, statements)
    assert used == set(ALLOWED), "nothing is allowed that nobody needs"


def test_no_message_reads_measurements(addresses: list[str]) -> None:
    assert addresses
    now = timezone.now()
    for kind in Channel:
        Follow.objects.create(
            name=kind,
            url="https://example.org/x",
            channel=kind,
            secret="YSBzZWNyZXQgb2YgMjQgY2hhcmFjdGVy",
            events=["open"],
        )
    for regression in Regression.objects.all():
        Notice.objects.create(regression=regression, state="open", created=now - timedelta(hours=1))
    raw = RawReads()
    with connection.execute_wrapper(raw):
        queue_overdue(now + timedelta(days=9))
        assert queue_messages() >= len(Channel)
        assert all(request_of(delivery, now)[0] for delivery in Delivery.objects.all())
    assert not raw
