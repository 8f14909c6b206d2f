"""What the database itself takes for the rows of an upload: COPY into a temporary table, INSERT from there
with ON CONFLICT into a table with the same columns, checks and indexes."""

from __future__ import annotations

import psycopg
from django.conf import settings


class Yardstick:
    def __init__(self) -> None:
        database = settings.DATABASES["default"]
        self._connection = psycopg.connect(
            host=database["HOST"],
            port=database["PORT"],
            user=database["USER"],
            dbname=database["NAME"],
            autocommit=True,
        )
        self._connection.execute("CREATE TABLE yardstick (LIKE hud_point INCLUDING ALL)")
        found = self._connection.execute("SELECT * FROM yardstick")
        self._types = [column.type_code for column in found.description or []]

    def catch_up(self) -> None:
        """Brings the table to the size of the real one."""
        self._connection.execute("INSERT INTO yardstick SELECT * FROM hud_point ON CONFLICT DO NOTHING")
        self._connection.execute("VACUUM ANALYZE yardstick")

    def rows_of(self, run: int) -> list[tuple[object, ...]]:
        return self._connection.execute("SELECT * FROM hud_point WHERE run_id = %s", [run]).fetchall()

    def copy(self, rows: list[tuple[object, ...]]) -> int:
        """Stores them in a transaction of their own; returns how many are new."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE plain (LIKE yardstick) ON COMMIT DROP")
            with cursor.copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(self._types)
                for row in rows:
                    copy.write_row(row)
            cursor.execute("INSERT INTO yardstick SELECT * FROM plain ON CONFLICT DO NOTHING")
            return cursor.rowcount
