"""The form that asks for a rerun: its fields, their bounds, and pairs of two environments."""

from __future__ import annotations

import pytest
from django.test import Client

from hud.models import Accelerator, Run
from hud.runs.forms import RerunForm
from hud.runs.places import Place
from runner.schema.suite import TaskSpec
from runner.suites import SUITES
from tests.support.factories import create_accelerator, create_experiment, create_user

PLACES = [Place(None, "cpu", "cpu-x86_64", "online", same_arch=True, pythons=("default", "tuned"))]


@pytest.fixture
def accelerator() -> Accelerator:
    host = create_accelerator(arch="cpu-x86_64")
    host.catalog = {"suites": ["micro"], "pythons": ["default", "tuned"]}
    host.save()
    return host


def form(**data: str) -> RerunForm:
    own = {"D": [256, 512]}
    given = {"place": PLACES[0].key, "repeats": "5", **data}
    spec = TaskSpec("micro", "gemv", "inference", "bfloat16", "inductor", "cuda", knobs=own)
    return RerunForm(given, places=PLACES, spec=spec)


def test_the_form_offers_every_knob_in_its_bounds() -> None:
    for suite in SUITES.values():
        spec = TaskSpec(suite.name, "", "inference", "bfloat16", "inductor", "cuda")
        offered = RerunForm(places=PLACES, spec=spec)
        assert [field.name for field in [*offered.first_knobs, *offered.other_knobs]] == [
            f"knob_{option.name}" for option in suite.options
        ]
    assert form().knobs_chosen() == {}
    good = form(knob_D="256 + 1024", knob_repeat="", environment="tuned", base_environment="default")
    assert good.is_valid(), good.errors
    assert good.knobs_chosen() == {"D": [256, 1024], "repeat": None, "explain": None}
    assert good.initial["knob_D"] == "256+512"


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("knob_D", "256+x", "x&#x27; is not an integer"),
        ("knob_D", "16", "16 is not within 64 to 16384"),
        ("knob_repeat", "5", "greater than or equal to 20"),
        ("environment", "nightly", "No host has an environment nightly; there are: default, tuned"),
        ("base_environment", "nightly", "No host has an environment nightly"),
        ("new_options", "cpp.simdlen=1000", "1000 is not within 0 to 512"),
        ("new_options", "epilogue_fusion", "is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_said_beside_its_field(field: str, text: str, said: str) -> None:
    wrong = form(**{field: text})
    assert not wrong.is_valid()
    assert list(wrong.errors) == [field]
    assert said in str(wrong.errors[field])


def test_too_few_pairs_are_refused() -> None:
    pairs = {"repeats": "4", "caches": "fresh"}
    assert list(form(**pairs, base_environment="tuned").errors) == ["repeats"]
    assert list(form(**pairs, new_options="max_fusion_size=8").errors) == ["repeats"]
    assert form(**pairs).is_valid()
    assert form(repeats="1", draws="3", base_environment="tuned").is_valid()
    assert list(form(draws="2", base_environment="tuned").errors) == ["draws"]


@pytest.mark.django_db
def test_the_experiments_page_asks_for_pairs(client: Client, accelerator: Accelerator) -> None:
    experiment = create_experiment(device="cpu", arch="cpu-x86_64", knobs={"D": 256})
    client.force_login(create_user())
    address = f"/experiments/{experiment.pk}/"
    page = client.get(f"{address}?options=all").content.decode()
    assert 'name="knob_repeat"' in page
    assert 'name="knob_D" value="256"' in page
    place = f"{accelerator.host.pk}:cpu:cpu-x86_64"
    asked = {"place": place, "repeats": "2", "environment": "tuned", "base_environment": "default"}
    asked["draws"] = "4"
    wrong = client.post(f"{address}rerun", {**asked, "knob_D": "1"})
    assert wrong.status_code == 422
    assert "1 is not within 64 to 16384" in wrong.content.decode()
    asked["new_options"] = "epilogue_fusion=off"
    answer = client.post(f"{address}rerun", {**asked, "knob_D": "512", "knob_repeat": "50"})
    assert answer.status_code == 302
    run = Run.objects.get()
    assert (run.interpreter, run.base_interpreter, run.tasks.count()) == ("tuned", "default", 4)
    assert (run.request.selection["repeats"], run.request.selection["draws"]) == (2, 4)
    task = run.tasks.first()
    assert task
    assert task.spec["knobs"] == {"D": [512], "repeat": 50}
    assert run.request.candidate_options == {"epilogue_fusion": False}
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "tuned with epilogue_fusion=off against default" in text
