"""The rerun of an experiment: where it can run, what is refused, and the form."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from hud.judging.comparison import noise_before
from hud.models import Experiment, Point, Run, Task
from hud.pages.experiment import view
from hud.runs.forms import RerunForm
from hud.runs.requests import spec_of
from runner.schema.draws import ChoiceNoise, draws_to_decide, power_words
from tests.support.experiment_pages import read_page, text_of
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_task,
    create_user,
)

pytestmark = pytest.mark.django_db


def test_a_rerun_is_requested_and_its_page_opened(client: Client) -> None:
    experiment = create_experiment()
    accelerator = create_accelerator()
    client.force_login(create_user())
    answer = client.post(
        f"/experiments/{experiment.pk}/rerun",
        {"place": f"{accelerator.host_id}:cuda:h200", "repeats": "2", "caches": "kept"},
    )
    run = Run.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/runs/{run.pk}/"
    asked = run.request
    assert (asked.host, asked.arch, asked.requested_by, asked.experiment) == (
        accelerator.host,
        "h200",
        "olga",
        experiment,
    )
    assert Task.objects.filter(run=run).count() == 2
    assert f'<a href="/runs/{run.pk}/">Run {run.pk}</a>' in text_of(client, experiment)


def test_a_visitor_logs_in_first_and_finds_the_form_as_it_was(client: Client) -> None:
    experiment = create_experiment()
    host = create_accelerator(create_host("first")).host
    other = create_accelerator(create_host("second"))
    create_user()
    answer = client.post(
        f"/experiments/{experiment.pk}/rerun", {"place": f"{other.host_id}:cuda:h200", "repeats": "3"}
    )
    assert answer.status_code == 302
    assert not Run.objects.exists()
    address = urlsplit(answer["Location"])
    assert address.path == "/login/"
    back = parse_qs(address.query)["next"][0]
    answer = client.post("/login/", {"username": "olga", "password": "open sesame", "next": back})
    assert answer["Location"] == back
    text = " ".join(client.get(back.split("#")[0]).content.decode().split())
    assert f'<option value="{other.host_id}:cuda:h200" selected>' in text
    assert f'<option value="{host.pk}:cuda:h200" selected>' not in text
    assert 'name="repeats" value="3"' in text


def test_places_of_the_same_arch_come_first_and_only_those_that_offer_the_suite(client: Client) -> None:
    experiment = create_experiment()
    laptop = create_accelerator(create_host("laptop"), arch="cpu-x86_64")
    gpu = create_accelerator(create_host("gpu"))
    create_accelerator(create_host("old"), suites=("ceilings",))
    create_accelerator(create_host("left", detached_at=timezone.now()))
    page = read_page(experiment.pk)
    assert page
    assert [place.key for place in page.places] == [
        "any:cuda:h200",
        f"{gpu.host_id}:cuda:h200",
        "any:cpu:cpu-x86_64",
        f"{laptop.host_id}:cpu:cpu-x86_64",
    ]


def test_each_place_says_how_long_a_process_took_there(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    fast, slow, new = (create_accelerator(create_host(name)) for name in ("fast", "slow", "new"))
    spec = spec_of(experiment, device="cuda")
    others = replace(spec, backend="aot_eager"), replace(spec, compilation=1)
    for accelerator, task, seconds in (
        (slow, spec, 90), (fast, spec, 10), (fast, spec, 20), (fast, spec, 30), (fast, others[0], 500),
        (new, others[1], 500),
    ):  # fmt: skip
        times = {"started": now - timedelta(seconds=seconds), "finished": now}
        create_task(create_run(), spec=task, accelerator=accelerator, state="done", **times)
    page = read_page(experiment.pk)
    assert page
    took_s = {place.host.name if place.host else "any": place.process_s for place in page.places}
    assert took_s == {"any": 25.0, "fast": 20.0, "slow": 90.0, "new": None}


def test_the_form_says_before_the_start_what_a_comparison_finds() -> None:
    experiment, now = create_experiment(), timezone.now()
    accelerator = create_accelerator()
    times = {"started": now - timedelta(seconds=12), "finished": now}
    create_task(
        create_run(), spec=spec_of(experiment, device="cuda"), accelerator=accelerator, state="done", **times
    )
    form = read_form(experiment)
    numbers = 6, draws_to_decide(ChoiceNoise().noise)
    words = [power_words(ChoiceNoise(), draws, process_s=12.0) for draws in numbers]
    assert all(said in form.fields["draws"].help_text for said in words)
    for value in (1.0, 1.002):
        create_measurement(experiment, metric="device_latency_ms", value=value, run=create_run())
    Point.objects.update(variants=["a"])
    noise = noise_before(experiment)
    assert not noise.assumed
    assert power_words(noise, 6, process_s=12.0) in read_form(experiment).fields["draws"].help_text


@pytest.mark.parametrize(
    "wishes",
    [
        {"place": "999:cuda:h200", "repeats": "1"},
        {"place": "", "repeats": "1"},
        {"place": "any:cuda:h200", "repeats": "0"},
        {"place": "any:cuda:h200", "repeats": "many"},
        {"place": "any:cuda:h200\0", "repeats": "10000000000000000000000"},
        {},
    ],
)
def test_a_rerun_that_cannot_be_is_refused_with_words(client: Client, wishes: dict[str, str]) -> None:
    experiment = create_experiment()
    create_accelerator()
    client.force_login(create_user())
    answer = client.post(f"/experiments/{experiment.pk}/rerun", wishes)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()
    assert not Run.objects.exists()


def test_a_rerun_without_any_host_says_so(client: Client) -> None:
    client.force_login(create_user())
    answer = client.post(
        f"/experiments/{create_experiment().pk}/rerun", {"place": "any:cuda:h200", "repeats": "1"}
    )
    assert answer.status_code == 422
    assert "No attached host offers" in answer.content.decode()


def test_a_rerun_of_a_case_the_catalogue_does_not_have_says_so(client: Client) -> None:
    create_accelerator()
    client.force_login(create_user())
    for fields in ({"suite": "huggingface", "case": "Bert"}, {"case": "no_such_kernel"}):
        experiment = create_experiment(**fields)
        answer = client.post(
            f"/experiments/{experiment.pk}/rerun", {"place": "any:cuda:h200", "repeats": "1"}
        )
        assert answer.status_code == 422
        assert (
            fields["case"] in answer.content.decode() or fields.get("suite", "?") in answer.content.decode()
        )
    assert not Run.objects.exists()


def test_what_an_interpreter_lacks_is_said_before_and_cannot_be_started(client: Client) -> None:
    model = create_experiment(suite="torchbench", case="resnet18", knobs={})
    own = create_experiment(suite="torchbench", case="dcgan", knobs={})
    host = create_host(facts={"pythons": {"default": {"modules": ["numpy"]}}})
    accelerator = create_accelerator(host, suites=("torchbench",))
    client.force_login(create_user())
    text = text_of(client, model)
    assert "has torchvision" in text
    assert 'name="place"' not in text
    assert 'name="place"' in text_of(client, own), "its models come from a checkout"
    wishes = {"place": "any:cuda:h200", "repeats": "1"}
    assert client.post(f"/experiments/{model.pk}/rerun", wishes).status_code == 422
    assert not Run.objects.exists()
    accelerator.host.facts["pythons"]["more"] = {"modules": ["numpy", "torchvision"]}
    accelerator.host.save()
    assert 'name="place"' in text_of(client, model)
    assert client.post(f"/experiments/{model.pk}/rerun", wishes).status_code == 302


def test_another_arch_is_said_before_the_click_and_few_options_stand_open(client: Client) -> None:
    experiment = create_experiment(suite="timm", case="mobilenetv2_100", knobs={"batch_size": 8})
    create_accelerator(arch="cpu-x86_64", suites=("timm",))
    text = text_of(client, experiment)
    assert "No H200 is attached" in text
    assert "knob_batch_size" not in text
    assert "knob_batch_size" in text_of(client, experiment, "?options=all")
    assert "knob_batch_size" in text_of(client, experiment, "?caches=kept"), "back from the login"
    form = read_form(experiment)
    assert len(form.main_fields) + len(form.first_knobs) == 10
    assert form.first_knobs[0].name == "knob_batch_size"
    assert len(form.other_knobs) > 50
    create_accelerator(suites=("timm",))
    text = text_of(client, experiment)
    assert "No H200 is attached" not in text
    assert 'data-warn-for="any:cpu:cpu-x86_64"' in text


def read_form(experiment: Experiment) -> RerunForm:
    return view.rerun_form(experiment, read_page(experiment.pk).places)
