"""Give every run a stream, and every series the points of one stream; lists of expected results become
expectations.

Points themselves are made by `manage.py points --rebuild`, which `bootstrap` runs where measurements have
none: it is made of the function that ingest calls, which a migration must not depend on. The judge then
judges each series anew; regressions, their events and what people decided stay.
"""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models

import hud.models.streams

_SLUG = "left(trim(BOTH '-._' FROM regexp_replace(lower({0}), '[^a-z0-9._-]+', '-', 'g')), 60)"

# Keys that may upload: a stream of their name.
_KEYS = f"""
    INSERT INTO hud_stream (name, aliases, title, is_front, owner_id, key_id)
    SELECT DISTINCT ON (slug) slug, '{{}}'::varchar[], '', false, k.owner_id,
        CASE WHEN k.owner_id IS NULL THEN k.id END
    FROM (SELECT *, coalesce(nullif({_SLUG.format("name")}, ''), 'key-' || id) AS slug FROM hud_apikey
        WHERE host_id IS NULL) k
    WHERE 'upload' = ANY(k.scopes) OR EXISTS (SELECT FROM hud_upload u WHERE u.key_id = k.id)
    ORDER BY slug, k.id
    ON CONFLICT (name) DO NOTHING;
    UPDATE hud_apikey k SET stream_id = s.id FROM hud_stream s
    WHERE k.host_id IS NULL AND s.name = coalesce(nullif({_SLUG.format("k.name")}, ''), 'key-' || k.id)
        AND s.name NOT IN ('nightly', 'samples', 'import', 'adhoc');
"""

_UPLOADS = """
    UPDATE hud_upload u SET stream_id = coalesce(k.stream_id, (SELECT id FROM hud_stream WHERE name =
        CASE WHEN o.key_id IS NULL AND o.filename LIKE 'samples/%' THEN 'samples'
            WHEN o.key_id IS NULL THEN 'import' ELSE 'adhoc' END))
    FROM hud_upload o LEFT JOIN hud_apikey k ON k.id = o.key_id WHERE o.id = u.id;
    UPDATE hud_import i SET stream_id = coalesce(k.stream_id, (SELECT id FROM hud_stream WHERE name = 'adhoc'))
    FROM hud_import o LEFT JOIN hud_apikey k ON k.id = o.key_id WHERE o.id = i.id;
    SET CONSTRAINTS ALL IMMEDIATE;
    ALTER TABLE hud_upload ALTER COLUMN stream_id SET NOT NULL;
    ALTER TABLE hud_import ALTER COLUMN stream_id SET NOT NULL;
"""

_RUNS = """
    UPDATE hud_run r SET rerun = true FROM hud_runrequest q
    WHERE q.run_id = r.id
        AND (q.experiment_id IS NOT NULL OR q.retry_of_id IS NOT NULL OR q.caches = 'pinned');
    UPDATE hud_run r SET stream_id = coalesce(u.stream_id, (SELECT id FROM hud_stream WHERE name =
        CASE WHEN q.trigger_id IS NOT NULL THEN 'nightly' ELSE 'adhoc' END))
    FROM hud_run x LEFT JOIN hud_runrequest q ON q.run_id = x.id LEFT JOIN hud_upload u ON u.id = x.upload_id
    WHERE r.id = x.id AND NOT x.rerun;
    -- a rerun belongs to what it repeats: to the run it names, else to the newest one of its experiment
    DO $$ BEGIN LOOP
        UPDATE hud_run r SET stream_id = o.stream_id FROM hud_runrequest q JOIN hud_run o ON o.id = q.retry_of_id
        WHERE q.run_id = r.id AND r.stream_id IS NULL AND o.stream_id IS NOT NULL;
        EXIT WHEN NOT FOUND;
    END LOOP; END $$;
    UPDATE hud_run r SET stream_id = (
        SELECT o.stream_id FROM hud_runrequest q JOIN hud_series s ON s.experiment_id = q.experiment_id
        JOIN hud_measurement m ON m.series_id = s.id JOIN hud_run o ON o.id = m.run_id
        WHERE q.run_id = r.id AND o.stream_id IS NOT NULL ORDER BY m.order_time DESC LIMIT 1)
    WHERE r.stream_id IS NULL;
    UPDATE hud_run SET stream_id = (SELECT id FROM hud_stream WHERE name = 'adhoc') WHERE stream_id IS NULL;
    SET CONSTRAINTS ALL IMMEDIATE;
    ALTER TABLE hud_run ALTER COLUMN stream_id SET NOT NULL;
"""

