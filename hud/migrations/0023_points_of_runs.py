"""A run says how many points it has, and how many of them regressed; a stream whether it had enough
nights to be the front one."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0022_counts_of_compilations")]
    operations: ClassVar = [
        migrations.AddField("run", "points", models.IntegerField(db_default=0, default=0)),
        migrations.AddField("run", "regressed", models.IntegerField(db_default=0, default=0)),
        migrations.AddIndex(
            "seriesstate",
            models.Index(condition=models.Q(("headline", True)), fields=["series"], name="state_headline"),
        ),
        migrations.AddField("stream", "has_nights", models.BooleanField(db_default=False, default=False)),
        migrations.RunSQL(
            """
            UPDATE hud_run SET points = counted.points, regressed = counted.regressed
            FROM (
                SELECT run_id, count(*) AS points, count(*) FILTER (WHERE verdict = 3) AS regressed
                FROM hud_point GROUP BY 1
            ) counted
            WHERE hud_run.id = counted.run_id
            """,
            migrations.RunSQL.noop,
        ),
        # as an earlier version wrote what is unknown
        migrations.RunSQL(
            """
            UPDATE hud_point SET spread = nullif(spread, -1e30::real), change = nullif(change, -1e30::real),
                noise = nullif(noise, -1e30::real), factor = nullif(factor, -1e30::real)
            WHERE -1e30::real IN (spread, change, noise, factor);
            UPDATE hud_sidepoint SET spread = NULL WHERE spread = -1e30::real;
            """,
            migrations.RunSQL.noop,
        ),
    ]
