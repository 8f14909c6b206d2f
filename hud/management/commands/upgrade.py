"""`manage.py upgrade [--dry-run]`: migrate the database, and print what was counted before and after."""

from typing import Any

from django.apps import apps
from django.core.checks import Tags
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction

from hud.points import write as points
from hud.sql import fetch_tuples

_COUNTED = {  # what the move to streams and points must keep; tables that are not there yet count nothing
    "uploads": "hud_upload",
    "runs": "hud_run",
    "expected results": "hud_expectation",
    "experiments": "hud_experiment",
    "series": "hud_series",
    "measurements": "hud_measurement",
    "points": "hud_point",
    "points of A/B sides": "hud_sidepoint",
    "regressions": "hud_regression",
    "decisions and events of regressions": "hud_regressionevent",
    "annotations": "hud_annotation",
    "API keys": "hud_apikey",
}
_OF_STREAMS = """
    SELECT s.name, count(DISTINCT r.id), count(m.run_id)
    FROM hud_run r JOIN hud_stream s ON s.id = r.stream_id LEFT JOIN hud_measurement m ON m.run_id = r.id
    GROUP BY 1 ORDER BY 1
"""


class Command(BaseCommand):
    help = "Migrate the database and make missing points; print rows before and after, if they are others."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="do it in a transaction that is undone")

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        self.check(app_configs=[apps.get_app_config("hud")], tags=[Tags.database], databases=["default"])
        before = _counts()
        if dry_run:
            with transaction.atomic():
                self._move(before)
                transaction.set_rollback(True)
            self.stdout.write("This was a dry run: nothing has changed.")
        else:
            self._move(before)

    def _move(self, before: dict[str, int | None]) -> None:
        call_command("migrate", verbosity=0)
        if points.are_missing():
            points.rebuild()
        after = _counts()
        if after == before or not before["runs"]:
            return
        self.stdout.write(f"{'':<38}{'before':>12}{'after':>12}")
        for name, count in after.items():
            self.stdout.write(f"{name:<38}{_number(before[name]):>12}{_number(count):>12}")
        for stream, runs, measurements in fetch_tuples(_OF_STREAMS, []):
            self.stdout.write(f"stream {stream}: {runs:,} runs, {measurements:,} measurements")


def _counts() -> dict[str, int | None]:
    """Return the rows of each table; None for one that is not there."""
    there = connection.introspection.table_names(include_views=True)
    counted = {name: f"SELECT count(*) FROM {table}" for name, table in _COUNTED.items() if table in there}  # noqa: S608 — of this module  # nosec B608
    return dict.fromkeys(_COUNTED) | {name: fetch_tuples(sql, [])[0][0] for name, sql in counted.items()}


def _number(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"