# A list says what is expected, as its format tells; what it does not say stays ''.
_EXPECTATIONS = """
    CREATE TEMPORARY TABLE listed ON COMMIT DROP AS
    SELECT r.id AS run_id FROM hud_run r JOIN hud_upload u ON u.id = r.upload_id
    WHERE u.format = 'expected_accuracy';
    INSERT INTO hud_expectation (stream_id, upload_id, suite, "case", mode, dtype, backend, device, dynamic,
        metric, value, status, code, commit, listed)
    SELECT r.stream_id, coalesce(m.upload_id, r.upload_id), e.suite, e."case", e.mode,
        e.dtype || coalesce('_' || (e.knobs->>'amp_dtype'), ''),
        replace(e.backend, 'inductor_cudagraphs', 'inductor'), e.device, e.dynamic, k.name, m.value, m.status,
        coalesce(m.code, ''), r.commit, r.order_time
    FROM listed JOIN hud_run r ON r.id = listed.run_id
    JOIN hud_measurement m ON m.run_id = r.id JOIN hud_series s ON s.id = m.series_id
    JOIN hud_experiment e ON e.id = s.experiment_id JOIN hud_metric k ON k.id = s.metric_id;
    DELETE FROM hud_measurement WHERE run_id IN (SELECT run_id FROM listed);
    DELETE FROM hud_unjudgedrun WHERE run_id IN (SELECT run_id FROM listed);
    DELETE FROM hud_verdict WHERE run_id IN (SELECT run_id FROM listed);
    UPDATE hud_regression SET first_run_id = NULL WHERE first_run_id IN (SELECT run_id FROM listed);
    UPDATE hud_regression SET last_good_run_id = NULL WHERE last_good_run_id IN (SELECT run_id FROM listed);
    UPDATE hud_regression SET latest_run_id = NULL WHERE latest_run_id IN (SELECT run_id FROM listed);
    UPDATE hud_upload u SET receipt = jsonb_set(receipt, '{run_ids}', '[]')
    WHERE id IN (SELECT upload_id FROM hud_run WHERE id IN (SELECT run_id FROM listed));
    DELETE FROM hud_run WHERE id IN (SELECT run_id FROM listed);
    DROP TABLE listed;
"""

