"""Rows that were stored under an earlier schema."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from hud.accounts.roles import Role
from hud.ingest import ingest
from hud.models import (
    Compilation,
    DetailedMeasurement,
    Experiment,
    Measurement,
    Point,
    Run,
    RunRequest,
    Schedule,
    ScheduleTrigger,
    Series,
    UnjudgedRun,
    kernels_of,
)
from hud.points import write as points
from hud.runs import schedules
from runner.formats.parameters import Parameters
from tests.ingest.records.test_xla_values import METRICS, line, lines
from tests.support.compilations import compiled, mobilenet, store
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_upload,
    create_user,
)

pytestmark = pytest.mark.django_db


def migrate(name: str = "") -> None:
    """Bring the schema to migration `name`, or to today's, in the test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a table with pending checks cannot be altered
    executor = MigrationExecutor(connection)
    executor.migrate([("hud", name)] if name else executor.loader.graph.leaf_nodes("hud"))


_OF_TODAY = {"stream_id", "points", "regressed"}


def _rows() -> list[list[dict[str, Any]]]:
    """Return runs and requests, but for streams and points, which an earlier schema does not have."""
    kinds: list[list[Any]] = [list(model.objects.order_by("pk").values()) for model in (Run, RunRequest)]
    return [[{name: row[name] for name in row if name not in _OF_TODAY} for row in rows] for rows in kinds]


def test_rows_go_back_to_every_earlier_schema_and_come_back_equal() -> None:
    """One story, because each way takes seconds."""
    plain, in_pairs = create_run(), create_run(base_interpreter="2.9", interpreter="2.13")
    experiment = create_experiment()
    for repeat in range(3):
        create_measurement(experiment, run=plain, value=10.0 + repeat, repeat=repeat, note=f"note {repeat}")
        for side in range(2):
            create_measurement(run=in_pairs, value=20.0 + 2 * repeat + side, repeat=repeat, side=side)
    fields = ("run_id", "repeat", "side", "compilation", "value", "note", "n", "status")
    measured = Measurement.objects.filter(run__in=(plain, in_pairs)).order_by("value")
    asked = _asked_run()
    xla = ingest(lines(line(METRICS)), Parameters()).run_ids[0]
    values = _values_of(xla)
    points.unfold(Measurement.objects.filter(run_id=xla).values_list("run_id", "series_id"))
    DetailedMeasurement.objects.filter(run_id=xla, value__isnull=False).update(value=7.0, spread=7.0)
    UnjudgedRun.objects.all().delete()
    measurements = list(measured.values_list(*fields))
    today = _rows()
    assert [len(rows) for rows in today] == [6, 4], "an upload has no request"

    migrate("0003_repeat_and_side")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT environment, request->>'suite', watched FROM hud_run WHERE id = %s", [asked.pk]
        )
        assert cursor.fetchone() == ("2.13", "micro", True)
    migrate("0002_values_of_xla")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_id, process, median, warning FROM hud_measurement WHERE run_id <> %s ORDER BY median",
            [xla],
        )
        assert cursor.fetchall() == [
            *((plain.pk, number, 10.0 + number, f"note {number}") for number in range(3)),
            *((in_pairs.pk, number, 20.0 + number, None) for number in range(6)),
        ]
    migrate("0001_initial")
    migrate()

    assert list(measured.values_list(*fields)) == measurements
    assert _rows() == today
    alone = ("trace_per_iter_time", "verification_code")  # without samples there is nothing to take
    assert {**_values_of(xla), **{name: values[name] for name in alone}} == values, (
        "a plain median is taken anew"
    )
    assert list(UnjudgedRun.objects.values_list("run_id", flat=True)) == [xla]
    plain.refresh_from_db()
    with pytest.raises(IntegrityError), transaction.atomic():
        create_measurement(experiment, run=plain, repeat=2)


def test_binaries_of_compilations_move_into_lists_and_back() -> None:
    found = mobilenet()
    experiment, environment = create_experiment(), create_environment(gpu_uuid="GPU-1")
    run = create_run()
    for place, (one, side) in enumerate(zip(found, (0, 0, 0, 1), strict=True)):
        store(one, experiment=experiment, environment=environment, run=run, repeat=place, side=side)
    store(compiled(), experiment=experiment, environment=environment, run=run, repeat=4)

    migrate("0015_annotations")
    with connection.cursor() as cursor:
        cursor.execute("SELECT binaries FROM hud_compilation ORDER BY repeat")
        binaries = [[f"{one % 2**64:016x}" for one in row] for (row,) in cursor.fetchall()]
    assert binaries == [*([kernel.binary for kernel in one.kernels] for one in found), []]
    migrate()

    rows = list(Compilation.objects.order_by("repeat"))
    kernels = kernels_of(rows)
    assert [[one.binary for one in row.compiled(kernels).kernels] for row in rows] == binaries
    lists = [row.binary_list_id for row in rows]
    assert len({*lists[:3]}) == 1, "compilations of one side share a list"
    assert lists[3] not in (lists[0], None)
    assert lists[4] is None


