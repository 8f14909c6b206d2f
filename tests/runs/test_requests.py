"""Runs that are asked for: what cannot be is refused with words, a rerun is of the experiment itself."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from hud.ingest import ingest
from hud.models import Accelerator, Compilation, Environment, Experiment, Host, Kernel, Run
from hud.runs import requests
from runner.formats.parameters import Parameters
from runner.schema.suite import BadRequest
from runner.suites import operators
from runner.suites.operators.inputs import OWN_INPUTS
from tests.support.claims import request, rerun
from tests.support.factories import create_accelerator
from tests.support.observed import SHIPPED
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


def test_requests_that_no_host_can_take_say_why(accelerator: Accelerator) -> None:
    for over, words in (
        ({"arch": "h200"}, "no attached host has arch h200; there are: cpu-x86_64"),
        ({"device": "cuda"}, "no attached host has device cuda"),
        ({"repeats": 0}, "repeats are 1 to 20"),
        ({"host": Host.objects.create(name="gone")}, "host gone is not attached"),
    ):
        with pytest.raises(BadRequest, match=words):
            request(**over)
    Accelerator.objects.all().delete()
    with pytest.raises(BadRequest, match="no host is attached"):
        request()
    assert not Run.objects.exists()


def test_a_rerun_of_an_unknown_suite_is_refused(accelerator: Accelerator) -> None:
    unknown = Experiment.objects.create(suite="elsewhere", case="x")
    with pytest.raises(BadRequest, match="has no suite 'elsewhere'"):
        rerun(unknown)
    case = Experiment.objects.create(
        suite="micro", case="nonsense", dtype="bfloat16", backend="inductor", mode="inference"
    )
    with pytest.raises(BadRequest, match="no case 'nonsense'"):
        rerun(case)
    for name in ("acme/bert", "Qwen/Qwen3-0.6B"):  # of a command; what the harness times of it
        other = Experiment.objects.create(
            suite="huggingface", case=name, dtype="float32", backend="inductor", mode="inference"
        )
        with pytest.raises(BadRequest, match=f"no case '{name}'"):
            rerun(other)
    assert not Run.objects.exists()


def test_a_rerun_uses_the_experiments_case_parameters(accelerator: Accelerator) -> None:
    experiment = Experiment.objects.create(
        suite="micro", case="gemv", knobs={"D": 256}, dtype="int8", backend="inductor",
        mode="inference", device="cuda", arch="h200",
    )  # fmt: skip
    run = rerun(experiment)
    spec = run.tasks.get().spec
    assert (spec["case"], spec["dtype"], spec["knobs"], spec["device"]) == (
        "gemv",
        "int8",
        {"D": [256]},
        "cpu",
    )
    again = rerun(experiment)
    assert again.request.retry_of_id == run.pk


def test_a_file_of_recorded_inputs_that_was_changed_is_another_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a rerun of either is asked for as the host's own file, whichever that is by then."""
    path = tmp_path / "own.txt"
    monkeypatch.setenv(OWN_INPUTS, str(path))
    names = []
    for text in ("one", "another"):
        path.write_text(text)
        names.append(operators.inputs_name("own", os.environ))
        info = {"device": "cpu", "arch": "x86_64", "knobs": {"inputs": names[-1]}}
        benchmark = {"name": "Compiler HUD operators", "dtype": "float16", "extra_info": info}
        model = {"name": "aten.mm.default", "backend": "inductor", "origins": ["operators"]}
        assert ingest(as_list(v3_record("50th", benchmark=benchmark, model=model)), Parameters()).stored
    found = Experiment.objects.filter(suite="operators")
    assert sorted(one.knobs["inputs"] for one in found) == sorted(names)
    for one in found:
        assert "[inputs=own]" in requests.spec_of(one, device="cpu").command()
    assert operators.inputs_name("timm", os.environ) == "timm"


