"""Models that a task may name: of the tables, of a checkout, and of the hub or timm by a command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.launch.failures import TaskFailure
from runner.schema.suite import BadRequest
from runner.schema.tasks import Selection, plan
from runner.suites import SUITES
from runner.suites.torchdynamo.model import load
from tests.suites.test_torchdynamo_models import DEVICES, PHASES, spec_of


def test_only_a_command_names_models_that_are_not_listed() -> None:
    for suite, case in (("huggingface", "acme/bert"), ("timm", "resnet26"), ("torchbench", "hf_T5")):
        tasks = plan(Selection(suite, "cpu", cases=[case], dtypes=["float32"]))
        assert [task.case for task in tasks] == [case]
        with pytest.raises(BadRequest, match=case):
            SUITES[suite].check_listed(case)
    with pytest.raises(BadRequest, match="BertForMaskdLM"):
        plan(Selection("huggingface", "cpu", cases=["BertForMaskdLM"]))


def test_a_language_model_is_several_cases_none_of_them_what_the_harness_times() -> None:
    planned = plan(Selection("huggingface", "cpu", cases=["Qwen/Qwen3-0.6B"], dtypes=["float32"]))
    assert [task.case for task in planned] == [f"Qwen/Qwen3-0.6B{phase}" for phase in PHASES]
    assert not any("/" in case.name and ":" not in case.name for case in SUITES["huggingface"].cases)
    with pytest.raises(BadRequest, match="no case"):  # whose results are of its `generate`
        SUITES["huggingface"].case("Qwen/Qwen3-0.6B")


def test_what_the_harness_skips_is_measured_only_by_name() -> None:
    planned = {device: {task.case for task in plan(Selection("huggingface", device))} for device in DEVICES}
    of_the_hub = {case for case in planned["cuda"] if "/" in case}
    assert of_the_hub == {
        *("meta-llama/Llama-3.2-1B:forward", "google/gemma-2-2b:forward"),
        *("openai/whisper-tiny:forward", "Qwen/Qwen3-0.6B:forward"),
    }
    assert planned["cpu"] == planned["cuda"] - of_the_hub
    assert len(planned["cuda"]) == 30
    assert {task.case for task in plan(Selection("cache", "cpu"))} >= planned["cpu"]
    assert not any("/" in task.case for task in plan(Selection("cache", "cpu")))


CHECKOUT_MODEL = """
import torch

class Model:
    def __init__(self, test, device, batch_size=None, extra_args=[]):
        self.batch_size = batch_size
        self.device = device

    def get_module(self):
        return torch.nn.Linear(3, 3, device=self.device), (torch.ones(self.batch_size, 3),)
"""


def test_a_checkout_of_torchbench_is_found_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = "lennard_jones"
    monkeypatch.delenv("TORCHBENCH", raising=False)
    with pytest.raises(TaskFailure, match="TORCHBENCH") as missing:
        load(spec_of("torchbench", case))
    assert (missing.value.status, missing.value.code) == ("unsupported", "no_torchbench")
    folder = tmp_path / "torchbenchmark" / "models" / case
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(CHECKOUT_MODEL)
    monkeypatch.setenv("TORCHBENCH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        model = load(spec_of("torchbench", case))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchbenchmark"]:
            del sys.modules[name]
    assert (model.batch_size, model.parameters) == (1000, 12)


def test_the_models_of_a_checkout_are_listed_with_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "torchbenchmark" / "models"
    files = {
        "dcgan/__init__.py": "import torch\n",
        "of_data/__init__.py": "from .part import Model\n",
        "of_data/part.py": "from torchbenchmark.used import one\n\ndef later():\n    import no_matter\n",
        "of_data/install.py": 'checkout_s3_data(\n    "INPUT_TARBALLS", "things.tar.gz")\n',
        "../used.py": "import no_such_package.part\n",
    }
    for name, text in files.items():
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).write_text(text)
    monkeypatch.setenv("TORCHBENCH", str(tmp_path))
    titles = {case.name: case.title for case in SUITES["torchbench"].local_cases()}
    assert titles.keys() == {"dcgan", "of_data"}
    assert "needs" not in titles["dcgan"]
    assert "no_such_package" in titles["of_data"]
    assert "things.tar.gz" in titles["of_data"]
    assert "no_matter" not in titles["of_data"]
    (tmp_path / "torchbenchmark" / "data" / "things").mkdir(parents=True)
    assert "things" not in next(case.title for case in SUITES["torchbench"].local_cases()[1:])
