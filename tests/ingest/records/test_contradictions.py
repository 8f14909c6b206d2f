"""A parameter that the content contradicts: the content wins, and one warning says both."""

from __future__ import annotations

from typing import Any

import pytest

from hud.ingest import ingest
from hud.models import Experiment
from runner.formats.parameters import Parameters
from tests.support.observed import observe
from tests.support.records import as_list, v3_record

CONTENT: dict[str, Any] = {
    "benchmark": {
        "name": "a",
        "mode": "inference",
        "dtype": "bfloat16",
        "extra_info": {"device": "cuda", "arch": "NVIDIA A100-SXM4-40GB", "batch_size": 16},
    },
    "model": {"name": "m", "backend": "inductor_cudagraphs"},
    "runners": [{"name": "host-a"}],
    "head_sha": "abc1234567",
    "head_branch": "refs/heads/main",
}


def warned(body: bytes, filename: str = "", **given: str) -> list[str]:
    parser = observe(body, filename, **given)
    assert not parser.faults
    return list(parser.contradictions.values())


@pytest.mark.parametrize(
    ("name", "given", "content"),
    [
        ("arch", "h100", "A100-SXM4-40GB"),
        ("device", "cpu", "cuda"),
        ("host", "host-b", "host-a"),
        ("backend", "eager", "inductor_cudagraphs"),
        ("mode", "training", "inference"),
        ("dtype", "float32", "bfloat16"),
        ("batch_size", "1", "16"),
        ("commit", "fff", "abc1234567"),
        ("branch", "other", "main"),
    ],
)
def test_a_contradiction_is_one_warning_with_both(name: str, given: str, content: str) -> None:
    body = as_list(*(v3_record(case=case, **CONTENT) for case in "abc"))
    (warning,) = warned(body, **{name: given})
    assert given in warning
    assert content in warning


def test_what_agrees_or_says_less_is_no_contradiction() -> None:
    agreeing = {
        "arch": "a100", "device": "cuda:0", "host": "host-a", "backend": "inductor", "mode": "inference",
        "dtype": "bfloat16", "batch_size": "16", "commit": "abc1234", "branch": "main",
    }  # fmt: skip
    assert warned(as_list(v3_record(**CONTENT)), **agreeing) == []


@pytest.mark.parametrize("name", ["arch", "device", "host", "backend", "mode", "dtype", "commit", "branch"])
def test_what_the_content_does_not_say_is_none(name: str) -> None:
    given = {"dtype": "amp_bfloat16", "device": "cuda:1", "arch": "NVIDIA H100"}.get(name, "x")
    silent: dict[str, Any] = {"benchmark": {"name": "TorchInductor"}, "model": {"name": "m"}}
    assert warned(as_list(v3_record(**silent)), **{name: given}) == []
    table = b"dev,name,batch_size,accuracy\ncuda,resnet50,4,pass\n"
    assert name == "device" or warned(table, filename="accuracy.csv", **{name: given}) == []


def test_one_of_several_values_of_the_content_is_none() -> None:
    both = [{**CONTENT, "model": {"name": "m", "backend": backend}} for backend in ("eager", "inductor")]
    for records in (both, both[::-1]):
        assert warned(as_list(*(v3_record(**one) for one in records)), backend="inductor") == []


def test_a_parameter_names_the_card_where_the_content_s_text_names_none() -> None:
    info = {"device": "cuda", "arch": "AMD Radeon Graphics gfx942:sramecc+:xnack-"}
    body = as_list(v3_record(benchmark={"name": "a", "extra_info": info}))
    assert [item.arch for item in observe(body).measurements] == [info["arch"]]
    parser = observe(body, arch="mi325x")
    assert [item.arch for item in parser.measurements] == ["mi325x"]
    assert [item.environment.gpu for item in parser.measurements] == [info["arch"]]


def test_the_text_that_names_a_card_goes_before_one_that_does_not() -> None:
    runner = {"name": "r", "type": "linux.rocm.gpu.gfx942.1", "gpu_info": "AMD Instinct MI325X"}
    body = as_list(v3_record(benchmark={"name": "a"}, runners=[runner]))
    assert [item.arch for item in observe(body).measurements] == ["mi325x"]


@pytest.mark.django_db
def test_the_receipt_has_the_warning_and_the_content_is_stored() -> None:
    receipt = ingest(as_list(v3_record(**CONTENT)), Parameters(arch="h100", mode="inference"))
    assert [warning for warning in receipt.warnings if "?arch=h100" in warning]
    assert not [warning for warning in receipt.warnings if "?mode" in warning]
    assert Experiment.objects.get().arch == "a100-40gb"