def test_a_gpu_compiles_three_times_and_each_process_says_its_caches(accelerator: Accelerator) -> None:
    gpu = create_accelerator()
    experiment = Experiment.objects.create(
        suite="micro", case="gemv", knobs={"D": 4096}, dtype="int8", backend="inductor",
        mode="inference", device="cuda", arch="h200",
    )  # fmt: skip

    def processes(**over: Any) -> list[tuple[int, int, str]]:
        run = rerun(experiment, **{"device": "cuda", "host": gpu.host, **over})
        found = run.tasks.order_by("position")
        return [(one.repeat, one.spec.get("compilation", 0), one.caches) for one in found]

    assert processes() == [(0, 0, "fresh"), (1, 1, "fresh"), (2, 2, "fresh")]
    assert processes(compilations=1, repeats=2) == [(0, 0, "kept"), (1, 0, "kept")]
    assert processes(caches="kept") == [(0, 0, "kept")]
    assert processes(device="cpu", host=accelerator.host) == [(0, 0, "fresh")]
    ab = {"candidate_options": {"epilogue_fusion": False}}
    assert processes(**ab) == [(n, 0, "pinned") for n in range(3)]
    assert processes(**ab, caches="fresh") == [(n, 0, "fresh") for n in range(5)]
    for wrong in (
        {"compilations": 21},
        {"compilations": 2, "caches": "kept"},
        {"caches": "pinned"},
        {"draws": 3},
        {**ab, "compilations": 2},
        {**ab, "pinned": "run:1/experiment:1"},
    ):
        with pytest.raises(BadRequest):
            processes(**wrong)


def test_choices_of_a_stored_compilation_are_pinned(accelerator: Accelerator) -> None:
    experiment = Experiment.objects.create(
        suite="micro", case="gemv", knobs={"D": 256}, dtype="int8", backend="inductor",
        mode="inference", device="cpu", arch="cpu-x86_64",
    )  # fmt: skip
    earlier = rerun(experiment)
    slots = {"0" * 16: "XBLOCK=4 num_warps=8", "1" * 16: "ALLOW_TF32=True", "2" * 16: ""}
    kernels = [
        Kernel.objects.create(digest=uuid.uuid4(), slot=slot, config=config, calls=1.0, default_config="")
        for slot, config in slots.items()
    ]
    stored = Compilation.objects.create(
        run=earlier, experiment=experiment, environment=Environment.objects.create(), number=1,
        order_time=earlier.order_time, variant="3" * 16, kernels=[one.pk for one in kernels],
    )  # fmt: skip
    point = f"run:{earlier.pk}/experiment:{experiment.pk}"
    for source in (point, f"{point}/compilation:1"):
        run = rerun(experiment, pinned=source)
        choices = {"0" * 16: "XBLOCK=4 num_warps=8"}
        assert run.request.pinned == {"source": source, "choices": choices}
        assert [task.caches for task in run.tasks.all()] == ["pinned"]
    refused = [f"{point}/compilation:2", "run:1", f"{point};", "run:99999999/experiment:1"]
    for wrong in refused:
        with pytest.raises(BadRequest):
            rerun(experiment, pinned=wrong)
    Kernel.objects.filter(pk__in=stored.kernels[:1]).update(config="")
    with pytest.raises(BadRequest, match="no kernel whose configuration"):
        rerun(experiment, pinned=point)


def test_every_shipped_experiment_of_the_runner_has_a_command() -> None:
    """Measure again what this project's own runner measured."""

    def only_told(one: Experiment) -> bool:
        """operatorbench's column of eager calls, measured beside inductor's; a device nobody has."""
        return (one.suite, one.backend) == ("operators", "eager") or one.device == "tpu"

    call_command(
        "ingest", *(str(SHIPPED / name) for name in ("runner-h200", "runner-h200-models", "xla-cpu"))
    )
    found = [one for one in Experiment.objects.all() if not only_told(one)]
    models = {"huggingface", "timm", "torchbench"}
    assert {one.suite for one in found} == {
        "cache",
        "ceilings",
        "gpt_fast",
        "micro",
        "operators",
        "xla",
    } | models
    for one in found:
        assert requests.spec_of(one, device=one.device).command()
