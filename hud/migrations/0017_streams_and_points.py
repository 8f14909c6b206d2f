"""Streams, points, expectations and causes. 0018 moves what exists into them."""

from __future__ import annotations

from typing import Any, ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions
from django.conf import settings
from django.db import migrations, models

import hud.models.points

Array = django.contrib.postgres.fields.ArrayField
CASCADE = django.db.models.deletion.CASCADE
PROTECT = django.db.models.deletion.PROTECT
SET_NULL = django.db.models.deletion.SET_NULL
NOW = django.db.models.functions.Now()


def _id() -> tuple[str, Any]:
    return (
        "id",
        models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
    )


def _key(*names: str) -> tuple[str, Any]:
    return (
        "pk",
        models.CompositePrimaryKey(*names, blank=True, editable=False, primary_key=True, serialize=False),
    )


def _reference(to: str, on_delete: Any = CASCADE, **options: Any) -> Any:
    return models.ForeignKey(db_constraint=False, db_index=False, on_delete=on_delete, to=to, **options)


def _numbers() -> list[tuple[str, Any]]:
    """Wide columns first: PostgreSQL pads a narrow one that stands before a wide one."""
    return [
        ("order_time", models.DateTimeField()),
        ("value", models.FloatField(null=True)),
        ("series", _reference("hud.series")),
        ("run", _reference("hud.run")),
        ("environment", _reference("hud.environment", PROTECT)),
        ("samples", models.IntegerField(default=1)),
    ]


