"""Runs that are asked for: what cannot be is refused with words, a rerun is of the experiment itself."""

from __future__ import annotations

import pytest

from hud import runs
from hud.models import Accelerator, Experiment, Host, Run
from tests.claims import request

pytestmark = pytest.mark.django_db


def test_requests_that_no_host_can_take_say_why(accelerator: Accelerator) -> None:
    for over, words in (
        ({"arch": "h200"}, "no attached host has arch h200; there are: cpu-x86_64"),
        ({"device": "cuda"}, "no attached host has device cuda"),
        ({"repeats": 0}, "repeats are 1 to 20"),
        ({"host": Host.objects.create(name="gone")}, "host gone is not attached"),
    ):
        with pytest.raises(runs.NotPossible, match=words):
            request(**over)
    Accelerator.objects.all().delete()
    with pytest.raises(runs.NotPossible, match="no host is attached"):
        request()
    assert not Run.objects.exists()


def test_a_rerun_of_an_experiment_the_runner_does_not_know_says_so(accelerator: Accelerator) -> None:
    unknown = Experiment.objects.create(suite="elsewhere", case="x")
    with pytest.raises(runs.NotPossible, match="has no suite 'elsewhere'"):
        runs.request_rerun(experiment=unknown, host=None, arch="", device="cpu", repeats=1, who="me")
    case = Experiment.objects.create(
        suite="micro", case="nonsense", dtype="bfloat16", backend="inductor", mode="inference"
    )
    with pytest.raises(runs.NotPossible, match="no case 'nonsense'"):
        runs.request_rerun(experiment=case, host=None, arch="", device="cpu", repeats=1, who="me")


def test_a_rerun_binds_the_experiment_s_own_knobs(accelerator: Accelerator) -> None:
    experiment = Experiment.objects.create(
        suite="micro", case="gemv", knobs={"D": 256}, dtype="int8", backend="inductor",
        mode="inference", device="cuda", arch="h200",
    )  # fmt: skip
    run = runs.request_rerun(experiment=experiment, host=None, arch="", device="cpu", repeats=1, who="me")
    spec = run.tasks.get().spec
    assert (spec["case"], spec["dtype"], spec["knobs"], spec["device"]) == (
        "gemv",
        "int8",
        {"D": [256]},
        "cpu",
    )
    again = runs.request_rerun(experiment=experiment, host=None, arch="", device="cpu", repeats=1, who="me")
    assert again.retry_of_id == run.pk
