"""A measurement's `process` (in an A/B run twice the number of the pair, and one more for the new side) becomes
`repeat` and `side`; `median` becomes `value`, `warning` becomes `note`, and `compilation` is new.

In SQL, because only rows of A/B runs have to be written anew, and Django has no operation for a primary key.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.models import Q

_FORWARDS = """
    ALTER TABLE hud_measurement DROP CONSTRAINT hud_measurement_pkey;
    ALTER TABLE hud_measurement RENAME COLUMN process TO repeat;
    ALTER TABLE hud_measurement RENAME COLUMN median TO value;
    ALTER TABLE hud_measurement RENAME COLUMN warning TO note;
    ALTER TABLE hud_measurement RENAME CONSTRAINT median_is_finite TO value_is_finite;
    ALTER TABLE hud_measurement ADD COLUMN side smallint NOT NULL DEFAULT 0, ADD COLUMN compilation smallint;
    ALTER TABLE hud_measurement ALTER COLUMN side DROP DEFAULT;
    UPDATE hud_measurement SET repeat = repeat / 2, side = repeat % 2
    WHERE run_id IN (SELECT id FROM hud_run WHERE base_environment <> '');
    ALTER TABLE hud_measurement ADD PRIMARY KEY (run_id, series_id, environment_id, repeat, side);
"""
_BACKWARDS = """
    ALTER TABLE hud_measurement DROP CONSTRAINT hud_measurement_pkey;
    UPDATE hud_measurement SET repeat = 2 * repeat + side
    WHERE run_id IN (SELECT id FROM hud_run WHERE base_environment <> '');
    ALTER TABLE hud_measurement DROP COLUMN side, DROP COLUMN compilation;
    ALTER TABLE hud_measurement RENAME CONSTRAINT value_is_finite TO median_is_finite;
    ALTER TABLE hud_measurement RENAME COLUMN note TO warning;
    ALTER TABLE hud_measurement RENAME COLUMN value TO median;
    ALTER TABLE hud_measurement RENAME COLUMN repeat TO process;
    ALTER TABLE hud_measurement ADD PRIMARY KEY (run_id, series_id, environment_id, process);
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0002_values_of_xla")]
    operations: ClassVar = [
        migrations.RunSQL(
            _FORWARDS,
            _BACKWARDS,
            state_operations=[
                migrations.RemoveIndex("measurement", "measurement_series"),
                migrations.RemoveConstraint("measurement", "median_is_finite"),
                migrations.RemoveConstraint("measurement", "missing_value_has_status"),
                migrations.RenameField("measurement", "process", "repeat"),
                migrations.RenameField("measurement", "median", "value"),
                migrations.RenameField("measurement", "warning", "note"),
                migrations.AddField("measurement", "side", models.SmallIntegerField(default=0)),
                migrations.AddField("measurement", "compilation", models.SmallIntegerField(null=True)),
                migrations.AlterField(
                    "measurement",
                    "pk",
                    models.CompositePrimaryKey(
                        "run", "series", "environment", "repeat", "side",
                        blank=True, editable=False, primary_key=True, serialize=False,
                    ),
                ),
                migrations.AddIndex(
                    "measurement",
                    models.Index(
                        fields=["series", "at", "run"],
                        include=("environment", "value", "status"),
                        name="measurement_series",
                    ),
                ),
                migrations.AddConstraint(
                    "measurement",
                    models.CheckConstraint(
                        condition=Q(value__isnull=True) | Q(value__gte=-1e300, value__lte=1e300),
                        name="value_is_finite",
                    ),
                ),
                migrations.AddConstraint(
                    "measurement",
                    models.CheckConstraint(
                        condition=Q(value__isnull=False) | Q(code__isnull=False) | ~Q(status=0),
                        name="missing_value_has_status",
                    ),
                ),
            ],
        ),
    ]
