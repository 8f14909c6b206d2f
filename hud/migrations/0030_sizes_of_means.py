"""Name the sizes of each mean over sizes (`micro`, D=mean): on a CPU our runner's are smaller than those of
gpt-fast's script, whose files were stored under the same experiment.

A run is our runner's if it has a metric that gpt-fast's files do not have. Of an experiment with runs of both,
those of the files get an experiment of their own, and what they leave is judged again.
"""

from __future__ import annotations

from django.db import migrations

_MOVE = """
    CREATE TEMPORARY TABLE mean ON COMMIT DROP AS
    SELECT id, device FROM hud_experiment
    WHERE suite = 'micro' AND knobs->>'D' = 'mean' AND NOT knobs ? 'sizes';
    CREATE TEMPORARY TABLE mean_run ON COMMIT DROP AS
    SELECT s.experiment_id, p.run_id,
        mean.device <> 'cpu' OR bool_and(k.name IN ('memory_bandwidth(GB/s)', 'flops_utilization')) AS of_file
    FROM mean JOIN hud_series s ON s.experiment_id = mean.id JOIN hud_metric k ON k.id = s.metric_id
    JOIN (SELECT series_id, run_id FROM hud_point UNION SELECT series_id, run_id FROM hud_sidepoint) p
        ON p.series_id = s.id
    GROUP BY s.experiment_id, p.run_id, mean.device;
    UPDATE hud_experiment e SET knobs = e.knobs || jsonb_build_object('sizes', CASE
        WHEN mean.device = 'cpu' AND NOT coalesce((
            SELECT bool_and(of_file) FROM mean_run WHERE experiment_id = e.id), false)
        THEN '256,512,1024,2048' ELSE '1024,4096,8192,16384' END)
    FROM mean WHERE mean.id = e.id;
    UPDATE hud_series SET digest = NULL WHERE experiment_id IN (SELECT id FROM mean);
    DELETE FROM mean_run r USING hud_experiment e
    WHERE e.id = r.experiment_id AND (NOT r.of_file OR e.knobs->>'sizes' <> '256,512,1024,2048');
    INSERT INTO hud_experiment (suite, "case", knobs, mode, dtype, backend, device, arch, dynamic)
    SELECT suite, "case", '{"D": "mean", "sizes": "1024,4096,8192,16384"}', mode, dtype, backend, device, arch,
        dynamic
    FROM hud_experiment WHERE id IN (SELECT experiment_id FROM mean_run)
    ON CONFLICT DO NOTHING;
    CREATE TEMPORARY TABLE moved ON COMMIT DROP AS
    SELECT r.run_id, s.id AS old, n.id AS experiment_id, s.metric_id, s.stream_id, NULL::int AS new
    FROM mean_run r JOIN hud_experiment e ON e.id = r.experiment_id
    JOIN hud_experiment n ON (n.suite, n."case", n.mode, n.dtype, n.backend, n.device, n.arch, n.dynamic)
            = (e.suite, e."case", e.mode, e.dtype, e.backend, e.device, e.arch, e.dynamic)
        AND n.knobs = '{"D": "mean", "sizes": "1024,4096,8192,16384"}'
    JOIN hud_series s ON s.experiment_id = e.id;
    INSERT INTO hud_series (experiment_id, metric_id, stream_id)
    SELECT DISTINCT m.experiment_id, m.metric_id, m.stream_id FROM moved m
    WHERE EXISTS (SELECT FROM hud_point p WHERE (p.series_id, p.run_id) = (m.old, m.run_id))
        OR EXISTS (SELECT FROM hud_sidepoint p WHERE (p.series_id, p.run_id) = (m.old, m.run_id))
    ON CONFLICT DO NOTHING;
    UPDATE moved m SET new = s.id FROM hud_series s
    WHERE (s.experiment_id, s.metric_id, s.stream_id) = (m.experiment_id, m.metric_id, m.stream_id);
    UPDATE hud_series s SET touched_at = least(s.touched_at, p.first), touched_until = greatest(
        s.touched_until, p.last)
    FROM (
        SELECT side.id, min(p.order_time) AS first, max(p.order_time) AS last
        FROM moved m CROSS JOIN LATERAL (VALUES (m.old), (m.new)) side (id)
        JOIN hud_point p ON (p.series_id, p.run_id) = (m.old, m.run_id)
        GROUP BY side.id
    ) p WHERE p.id = s.id;
    UPDATE hud_point p SET series_id = m.new FROM moved m WHERE (p.series_id, p.run_id) = (m.old, m.run_id);
    UPDATE hud_sidepoint p SET series_id = m.new FROM moved m WHERE (p.series_id, p.run_id) = (m.old, m.run_id);
    UPDATE hud_detailedmeasurement p SET series_id = m.new FROM moved m
    WHERE (p.series_id, p.run_id) = (m.old, m.run_id);
    DROP TABLE mean, mean_run, moved;
"""


class Migration(migrations.Migration):
    dependencies = [("hud", "0029_blind_notes")]
    operations = [migrations.RunSQL(_MOVE, migrations.RunSQL.noop)]
