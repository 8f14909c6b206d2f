"""`--preset`: the tasks are what the outside systems' own scripts measure where they are called plainly."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.__main__ import _parser, main
from runner.schema.suite import TaskSpec
from runner.suites import PRESETS
from runner.suites.operators.inputs import recorded
from runner.suites.request import tasks
from runner.system import interpreters, machine

# Upstream's documents, as constants of its scripts.
CACHEBENCH = {  # TORCHBENCH_MODELS, HUGGINGFACE_MODELS
    *("nanogpt", "BERT_pytorch", "resnet50", "moco", "llama"),
    *("AllenaiLongformerBase", "BertForMaskedLM", "GPT2ForSequenceClassification"),
}
GPT_FAST = {  # the dtypes of each experiment of benchmark.py and generate.py, without torchao's
    "mlp_layer_norm_gelu": ["bfloat16"],
    "layer_norm": ["bfloat16"],
    "gather_gemv": ["int8", "bfloat16"],
    "gemv": ["int8", "bfloat16"],
    "Llama-2-7b-chat-hf": ["bfloat16", "int8"],
    "Mixtral-8x7B-v0.1": ["int8"],
}
NOT_YET_IMPLEMENTED = (  # skip_operator of operatorbench.py
    *("aten.gather.default", "nll_loss", "aten.index", "aten.scatter_", "masked_fill_.Scalar"),
    *("aten._unsafe_view", "convolution"),
)
Plan = Callable[..., list[TaskSpec]]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """The tasks of the commands that a dry run prints, on a machine that has torch_xla."""
    found = replace(machine.environment("cpu"), packages={"torch_xla": "2.9", "torchvision": "0.24"})
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: found)

    def plan(name: str, words: str = "") -> list[TaskSpec]:
        assert main(["run", "--preset", name, "--device", "cpu", "--dry-run", *words.split()]) == 0
        planned = []
        for line in capsys.readouterr().out.splitlines():
            planned += tasks(_parser().parse_args(shlex.split(line)[3:]), "cpu")
        return planned

    return plan


def test_cachebench_measures_its_eight_models_in_training_with_amp(plan: Plan) -> None:
    assert {task.case for task in plan("cachebench")} == CACHEBENCH
    assert {(task.mode, task.dtype) for task in plan("cachebench")} == {("training", "amp")}
    inference = plan("cachebench", "--mode inference")
    assert {(task.mode, task.dtype) for task in inference} == {("inference", "bfloat16")}
    assert {task.case for task in inference} == CACHEBENCH


def test_operatorbench_measures_all_operators_of_torchbench_that_it_has_inputs_for(plan: Plan) -> None:
    planned = plan("operatorbench")
    wanted = [name for name in recorded("torchbench") if not any(map(name.count, NOT_YET_IMPLEMENTED))]
    assert [task.case for task in planned] == wanted
    assert {(task.dtype, task.setting("inputs"), task.setting("max_samples")) for task in planned} == {
        ("float32", "torchbench", 15)
    }


def test_gpt_fast_measures_kernels_over_its_sizes_and_models(plan: Plan) -> None:
    planned = plan("gpt_fast")
    assert Counter((task.case, task.dtype) for task in planned) == Counter(
        (case, dtype) for case, dtypes in GPT_FAST.items() for dtype in dtypes
    )
    sizes = {tuple(task.knobs["D"]) for task in planned if task.suite == "micro"}  # type: ignore[arg-type]
    assert sizes == {(1024, 4096, 8192, 16384)}


def test_xla_measures_eight_cells_of_each_model_of_torchbench(plan: Plan) -> None:
    cells = Counter(task.case for task in plan("xla"))
    assert {cells[case] for case in ("llama", "dlrm")} == set(cells.values()) == {8}
    (*llama,) = (task for task in plan("xla", "--filter ^llama$ --mode inference --backend openxla xla"))
    assert [(task.case, task.backend) for task in llama] == [("llama", "openxla"), ("llama", "xla")]
    assert {(task.setting("repeat"), task.setting("iterations_per_run")) for task in llama} == {(10, 1)}


def test_the_harness_runs_its_three_suites_in_both_modes(plan: Plan) -> None:
    planned = plan("torchdynamo")
    assert {(task.suite, task.mode) for task in planned} == {
        (suite, mode) for suite in ("torchbench", "huggingface", "timm") for mode in ("inference", "training")
    }
    assert {(task.dtype, task.backend) for task in planned} == {("float32", "inductor")}
    only = plan("torchdynamo", "timm --mode training")
    assert {(task.suite, task.mode) for task in only} == {("timm", "training")}


def test_every_preset_is_options_of_a_command() -> None:
    known = vars(_parser().parse_args(["run"]))
    assert {name for preset in PRESETS.values() for name in preset} <= known.keys()
