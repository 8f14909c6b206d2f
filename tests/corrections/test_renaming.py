"""A misspelt name is corrected; where the right one exists, both histories become one."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from hud.corrections.renaming import rename
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.judging.regressions import events
from hud.models import Audit, Experiment, Host, Measurement, Point, Regression, Run, Series, Target
from hud.problems import Problem
from runner.formats.parameters import Parameters
from tests.support.factories import create_experiment, create_host, create_metric, create_run, create_user
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


def upload(value: float, day: int, case: str, **given: str) -> None:
    body = as_list(v3_record(values=[value], case=case, timestamp=1_700_000_000 + day * 86_400))
    ingest(body, Parameters(driver="580.1", **given))


def test_a_new_name_keeps_the_series_and_later_uploads_find_them() -> None:
    upload(2500, 0, "layer_nrom")
    series = Series.objects.get()
    done = rename(kind="case", old="layer_nrom", new="layer_norm", who="ada")
    assert (done.experiments, done.merged_experiments) == (1, 0)
    upload(2500, 1, "layer_norm")
    assert Series.objects.get() == series
    assert Measurement.objects.filter(series=series).count() == 2
    assert Experiment.objects.get().case == "layer_norm"
    upload(2500, 2, "layer_nrom")
    assert Measurement.objects.filter(series=series).count() == 3, "the old name is an alias"
    row = Audit.objects.get(action="rename.case")
    assert (row.who, row.subject, row.detail) == ("ada", "case layer_nrom to layer_norm", done.to_json())


def test_two_histories_become_one_and_are_judged_as_one() -> None:
    for day in range(12):
        upload(2500 if day < 10 else 2000, day, "layer_norm" if day % 2 else "layer_nrom")
    while process_pending():
        pass
    assert max(filter(None, Point.objects.values_list("level_points", flat=True))) == 5
    experiment = Experiment.objects.get(case="layer_norm")
    requested = create_run(experiment=Experiment.objects.get(case="layer_nrom"))
    said = rename(kind="case", old="layer_nrom", new="layer_norm", who="t", dry_run=True)
    assert Experiment.objects.count() == 2
    done = rename(kind="case", old="layer_nrom", new="layer_norm", who="t")
    assert said == done
    assert (done.merged_experiments, done.merged_series, done.moved_measurements) == (1, 1, 6)
    while process_pending():
        pass
    assert Experiment.objects.get() == experiment
    assert Series.objects.get().measurement_set.count() == 12
    level_points = list(Point.objects.order_by("order_time").values_list("level_points", flat=True))
    assert level_points == [*range(11), 10]
    requested.request.refresh_from_db()
    assert requested.request.experiment == experiment


def test_merging_keeps_the_regressions_of_both_names() -> None:
    for day in range(24):
        for case in ("layer_norm", "layer_nrom"):
            upload(2500 if day < 20 else 2000, day, case)
    while process_pending():
        pass
    kept = Regression.objects.get(series__experiment__case="layer_norm")
    merged = Regression.objects.get(series__experiment__case="layer_nrom")
    events.assign(regression=merged, owner=create_user("mara"), who="mara")
    closed = Regression.objects.create(
        series=merged.series, class_key=merged.class_key, state="dismissed", since=merged.since
    )
    rename(kind="case", old="layer_nrom", new="layer_norm", who="t")
    while process_pending():
        pass
    assert set(Regression.objects.values_list("pk", "state")) == {(kept.pk, "open"), (closed.pk, "dismissed")}
    kept.refresh_from_db()
    assert kept.owner
    assert kept.events.filter(event="assign").exists()
    assert kept.points == 4 + 4


def test_a_run_that_has_both_names_keeps_the_value_of_the_new_one() -> None:
    records = [
        v3_record(values=[value], case=case, timestamp=1_700_000_000)
        for value, case in ((1, "layer_nrom"), (2, "layer_norm"))
    ]
    other = v3_record("speedup", [3], case="layer_nrom", timestamp=1_700_000_000)
    ingest(as_list(*records, other), Parameters())
    done = rename(kind="case", old="layer_nrom", new="layer_norm", who="t")
    assert (done.moved_measurements, done.dropped_measurements, done.merged_series) == (0, 1, 1)
    assert set(Measurement.objects.values_list("value", flat=True)) == {2, 3}
    assert set(Series.objects.values_list("experiment__case", flat=True)) == {"layer_norm"}


def test_a_suite_with_the_titles_of_its_runs() -> None:
    for suite in ("mirco", "micro"):
        record = v3_record(benchmark={"name": suite, "mode": "inference"}, model={"name": "a"})
        ingest(as_list(record), Parameters(source="ci"))
    done = rename(kind="suite", old="mirco", new="micro", who="t")
    assert (done.merged_experiments, done.runs) == (1, 1)
    assert Experiment.objects.get().suite == "micro"
    assert not Run.objects.filter(title__contains="mirco").exists()


def test_an_arch_of_one_suite_and_of_all_with_its_targets() -> None:
    for suite in ("micro", "other"):
        create_experiment(suite=suite, arch="h2000")
    Target.objects.create(metric=create_metric(), arch="h2000", value=1)
    Target.objects.create(metric=create_metric(), arch="h2000", case="c", value=1)
    Target.objects.create(metric=create_metric(), arch="h200", value=2)
    assert rename(kind="arch", old="h2000", new="h200", suite="micro", who="t").targets == 0
    assert Experiment.objects.get(arch="h2000").suite == "other"
    assert rename(kind="arch", old="h2000", new="h200", who="t").targets == 2
    assert sorted(Target.objects.values_list("arch", "value")) == [("h200", 1), ("h200", 2)]


def test_a_host_of_uploads_and_an_attached_one() -> None:
    create_run(host_name="h1o", source="a", external_id="1")
    host = create_host("h1o")
    done = rename(kind="host", old="h1o", new="h10", who="t")
    assert (done.runs, done.hosts) == (1, 1)
    host.refresh_from_db()
    assert host.name == Run.objects.get().host_name == "h10"
    create_run(host_name="h1o", source="a", external_id="1")
    with pytest.raises(Problem):
        rename(kind="host", old="h1o", new="h10", who="t")
    Run.objects.filter(host_name="h1o").update(external_id=None)
    again = create_host("h1o")
    with pytest.raises(Problem):
        rename(kind="host", old="h1o", new="h10", who="t")
    Host.objects.filter(pk=again.pk).update(detached_at=timezone.now())
    assert rename(kind="host", old="h1o", new="h10", who="t").runs == 1
    assert Run.objects.filter(host_name="h10").count() == 2


@pytest.mark.parametrize(
    ("kind", "old", "new", "more"),
    [
        ("case", "layer_norm", "layer_norm", {}),
        ("case", "layer_norm", " ", {}),
        ("case", "nothing", "layer_norm", {}),
        ("case", "layer_norm", "x" * 201, {}),
        ("case", "layer_norm", "x", {"suite": "other"}),
        ("suite", "micro", "x", {"suite": "micro"}),
        ("host", "nobody", "x", {}),
    ],
)
def test_what_cannot_be_renamed(kind: str, old: str, new: str, more: dict[str, Any]) -> None:
    create_experiment()
    with pytest.raises(Problem):
        rename(kind=kind, old=old, new=new, who="t", **more)
    with pytest.raises(CommandError):
        call_command("rename", kind, old, new, **more)
    assert not Audit.objects.exists()


def test_the_command() -> None:
    create_experiment()
    out = StringIO()
    call_command("rename", "case", "layer_norm", "x", "--suite", "micro", "--dry-run", stdout=out)
    assert Experiment.objects.get().case == "layer_norm"
    call_command("rename", "case", "layer_norm", "x", "--suite", "micro", stdout=out)
    dry, wet = out.getvalue().splitlines()
    assert dry.partition(": ")[2] == wet.partition(": ")[2]
    assert Experiment.objects.get().case == "x"
