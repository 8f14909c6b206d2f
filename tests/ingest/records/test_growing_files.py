"""The torchdynamo harness's CSV as a CI keeps it: under the script's own name, appended to by every run."""

from __future__ import annotations

import json

import pytest

from hud.ingest import ingest
from hud.models import Experiment, Measurement
from runner.formats.parameters import Parameters
from tests.support.records import v3_record

HEADER = "dev,name,batch_size,speedup,abs_latency,compilation_latency,graph_breaks\n"
ROWS = (
    "cuda,mixnet_l,128,1.342082,84.994877,179.986060,9\n",
    "cuda,mixnet_l,128,1.342683,85.109425,48.141032,9\n",
    "cuda,mixnet_l,128,1.331193,86.202919,86.225466,9\n",
)
BENCHMARK = {"name": "TorchInductor", "extra_info": {"device": "cuda", "disable_cudagraphs": True}}
pytestmark = pytest.mark.django_db


def compile_times(commit: str) -> list[tuple[int, float | None]]:
    stored = Measurement.objects.filter(series__metric__name="compilation_latency", run__commit=commit)
    return list(stored.order_by("repeat").values_list("repeat", "value"))


def test_every_commit_has_its_own_row_of_a_growing_file() -> None:
    for night, commit in enumerate(("aa1", "aa2", "aa3"), start=1):
        body = (HEADER + "".join(ROWS[:night])).encode()
        receipt = ingest(body, Parameters(filename="speedup_inductor.csv", commit=commit, arch="h100"))
        assert (receipt.stored, receipt.duplicates) == (4, 4 * (night - 1))
        assert (
            ingest(body, Parameters(filename="speedup_inductor.csv", commit=commit, arch="h100")).stored == 0
        )
    assert [compile_times(commit)[0][1] for commit in ("aa1", "aa2", "aa3")] == [
        179.98606,
        48.141032,
        86.225466,
    ]


def test_rows_of_one_model_are_repeats_and_none_is_preferred() -> None:
    receipt = ingest(
        (HEADER + "".join(ROWS)).encode(), Parameters(filename="speedup_inductor.csv", commit="b")
    )
    assert (receipt.stored, receipt.skipped) == (12, [])
    assert compile_times("b") == [(0, 179.98606), (1, 48.141032), (2, 86.225466)]
    assert any("repeats" in warning for warning in receipt.warnings)
    experiment = Experiment.objects.get()
    assert (experiment.suite, experiment.backend) == ("timm", "inductor"), "nothing says if with CUDA graphs"


def test_the_lines_beside_the_csv_grow_too() -> None:
    lines = [
        json.dumps(v3_record(metric, [value], benchmark=BENCHMARK, case="mixnet_l")) + "\n"
        for latency_s in (179.98606, 48.141032)
        for metric, value in (("compilation_latency", latency_s), ("graph_breaks", 9))
    ]
    for commit, count, stored in (("e1", 2, 2), ("e2", 4, 2)):
        given = Parameters(filename="speedup_inductor.json", commit=commit)
        assert ingest("".join(lines[:count]).encode(), given).stored == stored
    assert [value for _repeat, value in compile_times("e2")] == [48.141032]
    receipt = ingest("".join(lines).encode(), Parameters(commit="f"))
    assert (receipt.stored, receipt.duplicates, receipt.skipped) == (3, 1, [])
    assert compile_times("f") == [(0, 179.98606), (1, 48.141032)]


def test_another_night_with_the_same_file_is_no_growth() -> None:
    for commit in ("c1", "c2"):
        assert ingest((HEADER + ROWS[0]).encode(), Parameters(filename="a.csv", commit=commit)).stored == 4
    accuracy = b"dev,name,batch_size,accuracy\ncuda,alexnet,4,pass\n"
    assert ingest(accuracy, Parameters(filename="b.csv", commit="d1")).stored == 1
    more = accuracy + b"cuda,resnet18,4,pass\n"  # which may as well be measured anew
    assert ingest(more, Parameters(filename="b.csv", commit="d2")).stored == 2


def test_one_file_is_one_suite_and_asks_for_what_nothing_says() -> None:
    names = ("BertForMaskedLM", "DistillGPT2", "NewModel")
    body = HEADER + "".join(f"cuda,{name},16,1.1,2.2,3.3,0\n" for name in (*names, "resnet18"))
    receipt = ingest(body.encode(), Parameters(filename="results.csv"))
    suites = dict(Experiment.objects.values_list("case", "suite"))
    assert suites == {**dict.fromkeys(names, "huggingface"), "resnet18": "torchbench"}
    assert any("?arch=…&backend=…&dtype=…&mode=…" in warning for warning in receipt.warnings)
    assert set(Experiment.objects.values_list("backend", flat=True)) == {""}
    eager = ingest(body.encode(), Parameters(filename="speedup_aot_eager.csv"))
    assert not any("backend" in warning for warning in eager.warnings)
    assert set(Experiment.objects.values_list("backend", flat=True)) == {"", "aot_eager"}
