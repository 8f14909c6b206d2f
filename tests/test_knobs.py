"""A setting changes what runs, or it is refused before anything is measured; none is lost in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from django.test import Client

from hud import runs
from hud.keys import create_key
from hud.models import Accelerator, Experiment, Run
from runner.__main__ import main
from runner.catalog import SUITES, BadRequest, TaskSpec, inductor_options, plan
from runner.catalog.backends import backend_of, identity
from runner.failures import TaskFailure
from runner.measure import call_time
from runner.measure.device import Device
from runner.suites.torchdynamo import loaded_model
from runner.suites.torchdynamo.models import timm
from runner.suites.torchdynamo.models.built import BuiltModel, mean_of
from runner.suites.torchdynamo.stage_setup import StageSetup
from tests.factories import create_experiment, create_user


def planned(case: str = "T5Small", suite: str = "huggingface", **given: Any) -> list[TaskSpec]:
    known = {"device": "cpu", "modes": ["inference"], "dtypes": ["float32"], "backends": ["inductor"]}
    return plan(suite, cases=[case], **{**known, **given})


@pytest.mark.parametrize(
    ("given", "knobs", "needs"),
    [
        ({"backends": ["inductor_export"]}, {"freezing": True}, "export none or aot_inductor"),
        ({"backends": ["inductor_export"]}, {"cpp_wrapper": True}, "export none"),
        ({"backends": ["inductor_export"]}, {"compile_mode": "max-autotune"}, "export none or aot_inductor"),
        ({"backends": ["aot_eager"]}, {"freezing": True}, "a backend of inductor"),
        ({"backends": ["aot_eager"]}, {"cpp_wrapper": True}, "a backend of inductor"),
        ({"backends": ["aot_eager"]}, {"max_fusion_size": 3}, "a backend of inductor"),
        ({"backends": ["aot_eager"]}, {"epilogue_fusion": False}, "a backend of inductor"),
        ({"backends": ["aot_eager"]}, {"compile_mode": "max-autotune"}, "a backend of inductor"),
        ({"backends": ["aot_eager"]}, {"export": "aot_inductor"}, "a backend of inductor"),
        ({}, {"optimizer": "adam"}, "mode training"),
        ({}, {"loss": "sum"}, "mode training"),
        ({}, {"amp_dtype": "float16"}, "dtype amp"),
        ({}, {"unbacked_batch_only": True}, "dynamic shapes"),
        ({}, {"dynamic_dimensions": "all"}, "dynamic shapes"),
        ({}, {"export": "torchscript_jit_trace", "nopython": True}, "export none"),
        ({}, {"export": "torchscript_jit_trace", "compiled_region": "model"}, "export none"),
        ({}, {"export": "torchscript_jit_trace", "max_fusion_size": 2}, "export none"),
        ({}, {"export": "aot_precompile", "freezing": True}, "export none or aot_inductor"),
        ({"backends": ["inductor_aot_inductor"]}, {"keep_code": True}, "export none"),
        ({}, {"keep_memory_snapshot": True}, "device cuda"),
        ({}, {"cudagraphs": False}, "device cuda"),
        ({}, {"compile_mode": "reduce-overhead"}, "device cuda"),
        (
            {"device": "cuda"},
            {"compile_mode": "reduce-overhead", "cudagraphs": False},
            "compile_mode default",
        ),
        ({}, {"triton.max_tiles": 2}, "device cuda"),
        ({"device": "cuda"}, {"cpp.simdlen": 8}, "device cpu"),
        ({}, {"randomize_input": True}, "suite timm or torchbench or file"),
        ({}, {"test": "accuracy", "iterations_per_run": 5}, "test both or performance"),
        ({}, {"test": "performance", "cosine": True}, "test both or accuracy"),
        ({}, {"batch_invariant": True, "iterations": 4}, "batch_invariant off"),
        ({}, {"profile_details": True}, "keep_trace on"),
        ({"modes": ["training"]}, {"export": "export"}, "mode inference"),
        ({"modes": ["training"]}, {"freezing": True}, "mode inference"),
        ({"suite": "cache", "case": "resnet50"}, {"origin": "huggingface"}, "another case"),
    ],
)
def test_a_setting_without_effect_is_refused(given: Any, knobs: Any, needs: str) -> None:
    with pytest.raises(BadRequest, match="would change nothing; it needs") as refusal:
        planned(**given, knobs=knobs)
    assert needs in str(refusal.value)
    assert refusal.value.knob == list(knobs)[-1]


@pytest.mark.parametrize("name", ["inductor_export_freezing", "inductor_aot_inductor_cpp_wrapper"])
def test_a_name_of_a_backend_says_nothing_without_effect(name: str) -> None:
    with pytest.raises(BadRequest, match="of its name would change nothing"):
        planned(backends=[name])


def test_a_knob_stands_behind_those_that_it_asks_for() -> None:
    for suite in SUITES.values():
        names = [knob.name for knob in suite.knobs]
        for place, knob in enumerate(suite.knobs):
            for where in (knob.where, *knob.where_value.values()):
                assert {name for name in where if name in names} <= set(names[:place]), knob.name


def test_a_cell_that_does_not_take_a_setting_runs_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "run huggingface --case T5Small --dtype float32 --device cpu --dry-run --backend inductor aot_eager"
    )
    assert main([*words.split(), "--opt", "freezing=true+false", "repeat=40"]) == 0
    told = capsys.readouterr()
    assert [line.split("--case ")[1].split(" --mode")[0] for line in told.out.splitlines()] == [
        "'T5Small[freezing=True,repeat=40]'",
        "'T5Small[repeat=40]'",
        "'T5Small[repeat=40]'",
    ]
    (remark,) = told.err.splitlines()
    assert remark == (
        "runner: run without freezing=true, which needs a backend of inductor: "
        "huggingface/T5Small (inference, float32, aot_eager, cpu)"
    )
    assert main([*words.split(), "--opt", "optimizer=adam"]) == 2
    assert "optimizer=adam would change nothing; it needs mode training" in capsys.readouterr().err


def test_one_way_of_compiling_is_planned_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run huggingface --case T5Small --dtype float32 --device cpu --dry-run --backend inductor"
    assert main([*words.split(), "inductor_no_cudagraphs"]) == 0
    same = "huggingface/T5Small (inference, float32, inductor_no_cudagraphs, cpu)"
    assert capsys.readouterr().err == f"runner: measured once, as it is the same: {same}\n"
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
        ({}, {"matmul_precision": "highest"}),
        ({"device": "cuda"}, {"matmul_precision": "high"}),
        ({"dtypes": ["amp"]}, {"amp_dtype": "bfloat16"}),
        ({"dtypes": ["amp"], "device": "cuda"}, {"amp_dtype": "float16"}),
        ({"modes": ["training"]}, {"optimizer": "none"}),
        ({"backends": ["inductor_freezing"]}, {"freezing": True}),
    ],
)
def test_what_is_so_anyway_makes_no_other_experiment(given: Any, knobs: Any) -> None:
    (task,) = planned(**given, knobs=knobs)
    assert identity(task) == {}


def test_options_of_a_pair_s_new_side_mean_something_to_the_task() -> None:
    (task,) = planned()
    assert inductor_options.problem({"epilogue_fusion": False}, task) == ""
    assert "it needs device cuda" in inductor_options.problem({"triton.max_tiles": 2}, task)


# What a host alone can tell


@pytest.fixture
def of_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model of numbers in two dimensions, whose batch is 4 whatever is asked."""
    inputs = (torch.zeros(4, 8), torch.arange(4))
    module = torch.nn.Linear(8, 8)
    monkeypatch.setattr(timm, "build", lambda *_: BuiltModel(module, inputs, mean_of, 4))
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
        loaded_model.load(of_timm(**knobs))
    assert (failed.value.status, failed.value.code) == ("unsupported", code)


