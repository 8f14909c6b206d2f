"""A disk of the database that is full while rows are copied."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client

from hud.accounts.keys import create_key
from hud.models import Measurement, Run
from tests.support.records import as_list, v3_record


@pytest.mark.django_db(transaction=True)
def test_a_disk_that_is_full_inside_copy_is_507(client: Client) -> None:
    secret = create_key(name="k", scopes=["upload"], who="t")[1]

    def upload() -> int:
        return client.post(
            "/api/v1/results",
            as_list(v3_record()),
            content_type="application/json",
            headers={"authorization": f"Bearer {secret}"},
        ).status_code

    with connection.cursor() as cursor:
        # a type that cannot be read: rows fail as they arrive, before the trigger of any table
        cursor.execute(
            """
            CREATE FUNCTION no_room(int2) RETURNS bool LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
            CREATE DOMAIN full_disk AS int2 CHECK (no_room(VALUE));
            ALTER TABLE hud_measurement ALTER COLUMN side TYPE full_disk
            """
        )
        try:
            assert upload() == 507
        finally:
            cursor.execute("ALTER TABLE hud_measurement ALTER COLUMN side TYPE int2")
            cursor.execute("DROP DOMAIN full_disk; DROP FUNCTION no_room")
    assert not Measurement.objects.exists()
    assert not Run.objects.exists()
    assert upload() == 201
