"""Rows that were stored under an earlier schema."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from hud.accounts.roles import Role
from hud.models import Measurement, Run, RunRequest, ScheduleTrigger
from hud.runs import schedules
from tests.support.factories import (
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_upload,
    create_user,
)
from tests.support.migrations import migrate

pytestmark = pytest.mark.django_db


def test_the_migrations_make_what_the_models_say() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_a_process_becomes_a_repeat_and_in_pairs_a_side() -> None:
    plain, in_pairs = create_run(), create_run(base_interpreter="2.9", interpreter="2.13")
    for repeat in range(3):
        create_measurement(run=plain, value=10.0 + repeat, repeat=repeat, note=f"note {repeat}")
        for side in range(2):
            create_measurement(run=in_pairs, value=20.0 + 2 * repeat + side, repeat=repeat, side=side)
    fields = ("run_id", "repeat", "side", "compilation", "value", "note", "n", "status")
    today = list(Measurement.objects.order_by("value").values_list(*fields))
    migrate("0002_values_of_xla")
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id, process, median, warning FROM hud_measurement ORDER BY median")
        assert cursor.fetchall() == [
            *((plain.pk, number, 10.0 + number, f"note {number}") for number in range(3)),
            *((in_pairs.pk, number, 20.0 + number, None) for number in range(6)),
        ]
    migrate()
    assert list(Measurement.objects.order_by("value").values_list(*fields)) == today
    with pytest.raises(IntegrityError), transaction.atomic():
        create_measurement(run=plain, repeat=2)


def test_the_request_of_a_run_becomes_a_row_and_an_upload_has_none() -> None:
    schedule = schedules.create(name="nightly", cron="0 3 * * *", suite="micro", who="me")
    asked: dict[str, Any] = {
        "selection": {"suite": "micro", "cases": ["gemv"], "repeats": 5},
        "host": create_host("gpu-1"),
        "arch": "h200",
        "device": "cuda",
        "labels": {"gpu": "h200"},
        "candidate_options": {"epilogue_fusion": False},
        "experiment": create_experiment(),
        "retry_of": create_run(),
        "trigger": ScheduleTrigger.objects.create(schedule=schedule, due=timezone.now()),
        "requested_by": "olga",
        "interactive": True,
    }
    run = create_run(interpreter="2.13", base_interpreter="2.13", host_name="gpu-1", **asked)
    create_run(upload=create_upload())
    today = [list(model.objects.order_by("pk").values()) for model in (Run, RunRequest)]
    assert [len(rows) for rows in today] == [3, 2]
    migrate("0003_repeat_and_side")
    with connection.cursor() as cursor:
        cursor.execute("SELECT environment, request->>'suite', watched FROM hud_run WHERE id = %s", [run.pk])
        assert cursor.fetchone() == ("2.13", "micro", True)
    migrate()
    assert [list(model.objects.order_by("pk").values()) for model in (Run, RunRequest)] == today


def test_existing_logins_get_roles() -> None:
    create_user("has one", Role.OPERATOR)
    for name in ("root", "staff", "plain"):
        User.objects.create_user(name, is_superuser=name == "root", is_staff=name == "staff")
    import_module("hud.migrations.0007_roles").give_roles(apps, None)
    roles = {user.username: [group.name for group in user.groups.all()] for user in User.objects.all()}
    assert roles == {"has one": ["operator"], "root": ["admin"], "staff": ["admin"], "plain": ["viewer"]}
    assert set(User.objects.filter(is_superuser=True, is_staff=True)) == set(
        User.objects.filter(username__in=["root", "staff"])
    )
