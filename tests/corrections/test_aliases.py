"""A renaming is kept: what comes in later under the old name lands under the new one."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from hud.corrections.renaming import rename
from hud.hosts import registration
from hud.ingest import deliveries, ingest
from hud.ingest.export import export
from hud.models import Accelerator, Alias, Aliases, Expectation, Experiment, Host, Measurement, Run
from runner.formats.parameters import Parameters
from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec
from tests.support.claims import claim, request
from tests.support.factories import create_experiment, create_run
from tests.support.records import as_lines, as_list, task_record, v3_record

pytestmark = pytest.mark.django_db


def upload(
    number: int, *, suite: str = "micro", case: str = "a", arch: str = "h200", host: str = "h"
) -> None:
    info = {"device": "cuda", "arch": arch}
    benchmark = {"name": "Compiler HUD", "mode": "inference", "dtype": "bfloat16", "extra_info": info}
    record = v3_record(
        values=[number],
        timestamp=1_700_000_000 + number,
        benchmark=benchmark,
        model={"name": case, "backend": "inductor", "origins": [suite]},
        runners=[{"name": host}],
    )
    ingest(as_list(record), Parameters())


def stored() -> set[tuple[str, str, str]]:
    return set(Experiment.objects.filter(series__measurement__n__gt=0).values_list("suite", "case", "arch"))


@pytest.mark.parametrize("kind", ["suite", "case", "arch", "host"])
def test_the_next_upload_under_the_old_name_lands_under_the_new_one(kind: str) -> None:
    upload(1, **{kind: "old"})
    rename(kind=kind, old="old", new="new", who="ada")
    upload(2, **{kind: "old"})
    upload(3, **{kind: "new"})
    assert Experiment.objects.count() == 1
    assert Measurement.objects.count() == 3
    if kind == "host":
        assert set(Run.objects.values_list("host_name", flat=True)) == {"new"}
    else:
        assert getattr(Experiment.objects.get(), kind) == "new"
    alias = Alias.objects.get()
    assert (alias.kind, alias.suite, alias.old, alias.new, alias.who) == (kind, "", "old", "new", "ada")


def test_a_dry_run_keeps_no_alias() -> None:
    upload(1, case="old")
    rename(kind="case", old="old", new="new", who="t", dry_run=True)
    assert not Alias.objects.exists()


def test_renamings_follow_each_other_and_one_back_ends_the_first() -> None:
    upload(1, case="a")
    rename(kind="case", old="a", new="b", who="t")
    rename(kind="case", old="b", new="c", who="t")
    for number, case in enumerate("abc", 2):
        upload(number, case=case)
    assert {case for _suite, case, _arch in stored()} == {"c"}
    rename(kind="case", old="c", new="a", who="t")
    for number, case in enumerate("abc", 5):
        upload(number, case=case)
    assert {case for _suite, case, _arch in stored()} == {"a"}
    assert not Alias.objects.filter(old="a").exists()


def test_an_alias_of_one_suite_is_of_that_suite_only() -> None:
    for number, suite in enumerate(("micro", "other"), 1):
        upload(number, suite=suite, arch="h2000")
    rename(kind="arch", old="h2000", new="h200", suite="micro", who="t")
    for number, suite in enumerate(("micro", "other"), 3):
        upload(number, suite=suite, arch="h2000")
    assert stored() == {("micro", "a", "h200"), ("other", "a", "h2000")}
    rename(kind="suite", old="micro", new="mini", who="t")
    upload(5, suite="micro", arch="h2000")
    assert stored() == {("mini", "a", "h200"), ("other", "a", "h2000")}


def test_one_suite_keeps_a_name_that_the_others_lost() -> None:
    for number, suite in enumerate(("micro", "other"), 1):
        upload(number, suite=suite, arch="x")
    rename(kind="arch", old="x", new="y", who="t")
    rename(kind="arch", old="y", new="x", suite="micro", who="t")
    for number, arch in enumerate("xyxy", 3):
        upload(number, suite=("micro", "other")[number % 2], arch=arch)
        upload(number + 10, suite=("other", "micro")[number % 2], arch=arch)
    assert stored() == {("micro", "a", "x"), ("other", "a", "y")}


def test_a_delivery_lands_under_the_new_names(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    create_experiment(suite="micro", case="layer_norm", arch=accelerator.arch)
    rename(kind="arch", old=accelerator.arch, new="xeon", who="t")
    rename(kind="case", old="layer_norm", new="norm", suite="micro", who="t")
    assert task.token
    body = as_lines(task_record(TaskSpec.from_json(task.spec)))
    receipt = deliveries.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
    assert (receipt.stored, receipt.skipped) == (1, [])
    assert stored() == {("micro", "norm", "xeon")}


def test_an_attached_accelerator_and_host_have_their_new_names(accelerator: Accelerator) -> None:
    create_experiment(arch="gfx942")
    rename(kind="arch", old="gfx942", new="mi300x", who="t")
    device = Accelerator(
        name="cuda:0", device="cuda", device_name="AMD Radeon Graphics gfx942", arch="gfx942"
    )
    beat = {"protocol": PROTOCOL, "sent_at": 0.0, "facts": {}, "labels": {}}
    (found,) = registration.beat(host=accelerator.host, devices=[device], **beat).values()  # type: ignore[arg-type]
    assert found.arch == "mi300x"
    create_run(host_name="h1o")
    rename(kind="host", old="h1o", new="h10", who="t")
    host, _key = registration.register(token=registration.create_token(who="t"), name="h1o")
    assert host.name == Host.objects.latest("pk").name == "h10"


def test_an_import_and_an_expected_value_land_under_the_new_names(tmp_path: Any) -> None:
    upload(1, arch="h2000")
    exported = b"".join(export("v3", {}))
    rename(kind="arch", old="h2000", new="h200", who="t")
    Run.objects.all().delete()
    Experiment.objects.all().delete()
    path = tmp_path / "export.json"
    path.write_bytes(exported)
    call_command("ingest", str(path))
    assert stored() == {("micro", "a", "h200")}
    upload(1, case="b")
    rename(kind="case", old="b", new="c", who="t")
    ingest(b"b,compile_time_instruction_count,100,0.1\n", Parameters())
    assert Expectation.objects.get().case == "c"


def test_aliases_are_read_once_for_an_upload() -> None:
    records = [v3_record(values=[1], case=f"case {number}") for number in range(50)]
    with CaptureQueriesContext(connection) as queries:
        ingest(as_list(*records), Parameters())
    assert sum("hud_alias" in query["sql"] for query in queries) == 1


def test_rows_that_go_in_a_circle_end() -> None:
    circle = Aliases({("case", "", "a"): "b", ("case", "", "b"): "a"})
    assert circle.current("case", "a") in {"a", "b"}
    assert circle.current("case", "c") == "c"
