"""Move the request of a run into a table of its own, and give models and fields plain names."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

_MOVED = (
    "selection", "host_id", "arch", "device", "labels", "candidate_options", "experiment_id", "retry_of_id",
    "trigger_id", "requested_by", "interactive",
)  # fmt: skip
_TO_REQUEST = f"""
    INSERT INTO hud_runrequest (run_id, {", ".join(_MOVED)})
    SELECT id, {", ".join(_MOVED)} FROM hud_run WHERE upload_id IS NULL;
"""  # noqa: S608 - constants of this file  # nosec B608
_TO_RUN = f"""
    UPDATE hud_run SET {", ".join(f"{name} = q.{name}" for name in _MOVED)}
    FROM hud_runrequest q WHERE q.run_id = hud_run.id;
"""  # noqa: S608 - constants of this file  # nosec B608


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0003_repeat_and_side")]
    operations: ClassVar = [
        migrations.RenameModel("Firing", "ScheduleTrigger"),
        migrations.RenameModel("Beacon", "Heartbeat"),
        migrations.RenameModel("TouchedRun", "UnjudgedRun"),
        migrations.AlterField(
            "scheduletrigger",
            "schedule",
            models.ForeignKey("hud.Schedule", django.db.models.deletion.CASCADE, related_name="triggers"),
        ),
        migrations.RemoveConstraint("scheduletrigger", "firing_identity"),
        migrations.AddConstraint(
            "scheduletrigger",
            models.UniqueConstraint(fields=["schedule", "due"], name="schedule_trigger_identity"),
        ),
        # the renamed column keeps its index
        migrations.SeparateDatabaseAndState([], [migrations.RemoveIndex("measurement", "measurement_series")]),
        migrations.RenameField("measurement", "at", "order_time"),
        migrations.SeparateDatabaseAndState(
            [],
            [
                migrations.AddIndex(
                    "measurement",
                    models.Index(
                        fields=["series", "order_time", "run"],
                        include=("environment", "value", "status"),
                        name="measurement_series",
                    ),
                )
            ],
        ),
        migrations.RenameField("verdict", "at", "order_time"),
        migrations.RenameField("accelerator", "dirty", "unavailable_reason"),
        migrations.RenameField("task", "process", "repeat"),
        migrations.RemoveIndex("run", "run_in_pairs"),
        migrations.RenameField("run", "at", "order_time"),
        migrations.RenameField("run", "at_source", "order_time_source"),
        migrations.RenameField("run", "environment", "interpreter"),
        migrations.RenameField("run", "base_environment", "base_interpreter"),
        migrations.AddIndex(
            "run", models.Index(fields=["id"], condition=~Q(base_interpreter=""), name="run_is_ab")
        ),
        migrations.RenameField("run", "request", "selection"),
        migrations.RenameField("run", "new_options", "candidate_options"),
        migrations.RenameField("run", "firing", "trigger"),
        migrations.RenameField("run", "watched", "interactive"),
        migrations.CreateModel(
            "RunRequest",
            [
                (
                    "run",
                    models.OneToOneField(
                        "hud.Run",
                        django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="request",
                        serialize=False,
                    ),
                ),
                ("selection", models.JSONField(default=dict)),
                (
                    "host",
                    models.ForeignKey(
                        "hud.Host", django.db.models.deletion.PROTECT, null=True, related_name="requests"
                    ),
                ),
                ("arch", models.CharField(blank=True, max_length=100)),
                ("device", models.CharField(blank=True, max_length=40)),
                ("labels", models.JSONField(default=dict)),
                ("candidate_options", models.JSONField(default=dict)),
                (
                    "experiment",
                    models.ForeignKey("hud.Experiment", django.db.models.deletion.SET_NULL, null=True),
                ),
                (
                    "retry_of",
                    models.ForeignKey(
                        "hud.Run", django.db.models.deletion.SET_NULL, null=True, related_name="retries"
                    ),
                ),
                (
                    "trigger",
                    models.ForeignKey(
                        "hud.ScheduleTrigger",
                        django.db.models.deletion.SET_NULL,
                        null=True,
                        related_name="requests",
                    ),
                ),
                ("requested_by", models.CharField(blank=True, max_length=150)),
                ("interactive", models.BooleanField(default=False)),
            ],
        ),
        migrations.RunSQL(_TO_REQUEST, _TO_RUN),
        *(migrations.RemoveField("run", name.removesuffix("_id")) for name in _MOVED),
    ]
