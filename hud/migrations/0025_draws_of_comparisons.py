"""Which draw of the autotuner a process of an A/B comparison was pinned to, and what could be drawn."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

_VIEW = """CREATE OR REPLACE VIEW hud_measurement AS
    SELECT run_id, series_id, environment_id, order_time, value, samples, target, spread, n, status, repeat,
        side, compilation, target_arch, code, note, upload_id, false AS in_point{own}
    FROM hud_detailedmeasurement
    UNION ALL
    SELECT run_id, series_id, environment_id, order_time, value, NULL::float8[], target, NULL::float8, samples,
        status, repeat, 0::int2, compilation, target_arch, code, note::varchar(300), upload_id, true{of_point}
    FROM hud_point WHERE repeat IS NOT NULL;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0024_measurements_in_points")]
    operations: ClassVar = [
        migrations.AddField("detailedmeasurement", "draw", models.SmallIntegerField(null=True)),
        migrations.AddField("measurement", "draw", models.SmallIntegerField(null=True)),
        migrations.RunSQL(
            _VIEW.format(own=", draw", of_point=", NULL::int2"),
            "DROP VIEW hud_measurement;" + _VIEW.format(own="", of_point=""),
        ),
        migrations.AddField("compilation", "draw", models.SmallIntegerField(null=True)),
        migrations.AddField(
            "compilation", "unpinned", ArrayField(models.CharField(max_length=16), null=True)
        ),
        migrations.AddField(
            "kernel", "offered", ArrayField(models.CharField(max_length=500), default=list, db_default=[])
        ),
    ]