def _words() -> list[tuple[str, Any]]:
    return [
        ("spread", hud.models.points.Real(null=True)),
        ("target", models.FloatField(null=True)),
        ("processes", models.SmallIntegerField(default=1)),
        ("compilations", models.SmallIntegerField(default=1)),
        ("status_code", models.SmallIntegerField(db_column="status", default=0)),
        ("values", Array(base_field=models.FloatField(null=True), null=True, size=None)),
        ("variants", Array(base_field=models.CharField(max_length=16), null=True, size=None)),
        ("target_arch", models.CharField(max_length=60, null=True)),
        ("code", models.CharField(max_length=200, null=True)),
        ("note", models.TextField(null=True)),
        ("quality", models.CharField(max_length=60, null=True)),
    ]


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("hud", "0016_lists_of_binaries"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations: ClassVar = [
        migrations.CreateModel(
            "Stream",
            [
                _id(),
                ("name", models.CharField(max_length=60, unique=True)),
                (
                    "aliases",
                    Array(base_field=models.CharField(max_length=60), blank=True, default=list, size=None),
                ),
                ("title", models.CharField(blank=True, max_length=200)),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=SET_NULL,
                        related_name="streams",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "key",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=SET_NULL, related_name="+", to="hud.apikey"
                    ),
                ),
                (
                    "reference",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=SET_NULL, related_name="+", to="hud.stream"
                    ),
                ),
                ("is_front", models.BooleanField(default=False)),
                ("archived", models.DateTimeField(blank=True, null=True)),
                ("created", models.DateTimeField(db_default=NOW)),
            ],
        ),
        migrations.AddConstraint(
            "stream",
            models.UniqueConstraint(
                condition=models.Q(("is_front", True)), fields=("is_front",), name="one_front_stream"
            ),
        ),
        migrations.AddConstraint(
            "stream",
            models.CheckConstraint(
                condition=models.Q(("name__regex", "^[a-z0-9][a-z0-9._-]{0,59}$")), name="stream_name"
            ),
        ),
        migrations.RunSQL(
            """INSERT INTO hud_stream (name, aliases, title, is_front)
            SELECT name, '{}', '', false FROM unnest('{nightly,samples,import,adhoc}'::text[]) AS t(name)""",
            migrations.RunSQL.noop,
        ),
        migrations.AddField(
            "apikey",
            "stream",
            models.ForeignKey(null=True, on_delete=PROTECT, related_name="keys", to="hud.stream"),
        ),
        migrations.AddField(
            "schedule",
            "stream",
            models.ForeignKey(
                blank=True, null=True, on_delete=PROTECT, related_name="schedules", to="hud.stream"
            ),
        ),
        migrations.AddField(
            "upload",
            "stream",
            models.ForeignKey(null=True, on_delete=PROTECT, related_name="uploads", to="hud.stream"),
        ),
        migrations.AddField(
            "import",
            "stream",
            models.ForeignKey(null=True, on_delete=PROTECT, related_name="+", to="hud.stream"),
        ),
        migrations.AddField("run", "rerun", models.BooleanField(db_default=False, default=False)),
        migrations.AddField(
            "run",
            "stream",
            models.ForeignKey(null=True, on_delete=PROTECT, related_name="runs", to="hud.stream"),
        ),
        migrations.AddField(
            "series",
            "stream",
            models.ForeignKey(null=True, on_delete=PROTECT, related_name="series", to="hud.stream"),
        ),
        migrations.CreateModel(
            "Point",
            [
                *_numbers(),
                ("level", models.FloatField(null=True)),
                ("change", hud.models.points.Real(null=True)),
                ("noise", hud.models.points.Real(null=True)),
                ("factor", hud.models.points.Real(null=True)),
                ("level_stream", _reference("hud.stream", models.DO_NOTHING, null=True, related_name="+")),
                ("verdict_code", models.SmallIntegerField(db_column="verdict", null=True)),
                ("level_points", models.SmallIntegerField(null=True)),
                ("superseded", models.SmallIntegerField(null=True)),
                *_words(),
                ("verdict_reason", models.CharField(max_length=40, null=True)),
                ("branch", models.CharField(blank=True, max_length=200)),
                ("rerun", models.BooleanField(default=False)),
                _key("series", "order_time", "run", "environment"),
            ],
        ),
        migrations.AddIndex("point", models.Index(fields=["run", "series"], name="point_run")),
        migrations.CreateModel(
            "SidePoint",
            [
                *_numbers(),
                *_words(),
                ("side", models.SmallIntegerField()),
                _key("run", "series", "environment", "side"),
            ],
        ),
        migrations.AddIndex("sidepoint", models.Index(models.F("series"), name="side_point_series")),
        migrations.CreateModel(
            "Expectation",
            [
                _id(),
                (
                    "stream",
                    models.ForeignKey(on_delete=CASCADE, related_name="expectations", to="hud.stream"),
                ),
                (
                    "upload",
                    models.ForeignKey(on_delete=CASCADE, related_name="expectations", to="hud.upload"),
                ),
                ("suite", models.CharField(max_length=60)),
                ("case", models.CharField(max_length=200)),
                ("mode", models.CharField(blank=True, max_length=40)),
                ("dtype", models.CharField(blank=True, max_length=40)),
                ("backend", models.CharField(blank=True, max_length=100)),
                ("device", models.CharField(blank=True, max_length=40)),
                ("dynamic", models.BooleanField(default=False)),
                ("metric", models.CharField(max_length=200)),
                ("value", models.FloatField(null=True)),
                ("margin", models.FloatField(default=0, db_default=0.0)),
                ("status", models.SmallIntegerField(default=0)),
                ("code", models.CharField(blank=True, max_length=200)),
                ("commit", models.CharField(blank=True, max_length=64)),
                ("listed", models.DateTimeField()),
            ],
        ),
        migrations.AddIndex(
            "expectation", models.Index(fields=["suite", "case", "metric"], name="expectation_case")
        ),
        migrations.CreateModel(
            "KnownFailure",
            [
                _id(),
                (
                    "stream",
                    models.ForeignKey(on_delete=CASCADE, related_name="known_failures", to="hud.stream"),
                ),
                (
                    "experiment",
                    models.ForeignKey(on_delete=CASCADE, related_name="known_failures", to="hud.experiment"),
                ),
                ("reason", models.CharField(max_length=1000)),
                ("author", models.CharField(max_length=150)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.AddConstraint(
            "knownfailure",
            models.UniqueConstraint(fields=("stream", "experiment"), name="known_failure_identity"),
        ),
        migrations.CreateModel(
            "Cause",
            [
                _id(),
                ("stream", models.ForeignKey(on_delete=CASCADE, related_name="causes", to="hud.stream")),
                ("night", models.DateTimeField()),
                ("title", models.CharField(max_length=200)),
                (
                    "merged_into",
                    models.ForeignKey(null=True, on_delete=SET_NULL, related_name="merged", to="hud.cause"),
                ),
                ("created", models.DateTimeField(db_default=NOW)),
            ],
        ),
        migrations.AddIndex("cause", models.Index(fields=["stream", "night"], name="cause_night")),
        migrations.AddField(
            "regression",
            "cause_row",
            models.ForeignKey(
                db_column="cause_id",
                null=True,
                on_delete=SET_NULL,
                related_name="regressions",
                to="hud.cause",
            ),
        ),
    ]