# The stream with most of a series' rows keeps its id, and with it its regressions; each other gets a new one.
_SERIES = """
    DELETE FROM hud_seriesstate;
    CREATE TEMPORARY TABLE part ON COMMIT DROP AS
    SELECT series_id, stream_id, count, row_number() OVER (
            PARTITION BY series_id ORDER BY count DESC, stream_id) AS number, first, last
    FROM (
        SELECT m.series_id, r.stream_id, count(*) AS count, min(m.order_time) AS first,
            max(m.order_time) AS last
        FROM hud_measurement m JOIN hud_run r ON r.id = m.run_id GROUP BY 1, 2
    ) counted;
    UPDATE hud_series s SET stream_id = part.stream_id, touched_at = part.first, touched_until = part.last,
        digest = NULL
    FROM part WHERE part.series_id = s.id AND part.number = 1;
    DELETE FROM hud_regressionevent WHERE regression_id IN (SELECT id FROM hud_regression WHERE series_id IN (
        SELECT id FROM hud_series WHERE stream_id IS NULL));
    DELETE FROM hud_bisectstep WHERE bisect_id IN (SELECT id FROM hud_bisect WHERE regression_id IN (
        SELECT id FROM hud_regression WHERE series_id IN (SELECT id FROM hud_series WHERE stream_id IS NULL)));
    DELETE FROM hud_bisect WHERE regression_id IN (SELECT id FROM hud_regression WHERE series_id IN (
        SELECT id FROM hud_series WHERE stream_id IS NULL));
    DELETE FROM hud_regression WHERE series_id IN (SELECT id FROM hud_series WHERE stream_id IS NULL);
    DELETE FROM hud_series WHERE stream_id IS NULL;
    CREATE TEMPORARY TABLE moved ON COMMIT DROP AS
    SELECT part.*, nextval(pg_get_serial_sequence('hud_series', 'id'))::int AS id FROM part WHERE number > 1;
    SET CONSTRAINTS ALL IMMEDIATE;
    ALTER TABLE hud_series DROP CONSTRAINT series_identity;
    INSERT INTO hud_series (id, experiment_id, metric_id, stream_id, touched_at, touched_until)
    SELECT moved.id, s.experiment_id, s.metric_id, moved.stream_id, moved.first, moved.last
    FROM moved JOIN hud_series s ON s.id = moved.series_id;
    ANALYZE moved;
    UPDATE hud_measurement m SET series_id = moved.id FROM moved, hud_run r
    WHERE r.id = m.run_id AND moved.series_id = m.series_id AND moved.stream_id = r.stream_id;
    -- a regression belongs to the stream of the run that moved
    UPDATE hud_regression g SET series_id = moved.id FROM moved, hud_run r
    WHERE r.id = coalesce(g.first_run_id, g.latest_run_id) AND moved.series_id = g.series_id
        AND moved.stream_id = r.stream_id;
    SET CONSTRAINTS ALL IMMEDIATE;
    DELETE FROM hud_experiment e WHERE NOT EXISTS (SELECT FROM hud_series s WHERE s.experiment_id = e.id)
        AND NOT EXISTS (SELECT FROM hud_runrequest q WHERE q.experiment_id = e.id)
        AND NOT EXISTS (SELECT FROM hud_compilation c WHERE c.experiment_id = e.id)
        AND NOT EXISTS (SELECT FROM hud_annotation a WHERE a.experiment_id = e.id);
    DROP TABLE part, moved;
    ALTER TABLE hud_series ALTER COLUMN stream_id SET NOT NULL;
    SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0017_streams_and_points")]
    operations: ClassVar = [
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.RunSQL(_KEYS, migrations.RunSQL.noop),
        migrations.RunSQL(
            _UPLOADS,
            migrations.RunSQL.noop,
            state_operations=[
                migrations.AlterField(
                    name,
                    "stream",
                    models.ForeignKey(
                        default=hud.models.streams.adhoc_id,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name=related_name,
                        to="hud.stream",
                    ),
                )
                for name, related_name in (("upload", "uploads"), ("import", "+"))
            ],
        ),
        migrations.AlterField("upload", "content_key", models.CharField(max_length=64)),
        migrations.AddConstraint(
            "upload",
            models.UniqueConstraint(fields=("content_key", "stream"), name="upload_content_key"),
        ),
        migrations.RemoveConstraint("import", "import_content_key"),
        migrations.AddConstraint(
            "import",
            models.UniqueConstraint(
                condition=models.Q(("state", "failed"), _negated=True),
                fields=("content_key", "stream"),
                name="import_content_key",
            ),
        ),
        migrations.RunSQL(_RUNS, migrations.RunSQL.noop),
        migrations.RunSQL(_EXPECTATIONS, migrations.RunSQL.noop),
        migrations.RunSQL(
            _SERIES,
            # back again only where no series is in two streams
            "ALTER TABLE hud_series ADD CONSTRAINT series_identity UNIQUE (experiment_id, metric_id)",
            state_operations=[
                migrations.RemoveConstraint("series", "series_identity"),
                migrations.AlterField(
                    "run",
                    "stream",
                    models.ForeignKey(
                        default=hud.models.streams.adhoc_id,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="hud.stream",
                    ),
                ),
                migrations.AlterField(
                    "series",
                    "stream",
                    models.ForeignKey(
                        default=hud.models.streams.adhoc_id,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="series",
                        to="hud.stream",
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            "series",
            models.UniqueConstraint(fields=("experiment", "metric", "stream"), name="series_identity"),
        ),
        migrations.RemoveConstraint("run", "run_natural_key"),
        migrations.AddConstraint(
            "run",
            models.UniqueConstraint(
                condition=models.Q(("external_id__isnull", False)),
                fields=("stream", "source", "external_id", "host_name", "commit"),
                name="run_natural_key",
            ),
        ),
        migrations.AddIndex("run", models.Index(fields=["stream", "-order_time"], name="run_stream")),
        migrations.RemoveIndex("measurement", "measurement_series"),
        migrations.DeleteModel("Verdict"),
        *(
            migrations.RemoveField("seriesstate", name)
            for name in ("value", "verdict", "reason", "change", "noise", "factor", "baseline")
        ),
    ]
