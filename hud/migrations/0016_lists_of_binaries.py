"""A compilation names its binaries by their places in a list, which others of its experiment share.

So far it had them itself, with 8 bytes each.
"""

from __future__ import annotations

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

# Compilations of an experiment, environment and side share a list until they have brought 4,000 binaries.
_TO_LISTS = """
    CREATE TEMPORARY TABLE part ON COMMIT DROP AS
    SELECT run_id, experiment_id, environment_id, repeat, side, binaries,
        coalesce(sum(cardinality(binaries)) OVER (
        PARTITION BY experiment_id, environment_id, side ORDER BY run_id, repeat
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::int / 4000 AS number
    FROM hud_compilation WHERE binaries <> '{}';
    CREATE TEMPORARY TABLE list ON COMMIT DROP AS
    SELECT nextval(pg_get_serial_sequence('hud_binarylist', 'id'))::int AS id, distinct_ones.*
    FROM (
        SELECT experiment_id, environment_id, side, number, array_agg(DISTINCT one) AS binaries
        FROM part, unnest(binaries) AS one GROUP BY 1, 2, 3, 4
    ) distinct_ones;
    INSERT INTO hud_binarylist (id, binaries) SELECT id, binaries FROM list;
    UPDATE hud_compilation c SET binary_list_id = list.id, binary_places = ARRAY(
        SELECT (array_position(list.binaries, one) - 1)::int2
        FROM unnest(part.binaries) WITH ORDINALITY AS found(one, place) ORDER BY place)
    FROM part JOIN list USING (experiment_id, environment_id, side, number)
    WHERE (c.run_id, c.experiment_id, c.environment_id, c.repeat, c.side)
        = (part.run_id, part.experiment_id, part.environment_id, part.repeat, part.side);
    DROP TABLE part, list;
    SET CONSTRAINTS ALL IMMEDIATE;
"""
_FROM_LISTS = """
    UPDATE hud_compilation c SET binaries = ARRAY(
        SELECT l.binaries[one + 1] FROM unnest(c.binary_places) WITH ORDINALITY AS found(one, place)
        ORDER BY place)
    FROM hud_binarylist l WHERE l.id = c.binary_list_id;
    SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0015_annotations")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="BinaryList",
            fields=[
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "binaries",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None
                    ),
                ),
            ],
        ),
        migrations.AddField(
            "compilation",
            "binary_list",
            models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                to="hud.binarylist",
            ),
        ),
        migrations.AddField(
            "compilation",
            "binary_places",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.SmallIntegerField(), default=list, size=None
            ),
        ),
        migrations.RunSQL(_TO_LISTS, _FROM_LISTS),
        migrations.RemoveField("compilation", "binaries"),
    ]
