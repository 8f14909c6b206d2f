"""The point of a single measurement with at most one sample is all that is stored of it. The others stay in
a table; `hud_measurement` becomes a view of both. A migration that changes the type of a column of these
tables drops the view first."""

from __future__ import annotations

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import hud.models.points

_MEASUREMENT = """run_id, series_id, environment_id, order_time, value, samples, target, spread, n, status, repeat,
    side, compilation, target_arch, code, note, quality, draw, upload_id"""

# A new table takes half as long as an update of all rows, and leaves no dead ones.
_FOLD = f"""
    ALTER TABLE hud_point RENAME TO old_point;
    CREATE TABLE hud_point (LIKE old_point INCLUDING DEFAULTS);
    ALTER TABLE hud_point ADD upload_id int4, ADD repeat int2, ADD compilation int2;
    INSERT INTO hud_point SELECT p.*, m.upload_id, m.repeat, m.compilation
    FROM old_point p LEFT JOIN hud_detailedmeasurement m ON m.run_id = p.run_id AND m.series_id = p.series_id
        AND m.environment_id = p.environment_id AND m.order_time = p.order_time AND m.side = 0
        AND p.processes = 1 AND m.samples IS NULL AND m.spread IS NULL AND m.draw IS NULL AND m.n = p.samples
        AND (m.value, m.status, m.code, m.note, m.target, m.target_arch, m.quality)
            IS NOT DISTINCT FROM (p.value, p.status, p.code, p.note, p.target, p.target_arch, p.quality);
    DROP TABLE old_point;
    ALTER TABLE hud_point ADD PRIMARY KEY (series_id, order_time, run_id, environment_id);
    CREATE INDEX point_run ON hud_point (run_id, series_id);
    ANALYZE hud_point;
    DELETE FROM hud_detailedmeasurement m USING hud_point p
    WHERE m.run_id = p.run_id AND m.series_id = p.series_id AND m.environment_id = p.environment_id
        AND m.order_time = p.order_time AND m.repeat = p.repeat AND m.side = 0;
    CREATE VIEW hud_measurement AS SELECT {_MEASUREMENT}, false AS in_point FROM hud_detailedmeasurement
    UNION ALL
    SELECT run_id, series_id, environment_id, order_time, value, NULL::float8[], target, NULL::float8, samples,
        status, repeat, 0::int2, compilation, target_arch, code, note::varchar(300), quality::varchar(20), NULL::int2, upload_id,
        true
    FROM hud_point WHERE repeat IS NOT NULL;
"""
_UNFOLD = f"""
    INSERT INTO hud_detailedmeasurement ({_MEASUREMENT})
    SELECT {_MEASUREMENT} FROM hud_measurement WHERE in_point;
    DROP VIEW hud_measurement;
    ALTER TABLE hud_point DROP upload_id, DROP repeat, DROP compilation;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0027_draws_of_comparisons")]
    operations: ClassVar = [
        migrations.RenameModel("Measurement", "DetailedMeasurement"),
        migrations.RunSQL(
            _FOLD,
            _UNFOLD,
            state_operations=[
                migrations.AddField("point", "compilation", models.SmallIntegerField(null=True)),
                migrations.AddField("point", "repeat", models.SmallIntegerField(null=True)),
                migrations.AddField(
                    "point",
                    "upload",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="hud.upload",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            "Measurement",
            [
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "run",
                        "series",
                        "environment",
                        "repeat",
                        "side",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("order_time", models.DateTimeField()),
                ("value", models.FloatField(null=True)),
                (
                    "samples",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(), null=True, size=None
                    ),
                ),
                ("target", models.FloatField(null=True)),
                ("spread", models.FloatField(null=True)),
                ("n", models.IntegerField(default=1)),
                ("status", models.SmallIntegerField(default=0)),
                ("repeat", models.SmallIntegerField(default=0)),
                ("side", models.SmallIntegerField(default=0)),
                ("compilation", models.SmallIntegerField(null=True)),
                ("target_arch", models.CharField(max_length=60, null=True)),
                ("code", models.CharField(max_length=200, null=True)),
                ("note", models.CharField(max_length=300, null=True)),
                ("quality", models.CharField(max_length=20, null=True)),
                ("draw", models.SmallIntegerField(null=True)),
                ("in_point", models.BooleanField()),
            ],
            options={"db_table": "hud_measurement", "managed": False},
        ),
        migrations.AddConstraint(
            "point",
            models.CheckConstraint(
                condition=hud.models.points.is_finite("value")
                & hud.models.points.is_finite("target"),
                name="point_is_finite",
            ),
        ),
        migrations.AddConstraint(
            "point",
            models.CheckConstraint(
                condition=models.Q(repeat__isnull=True)
                | models.Q(processes=1)
                & (
                    models.Q(value__isnull=False)
                    | models.Q(code__isnull=False)
                    | models.Q(status_code=0, _negated=True)
                ),
                name="held_measurement",
            ),
        ),
    ]
