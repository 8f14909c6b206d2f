"""The interval of a regret is its spread, the number of its compilations the number of its samples. Its note
had both in words."""

from django.db import migrations

_REGRETS = """(SELECT s.id FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id
    WHERE k.name = 'autotune_regret')"""
_COMPILATIONS = "substring(note from '^95 % interval .* over (\\d+) compilations')::int"
_NOTE = "CASE WHEN note LIKE '%; at least%' THEN substring(note from 'at least.*') END"


class Migration(migrations.Migration):
    dependencies = [("hud", "0030_sizes_of_means")]
    operations = [
        migrations.RunSQL(
            f"UPDATE {table} SET {count} = {_COMPILATIONS}, note = {_NOTE} "
            f"WHERE series_id IN {_REGRETS} AND {_COMPILATIONS} IS NOT NULL",
            migrations.RunSQL.noop,
        )
        for table, count in (("hud_detailedmeasurement", "n"), ("hud_point", "samples"))
    ]
