"""The page that renames: texts to be named, and aliases. Pickers offer only arches of devices."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.models import Alias, Audit, Experiment, Run
from hud.pages import backends as compilers
from hud.pages.experiment.query import pickers as pickers_of
from hud.pages.limits import query as limits
from hud.pages.query_string import select
from hud.pages.regressions import query as regressions
from hud.pages.rules import view as rules
from hud.pages.suite import query as suite
from runner.formats.parameters import Parameters
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_user,
)
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
UNNAMED = "One of Quadro P1000, NVIDIA RTX A6000,"


def test_no_picker_offers_what_names_no_device() -> None:
    for arch in ("h200", UNNAMED, "amd-radeon-graphics-gfx942-sramecc-xnack"):
        for case in ("a", "b", "c")[: 1 if arch == "h200" else 3]:
            measured = create_experiment(arch=arch, case=case, suite="huggingface", knobs={})
            create_regression(create_measurement(experiment=measured, run=create_run()))
    stream = Run.objects.latest("pk").stream
    page = compilers.read(compilers.BackendFilters(), stream)
    assert page.filters.arch == "h200"
    offered = {
        "compilers": page.choices["arch"],
        "regressions": regressions.read(stream, regressions.RegressionFilters(), None).archs,
        "rules": rules.read()["offers"]["archs"],
    }
    (listed,) = filter(None, [suite.read(stream, "huggingface", suite.SuiteFilters())])
    offered["suite"] = listed.choices["arch"]
    assert offered == {page: ["h200"] for page in offered}
    own, *others = Experiment.objects.order_by("pk").filter(case="a")
    pickers = {picker.name: picker for picker in pickers_of(own, others)}
    assert pickers["arch"].options == []


def test_what_is_asked_for_is_shown_and_without_any_named_arch_something_is() -> None:
    unnamed = create_experiment(arch=UNNAMED, suite="huggingface", knobs={})
    stream = create_measurement(unnamed).run.stream
    page = compilers.read(compilers.BackendFilters(), stream)
    assert page.filters.arch == UNNAMED
    assert select("Arch", "arch", UNNAMED, [UNNAMED]) in page.pickers
    assert limits.read(limits.LimitsFilters(arch=UNNAMED), stream).filters.arch == UNNAMED


def test_the_receipt_names_what_is_to_be_named() -> None:
    def warnings(name: str, **given: str) -> list[str]:
        record = v3_record(case=f"{name} {given}")
        record["benchmark"]["extra_info"]["arch"] = name
        return ingest(as_list(record, record), Parameters(**given)).warnings

    assert warnings("NVIDIA H200") == warnings(UNNAMED, arch="h100") == []
    (words,) = warnings(UNNAMED)
    assert UNNAMED in words
    assert Experiment.objects.filter(arch=UNNAMED).count() == 1


def test_an_operator_names_a_text_and_the_next_result_lands_there(client: Client) -> None:
    create_experiment(arch=UNNAMED)
    create_experiment(arch="h200")
    client.force_login(create_user())
    body = client.get("/rename/").content.decode()
    assert UNNAMED in body
    for old, new in ((UNNAMED, ""), ("h200", "b200"), ("gfx942\0", "b200"), ("gfx942", "mi300x")):
        client.post("/rename/", {"kind": "arch", "old": old, "new": new, "confirmed": "1"})
    assert not Alias.objects.exists()
    client.post("/rename/", {"kind": "arch", "old": UNNAMED, "new": "NVIDIA RTX A6000", "confirmed": "1"})
    assert set(Experiment.objects.values_list("arch", flat=True)) == {"h200", "nvidia-rtx-a6000"}
    assert Alias.objects.values_list("old", "new", "who").get() == (UNNAMED, "nvidia-rtx-a6000", "olga")


def test_only_an_admin_renames_what_has_a_name(client: Client) -> None:
    create_experiment(arch="h2000")
    client.force_login(create_user())
    for kind, old in (("arch", "h2000"), ("case", "layer_norm")):
        answer = client.post("/rename/", {"kind": kind, "old": old, "new": "x", "confirmed": "1"})
        assert answer.status_code == HTTPStatus.FORBIDDEN
    assert not Alias.objects.exists()


def test_an_operator_removes_an_alias(client: Client) -> None:
    alias = Alias.objects.create(kind="arch", old="h2000", new="h200", who="ada")
    client.force_login(create_user())
    assert f"/rename/{alias.pk}/remove" in client.get("/rename/").content.decode()
    assert Client(enforce_csrf_checks=True).post(f"/rename/{alias.pk}/remove").status_code != HTTPStatus.OK
    assert Alias.objects.exists()
    assert client.post(f"/rename/{alias.pk}/remove").status_code == HTTPStatus.FOUND
    assert not Alias.objects.exists()
    audit = Audit.objects.get(action="rename.remove_alias")
    assert (audit.who, audit.subject) == ("olga", "arch h2000 to h200")
