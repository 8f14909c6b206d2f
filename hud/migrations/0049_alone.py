"""Judge series again whose metrics speak for a benchmark alone: they may open regressions now."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0048_impossible_compilations")]
    operations: ClassVar = [
        migrations.RunSQL(
            """
            UPDATE hud_series own SET touched_at = 'epoch', touched_until = now()
            WHERE EXISTS (SELECT FROM hud_seriesstate WHERE series_id = own.id) AND NOT EXISTS (
                SELECT FROM hud_series s JOIN hud_seriesstate t ON t.series_id = s.id
                WHERE s.experiment_id = own.experiment_id AND t.headline)
            """,
            migrations.RunSQL.noop,
        ),
    ]
