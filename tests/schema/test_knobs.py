"""Knobs: what a request may set, and what becomes of it in the task and its identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from django.test import Client

from hud.accounts.keys import create_key
from hud.models import Accelerator, Experiment, Run
from runner.__main__ import main
from runner.formats.torchdynamo.names import backend_of
from runner.launch.failures import TaskFailure
from runner.measure.state.device import Device
from runner.measure.timing import call_time
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, plan
from runner.suites import suite_of
from runner.suites.timm import models
from runner.suites.torchdynamo.model import LoadedModel, load, mean_of
from runner.suites.torchdynamo.stages import StageSetup
from tests.support import claims
from tests.support.factories import create_experiment, create_user


def planned(case: str = "T5Small", suite: str = "huggingface", **given: Any) -> list[TaskSpec]:
    known = {"device": "cpu", "modes": ["inference"], "dtypes": ["float32"], "backends": ["inductor"]}
    return plan(Selection(suite, cases=[case], **{**known, **given}))


def test_a_part_of_a_backend_s_name_is_left_out_where_there_is_no_such_backend() -> None:
    """The cells of a matrix that cannot be compiled so are the plain experiments that they were."""
    asked = {"freezing": True, "export": "aot_inductor", "cpp_wrapper": True, "nopython": True}
    tasks = planned(modes=["inference", "training"], backends=["inductor", "aot_eager"], knobs=asked)
    assert [
        (backend_of(task).name("cpu"), suite_of(task.suite).canonical(task).identity()) for task in tasks
    ] == [
        ("inductor_aot_inductor_freezing", {"nopython": True}),
        ("aot_eager", {"nopython": True}),
        ("inductor_cpp_wrapper", {"nopython": True}),
        ("aot_eager", {"nopython": True}),
    ]


@pytest.mark.parametrize(
    ("given", "knobs", "name"),
    [
        ({"device": "cuda"}, {"compile_mode": "reduce-overhead"}, "inductor_cudagraphs_reduce_overhead"),
        ({}, {"compile_mode": "reduce-overhead"}, "inductor"),
        ({"dynamic": True}, {"export": "aot_inductor"}, "inductor"),
        ({}, {"export": "aot_precompile", "freezing": True}, "aot_precompile"),
        ({"backends": ["inductor_export"]}, {"compile_mode": "max-autotune"}, "inductor_export"),
    ],
)
def test_knobs_lead_to_the_backend_s_name(given: Any, knobs: Any, name: str) -> None:
    (task,) = planned(**given, knobs=knobs)
    assert backend_of(task).name(task.device) == name
    assert suite_of(task.suite).canonical(task).identity() == {}


@pytest.mark.parametrize(
    "knobs", [{"freezing": "yes"}, {"max_fusion_size": 0}, {"no_such_knob": True}, {"optimizer": "hinge"}]
)
def test_a_knob_is_checked_by_its_name_kind_and_bounds(knobs: Any) -> None:
    with pytest.raises(BadRequest) as refusal:
        planned(knobs=knobs)
    assert refusal.value.knob == next(iter(knobs))
    (task,) = planned(knobs={"optimizer": "adam"})  # also where nothing reads it
    assert suite_of(task.suite).canonical(task).identity() == {"optimizer": "adam"}


def test_one_way_of_compiling_is_planned_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run huggingface --case T5Small --dtype float32 --device cpu --dry-run --backend inductor"
    assert main([*words.split(), "inductor_no_cudagraphs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    (task,) = planned(backends=["inductor_freezing", "inductor"], knobs={"freezing": True})
    assert (task.backend, dict(task.knobs)) == ("inductor_freezing", {})
    assert len(planned(backends=["inductor", "inductor_no_cudagraphs"])) == 1
    assert len(planned(device="cuda", backends=["inductor", "inductor_no_cudagraphs"])) == 2


def test_a_knob_says_more_than_the_backend_s_name() -> None:
    (task,) = planned(device="cuda", backends=["inductor_no_cudagraphs"], knobs={"cudagraphs": True})
    assert backend_of(task).name("cuda") == "inductor_cudagraphs"
    (task,) = planned(backends=["inductor_freezing"], knobs={"freezing": False})
    assert backend_of(task).name("cpu") == "inductor"


@pytest.mark.parametrize(
    ("given", "knobs"),
    [
        ({}, {"batch_size": 4}),
        ({"backends": ["inductor_freezing"]}, {"freezing": True}),
    ],
)
def test_what_is_so_anyway_makes_no_other_experiment(given: Any, knobs: Any) -> None:
    (task,) = planned(**given, knobs=knobs)
    assert suite_of(task.suite).canonical(task).identity() == {}


# What a host alone can tell


@pytest.fixture
def of_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model of numbers in two dimensions, whose batch is 4 whatever is asked."""
    inputs = (torch.zeros(4, 8), torch.arange(4))
    module = torch.nn.Linear(8, 8)
    monkeypatch.setattr(models, "build", lambda *_: LoadedModel(module, inputs, mean_of, 4))
    yield
    torch.manual_seed(0)


