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

    def upload(values: list[float]) -> int:
        return client.post(
            "/api/v1/results",
            as_list(v3_record(values=values)),
            content_type="application/json",
            headers={"authorization": f"Bearer {secret}"},
        ).status_code

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_viewdef('hud_measurement')")
        view = cursor.fetchone()[0]
        # a type that cannot be read: rows fail as they arrive, before the trigger of any table
        cursor.execute(
            """
            CREATE FUNCTION no_room(int2) RETURNS bool LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
            CREATE DOMAIN full_disk AS int2 CHECK (no_room(VALUE));
            DROP VIEW hud_measurement;
            ALTER TABLE hud_point ALTER COLUMN repeat TYPE full_disk;
            ALTER TABLE hud_detailedmeasurement ALTER COLUMN repeat TYPE full_disk;
            """
        )
        try:
            assert upload([1.0]) == 507
            assert upload([1.0, 2.0]) == 507
        finally:
            cursor.execute(
                f"""
                ALTER TABLE hud_point ALTER COLUMN repeat TYPE int2;
                ALTER TABLE hud_detailedmeasurement ALTER COLUMN repeat TYPE int2;
                CREATE VIEW hud_measurement AS {view};
                DROP DOMAIN full_disk; DROP FUNCTION no_room
                """
            )
    assert not Measurement.objects.exists()
    assert not Run.objects.exists()
    assert upload([1.0, 2.0]) == 201