@pytest.mark.usefixtures("of_numbers")
def test_random_inputs_are_drawn_anew_and_integers_stay() -> None:
    setup = object.__new__(StageSetup)
    for on in (False, True):
        setup.spec = of_timm(randomize_input=on)
        setup.model = loaded_model.load(setup.spec)
        numbers, indices = setup.model.batch_tensors(setup.model.inputs)
        seen = []
        for _ in range(2):
            setup.before_pair()
            seen.append(numbers.clone())
            assert indices.tolist() == [0, 1, 2, 3]
        assert torch.equal(*seen) is not on


def test_as_many_pairs_are_taken_as_are_asked_for() -> None:
    here = Device("cpu", "x86_64", "a CPU", 0, 1)
    pairs = []
    times = call_time.paired(
        lambda: None, lambda: None, here, at_least=1000, budget_s=0.0, before_pair=lambda: pairs.append(1)
    )
    assert len(times.eager) == len(pairs) == 1000


# Knobs of a rerun

OF_PLACE: dict[str, Any] = {"host": None, "arch": "", "device": "cpu", "repeats": 1, "who": "me"}


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
        return runs.request_rerun(experiment=tiny, knobs=knobs, **OF_PLACE)

    def said(run: Run) -> tuple[Any, ...]:
        return run.title, run.experiment, run.tasks.get().spec["knobs"]

    first = rerun(repeat=31)
    assert said(first) == ("huggingface: DistillGPT2[size=tiny]", tiny, {"size": "tiny", "repeat": 31})
    assert rerun().retry_of == first
    assert said(rerun(size="full")) == ("huggingface: DistillGPT2", plain, {})
    assert said(rerun(size=None)) == ("huggingface: DistillGPT2", plain, {})
    new = rerun(nopython=True)
    assert said(new)[:2] == ("huggingface: DistillGPT2[nopython=True,size=tiny]", None)
    assert new.retry_of is None
    assert rerun(freezing=True).title == "huggingface: DistillGPT2[size=tiny], inductor_freezing"


@pytest.mark.django_db
def test_knobs_without_effect_are_refused_at_the_api_and_in_the_form(
    client: Client, offers: Accelerator
) -> None:
    experiment = a_model(knobs={}, backend="aot_eager")
    body = json.dumps({"experiment": experiment.pk, "knobs": {"freezing": True}})
    headers = {"Authorization": f"Bearer {create_key(name='k', scopes=['run'], who='test')[1]}"}
    answer = client.post("/api/v1/runs", body, content_type="application/json", headers=headers)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/knobs/freezing"]
    assert "it needs a backend of inductor" in answer.json()["detail"]
    client.force_login(create_user())
    asked = {"place": f"{offers.host.pk}:cpu:cpu-x86_64", "repeats": "1", "knob_freezing": "on"}
    page = client.post(f"/experiments/{experiment.pk}/rerun", asked)
    assert page.status_code == 422
    assert page.context["form"].errors.keys() == {"knob_freezing"}
    assert "it needs a backend of inductor" in page.content.decode()
    assert not Run.objects.exists()


@pytest.mark.django_db
@pytest.mark.usefixtures("offers")
def test_a_run_of_a_suite_says_what_ran_without_a_knob() -> None:
    run = runs.request_suite(
        suite="huggingface", cases=["DistillGPT2"], knobs={"amp_dtype": "float16"}, **OF_PLACE
    )
    assert run.tasks.count() == 4
    assert run.request["remarks"].startswith("run without amp_dtype=float16, which needs dtype amp")
