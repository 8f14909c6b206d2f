"""The source of a binary is that of a host. Of what is stored nobody knows who delivered it, so that it stays
for all runs, like an operator's files. A compilation with impossible kernels is marked."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0047_kept_values")]
    operations: ClassVar = [
        migrations.AddField(
            "compilation", "impossible", models.BooleanField(default=False, db_default=False)
        ),
        migrations.RunSQL(
            """
            DROP INDEX IF EXISTS hud_kernelbinary_binary_00300edd_like;  -- for LIKE, which nobody asks
            ALTER TABLE hud_kernelbinary ADD host_id int4 NOT NULL DEFAULT 0,
                DROP CONSTRAINT hud_kernelbinary_pkey, ADD PRIMARY KEY ("binary", host_id)
            """,
            """
            DELETE FROM hud_kernelbinary WHERE host_id <> 0;
            ALTER TABLE hud_kernelbinary DROP host_id, ADD PRIMARY KEY ("binary")
            """,
            state_operations=[
                migrations.AddField("kernelbinary", "host_id", models.IntegerField(db_default=0)),
                migrations.AlterField("kernelbinary", "binary", models.CharField(max_length=16)),
                migrations.AddField(
                    "kernelbinary",
                    "pk",
                    models.CompositePrimaryKey(
                        "binary", "host_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
            ],
        ),
    ]