def test_a_mean_names_its_sizes_and_that_of_gpt_fasts_files_on_a_cpu_is_another() -> None:
    kinds = {"cpu": "cpu-x86_64", "cuda": "h200"}
    mean = {
        device: create_experiment(knobs={"D": "mean"}, device=device, arch=kinds[device]) for device in kinds
    }
    only_files = create_experiment(knobs={"D": "mean"}, device="cpu", arch="cpu-aarch64")
    bandwidth = "memory_bandwidth(GB/s)"
    ours, of_file = create_run(), create_run()
    create_measurement(mean["cpu"], metric="speedup", run=ours)
    for experiment, run in (
        (mean["cpu"], ours),
        (mean["cpu"], of_file),
        (mean["cuda"], of_file),
        (only_files, of_file),
    ):
        create_measurement(experiment, metric=bandwidth, run=run, value=float(run.pk))

    migrate("0028_measurements_in_points")
    migrate()

    of_script = {"D": "mean", "sizes": "1024,4096,8192,16384"}
    for experiment in (*mean.values(), only_files):
        experiment.refresh_from_db()
    assert mean["cpu"].knobs == {"D": "mean", "sizes": "256,512,1024,2048"}
    assert mean["cuda"].knobs == only_files.knobs == of_script
    twin = Experiment.objects.get(arch="cpu-x86_64", knobs=of_script)
    runs = Measurement.objects.filter(series__metric__name=bandwidth).values_list("series__experiment", "run")
    assert {*runs} == {
        *((mean["cpu"].pk, ours.pk), (twin.pk, of_file.pk)),
        *((mean["cuda"].pk, of_file.pk), (only_files.pk, of_file.pk)),
    }
    waiting = Series.objects.exclude(touched_at=None).values_list("experiment", "metric__name")
    assert {*waiting} == {(mean["cpu"].pk, bandwidth), (twin.pk, bandwidth)}


def _asked_run() -> Run:
    """A run with everything that a request has, beside one that an upload made."""
    schedule = schedules.save(Schedule(name="nightly", cron="0 3 * * *", suite="micro"), who="me")
    asked: dict[str, Any] = {
        "selection": {"suite": "micro", "cases": ["gemv"], "repeats": 5},
        "host": create_host("gpu-1"),
        "arch": "h200",
        "device": "cuda",
        "labels": {"gpu": "h200"},
        "candidate_options": {"epilogue_fusion": False},
        "experiment": create_experiment(),
        "retry_of": create_run(),
        "trigger": ScheduleTrigger.objects.create(schedule=schedule, due=timezone.now()),
        "requested_by": "olga",
        "run_class": "person",
    }
    create_run(upload=create_upload())
    return create_run(interpreter="2.13", base_interpreter="2.13", host_name="gpu-1", **asked)


def _values_of(run: int) -> dict[str, tuple[float | None, float | None]]:
    rows = Measurement.objects.filter(run_id=run).select_related("series__metric")
    return {one.series.metric.name: (one.value, one.spread) for one in rows}


def test_existing_logins_get_roles() -> None:
    create_user("has one", Role.OPERATOR)
    for name in ("root", "staff", "plain"):
        User.objects.create_user(name, is_superuser=name == "root", is_staff=name == "staff")
    import_module("hud.migrations.0007_roles").give_roles(apps, None)
    roles = {user.username: [group.name for group in user.groups.all()] for user in User.objects.all()}
    assert roles == {"has one": ["operator"], "root": ["admin"], "staff": ["admin"], "plain": ["viewer"]}
    assert set(User.objects.filter(is_superuser=True, is_staff=True)) == set(
        User.objects.filter(username__in=["root", "staff"])
    )


def test_what_the_note_of_a_regret_said_is_data() -> None:
    words = "95 % interval 13.1 to 26.2 % over 12 compilations"
    more = "at least, since choices still come that were not seen before"
    of_notes = {words: None, f"{words}; {more}": more, "another": "another"}
    for case, note in enumerate(of_notes):
        experiment = create_experiment(case=str(case))
        create_measurement(experiment, metric="autotune_regret", value=0.2, spread=0.06, note=note)
    other = create_measurement(create_experiment(case="other"), note=words)
    migrate("0030_sizes_of_means")
    migrate()
    for model, count in ((DetailedMeasurement, "n"), (Point, "samples")):
        rows = model._default_manager.filter(series__metric__name="autotune_regret")
        found = rows.order_by("series__experiment").values_list(count, "note")
        assert list(found) == [(12, None), (12, more), (1, "another")]
    assert Point.objects.get(series=other.series_id).note == words
