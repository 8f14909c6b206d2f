"""A run may have several points of a series, at times of their own: a verdict's key holds the time. Imports
keep the address of their client.

The key in SQL, because Django has no operation for a primary key.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

_FORWARDS = """
    ALTER TABLE hud_verdict DROP CONSTRAINT hud_verdict_pkey;
    ALTER TABLE hud_verdict ADD PRIMARY KEY (run_id, series_id, environment_id, order_time);
"""
_BACKWARDS = """
    ALTER TABLE hud_verdict DROP CONSTRAINT hud_verdict_pkey;
    DELETE FROM hud_verdict v USING hud_verdict later WHERE v.run_id = later.run_id
        AND v.series_id = later.series_id AND v.environment_id = later.environment_id
        AND v.order_time < later.order_time;
    ALTER TABLE hud_verdict ADD PRIMARY KEY (run_id, series_id, environment_id);
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0010_regressions")]
    operations: ClassVar = [
        migrations.RunSQL(
            _FORWARDS,
            _BACKWARDS,
            state_operations=[
                migrations.AlterField(
                    "verdict",
                    "pk",
                    models.CompositePrimaryKey(
                        "run", "series", "environment", "order_time",
                        blank=True, editable=False, primary_key=True, serialize=False,
                    ),
                ),
            ],
        ),
        migrations.AddField(
            "import", "address", models.CharField(blank=True, db_default="", default="", max_length=100)
        ),
    ]  # fmt: skip
