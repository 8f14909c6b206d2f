"""The schema of an earlier release, for tests of what a migration does to stored rows."""

from __future__ import annotations

from django.db import connection
from django.db.migrations.executor import MigrationExecutor


def migrate(name: str = "") -> None:
    """Bring the schema to migration `name`, or to today's, in the test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a table with pending checks cannot be altered
    executor = MigrationExecutor(connection)
    executor.migrate([("hud", name)] if name else executor.loader.graph.leaf_nodes("hud"))