def of_timm(**knobs: Any) -> TaskSpec:
    return TaskSpec("timm", "ghostnet_100", "inference", "float32", "eager", "cpu", knobs=knobs)


@pytest.mark.usefixtures("of_numbers")
@pytest.mark.parametrize(
    ("knobs", "code"), [({"batch_size": 7}, "fixed_batch_size"), ({"channels_last": True}, "no_channels")]
)
def test_a_model_that_cannot_take_a_setting_is_unsupported(knobs: Any, code: str) -> None:
    with pytest.raises(TaskFailure) as failed:
        load(of_timm(**knobs))
    assert (failed.value.status, failed.value.code) == ("unsupported", code)


@pytest.mark.usefixtures("of_numbers")
def test_random_inputs_are_drawn_anew_and_integers_stay() -> None:
    setup = object.__new__(StageSetup)
    for on in (False, True):
        setup.spec = of_timm(randomize_input=on)
        setup.model = load(setup.spec)
        numbers, indices = setup.model.batch_tensors()
        seen = []
        for _ in range(2):
            setup.before_pair()
            seen.append(numbers.clone())
            assert indices.tolist() == [0, 1, 2, 3]
        assert torch.equal(*seen) is not on


def test_as_many_pairs_are_taken_as_are_asked_for() -> None:
    here = Device("cpu", "x86_64", "a CPU", 0, 1)
    pairs = []
    times = call_time.interleaved_timings(
        lambda: None, lambda: None, here, call_time.TimingPlan(1000, 0.0, before_pair=lambda: pairs.append(1))
    )
    assert len(times.eager) == len(pairs) == 1000


# Knobs of a rerun


def a_model(**fields: Any) -> Experiment:
    about = {"suite": "huggingface", "case": "DistillGPT2", "dtype": "float32", "backend": "inductor"}
    return create_experiment(**{**about, "device": "cpu", "arch": "cpu-x86_64", **fields})


@pytest.fixture
def offers(accelerator: Accelerator) -> Accelerator:
    accelerator.catalog["suites"] = ["huggingface"]
    accelerator.save()
    return accelerator


@pytest.mark.django_db
@pytest.mark.usefixtures("offers")
def test_knobs_of_a_rerun_go_before_the_experiment_s_own() -> None:
    tiny, plain = a_model(knobs={"size": "tiny"}), a_model(knobs={})

    def rerun(**knobs: Any) -> Run:
        return claims.rerun(tiny, knobs=knobs)

    def said(run: Run) -> tuple[Any, ...]:
        return run.title, run.request.experiment, run.tasks.get().spec["knobs"]

    first = rerun(repeat=31)
    assert said(first) == ("huggingface: DistillGPT2[size=tiny]", tiny, {"size": "tiny", "repeat": 31})
    assert rerun().request.retry_of == first
    assert said(rerun(size="full")) == ("huggingface: DistillGPT2", plain, {})
    assert said(rerun(size=None)) == ("huggingface: DistillGPT2", plain, {})
    new = rerun(nopython=True)
    assert said(new)[:2] == ("huggingface: DistillGPT2[nopython=True,size=tiny]", None)
    assert new.request.retry_of is None
    assert rerun(freezing=True).title == "huggingface: DistillGPT2[size=tiny], inductor_freezing"


@pytest.mark.django_db
def test_a_run_takes_its_branch_from_the_request(client: Client, offers: Accelerator) -> None:
    headers = {"Authorization": f"Bearer {create_key(name='k', scopes=['run'], who='test')[1]}"}
    body = json.dumps({"experiment": a_model(knobs={}).pk, "branch": "refs/heads/fast"})
    assert (
        client.post("/api/v1/runs", body, content_type="application/json", headers=headers).status_code == 201
    )
    assert Run.objects.get().branch == "fast"


@pytest.mark.django_db
def test_knobs_out_of_bounds_are_refused_at_the_api_and_in_the_form(
    client: Client, offers: Accelerator
) -> None:
    experiment = a_model(knobs={})
    body = json.dumps({"experiment": experiment.pk, "knobs": {"max_fusion_size": 0}})
    headers = {"Authorization": f"Bearer {create_key(name='k', scopes=['run'], who='test')[1]}"}
    answer = client.post("/api/v1/runs", body, content_type="application/json", headers=headers)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/knobs/max_fusion_size"]
    client.force_login(create_user())
    asked = {"place": f"{offers.host.pk}:cpu:cpu-x86_64", "repeats": "1", "knob_max_fusion_size": "0"}
    page = client.post(f"/experiments/{experiment.pk}/rerun", asked)
    assert page.status_code == 422
    assert page.context["form"].errors.keys() == {"knob_max_fusion_size"}
    assert not Run.objects.exists()
