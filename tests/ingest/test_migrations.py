"""Rows that were stored under an earlier schema."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from hud.models import Measurement
from tests.support.factories import create_measurement, create_run
from tests.support.migrations import migrate

pytestmark = pytest.mark.django_db


def test_the_migrations_make_what_the_models_say() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_a_process_becomes_a_repeat_and_in_pairs_a_side() -> None:
    plain, in_pairs = create_run(), create_run(base_environment="2.9", environment="2.13")
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
