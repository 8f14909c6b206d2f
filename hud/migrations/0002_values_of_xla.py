"""Values of PyTorch/XLA's repeats that were stored as plain medians: the first run, which compiles, is left
out, and the compiler's counters are summed, as `runner.schema.metrics.value_rule` has it since."""

from __future__ import annotations

import math
from typing import Any

from django.db import migrations

from runner.schema.statistics import median, spread

_STEADY = (
    r"^((trace_)?(total|per_iter)_time|(total|per_iter)_(cpu|cuda)_time_s|xla_ExecuteTime_(time_s|number))$"
)
_SUMMED = r"^xla_CompileTime_(time_s|number)$"


def take_anew(_apps: Any, editor: Any) -> None:
    """Medians and spreads from the stored samples; what changes is judged again."""
    with editor.connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT m.run_id, m.series_id, m.environment_id, m.process, m.samples, k.name ~ %s
            FROM hud_experiment e
            JOIN hud_series s ON s.experiment_id = e.id
            JOIN hud_metric k ON k.id = s.metric_id
            JOIN hud_measurement m ON m.series_id = s.id
            WHERE e.suite = 'xla' AND cardinality(m.samples) > 1 AND (k.name ~ %s OR k.name ~ %s)
            """,
            [_SUMMED, _SUMMED, _STEADY],
        )
        rows = cursor.fetchall()
        cursor.executemany(
            """
            UPDATE hud_measurement SET median = %s, spread = %s
            WHERE run_id = %s AND series_id = %s AND environment_id = %s AND process = %s
            """,
            [
                (
                    math.fsum(samples) if summed else median(samples[1:]),
                    0.0 if summed else spread(samples[1:]),
                    *place,
                )
                for *place, samples, summed in rows
            ],
        )
        cursor.executemany(
            "INSERT INTO hud_touchedrun (run_id) VALUES (%s)", [(run,) for run in sorted({row[0] for row in rows})]
        )


class Migration(migrations.Migration):
    dependencies = [("hud", "0001_initial")]
    operations = [migrations.RunPython(take_anew, migrations.RunPython.noop)]
