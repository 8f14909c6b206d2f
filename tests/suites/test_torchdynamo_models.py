"""The models of the torchdynamo suites: their tables, reduced ones built and stepped, whole ones on paper."""

from __future__ import annotations

import importlib
import json
import re
import socket
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from runner import suites
from runner.formats.torchdynamo.batch_sizes import default_batch_size
from runner.launch.failures import TaskFailure
from runner.schema.options import OptionValue
from runner.schema.suite import TaskSpec
from runner.suites import SUITES
from runner.suites.tables import rows_of
from runner.suites.torchdynamo import has_trait, models_of, rules
from runner.suites.torchdynamo.model import ModelRequest, Step, load

SUITE_NAMES = ("huggingface", "timm", "torchbench")
DEVICES = ("cuda", "cpu")
PHASES = (":forward", ":prefill", ":decode")  # cases of a language model
# Millions, of the real models. Of Blenderbot it is the decoder's.
PARAMETERS = {
    "AlbertForMaskedLM": 206.4,
    "AllenaiLongformerBase": 148.7,
    "BartForCausalLM": 254.1,
    "BertForMaskedLM": 109.5,
    "BlenderbotForCausalLM": 2538.6,
    "DistilBertForMaskedLM": 67.0,
    "DistillGPT2": 81.9,
    "ElectraForCausalLM": 13.5,
    "GPT2ForSequenceClassification": 124.4,
    "GoogleFnet": 83.5,
    **dict.fromkeys((f"Qwen/Qwen3-0.6B{phase}" for phase in PHASES), 596.0),
    **dict.fromkeys((f"google/gemma-2-2b{phase}" for phase in PHASES), 2614.3),
    **dict.fromkeys((f"google/gemma-3-4b-it{phase}" for phase in PHASES), 3880.3),
    **dict.fromkeys((f"meta-llama/Llama-3.2-1B{phase}" for phase in PHASES), 1235.8),
    **dict.fromkeys((f"mistralai/Mistral-7B-Instruct-v0.3{phase}" for phase in PHASES), 7248.0),
    **dict.fromkeys((f"openai/gpt-oss-20b{phase}" for phase in PHASES), 20914.8),
    "openai/whisper-tiny:forward": 37.8,
    "LayoutLMForMaskedLM": 113.3,
    "M2M100ForConditionalGeneration": 483.9,
    "MBartForCausalLM": 254.1,
    "MT5ForConditionalGeneration": 172.1,
    "MegatronBertForCausalLM": 333.7,
    "MobileBertForMaskedLM": 36.6,
    "OPTForCausalLM": 125.2,
    "PLBartForCausalLM": 95.9,
    "PegasusForCausalLM": 254.1,
    "RobertaForCausalLM": 124.7,
    "T5ForConditionalGeneration": 60.5,
    "T5Small": 60.5,
    "TrOCRForCausalLM": 253.6,
    "XGLMForCausalLM": 564.5,
    "XLNetLMHeadModel": 360.3,
    "YituTechConvBert": 106.3,
    "adv_inception_v3": 23.8,
    "beit_base_patch16_224": 86.5,
    "convnextv2_nano.fcmae_ft_in22k_in1k": 15.6,
    "deit_base_distilled_patch16_224": 87.3,
    "deit_tiny_patch16_224.fb_in1k": 5.7,
    "dm_nfnet_f0": 71.5,
    "ghostnet_100": 5.2,
    "inception_v3": 23.8,
    "mobilenetv2_100": 3.5,
    "mobilenetv3_large_100": 5.5,
    "mobilevit_s": 5.6,
    "nfnet_l0": 35.1,
    "repvgg_a2": 28.2,
    "swin_base_patch4_window7_224": 87.8,
    "tf_efficientnet_b0": 5.3,
    "visformer_small": 40.2,
    "vit_base_patch14_dinov2.lvd142m": 86.6,
    "vit_base_patch16_siglip_256": 92.9,
    "alexnet": 61.1,
    "densenet121": 8.0,
    "mnasnet1_0": 4.4,
    "mobilenet_v2": 3.5,
    "mobilenet_v3_large": 5.5,
    "resnet152": 60.2,
    "resnet18": 11.7,
    "resnet50": 25.6,
    "resnext50_32x4d": 25.0,
    "shufflenet_v2_x1_0": 2.3,
    "squeezenet1_1": 1.2,
    "vgg16": 138.4,
}
# Convolutions are slow on a CPU: of those suites a few.
STEPPED = [("huggingface", case.name) for case in SUITES["huggingface"].cases] + [
    ("timm", "beit_base_patch16_224"),
    ("timm", "deit_base_distilled_patch16_224"),
    ("timm", "vit_base_patch14_dinov2.lvd142m"),
    ("timm", "vit_base_patch16_siglip_256"),
    ("torchbench", "squeezenet1_1"),
]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise AssertionError("a model asked the network for something")

    monkeypatch.setattr(socket.socket, "connect", refused)


def spec_of(
    suite: str, case: str, mode: str = "inference", dtype: str = "float32", **knobs: OptionValue
) -> TaskSpec:
    return TaskSpec(suite, case, mode, dtype, "eager", "cpu", knobs=knobs)


def tiny(
    suite: str, case: str, mode: str = "inference", dtype: str = "float32", **knobs: OptionValue
) -> TaskSpec:
    return TaskSpec(suite, case, mode, dtype, "eager", "cpu", knobs={"size": "tiny", **knobs})


@pytest.mark.parametrize("suite", SUITE_NAMES)
def test_the_catalogue_has_the_harness_s_models_with_its_batch_sizes(suite: str) -> None:
    assert len(SUITES[suite].cases) >= {"huggingface": 25, "timm": 18, "torchbench": 17}[suite]
    for case in SUITES[suite].cases:
        for mode in ("inference", "training"):
            size = default_batch_size(suite, case.name, mode)
            assert bool(size) is not ("/" in case.name), case.name
            assert rules.batch_size_of(spec_of(suite, case.name, mode, case.dtypes[0])) == size


def test_every_trait_of_a_model_is_asked_for() -> None:
    """A word that is misspelled in a models.csv or in the code would mean nothing."""
    rows = [row for suite in SUITE_NAMES for row in models_of(suite).values()]
    traits = {trait for row in rows for trait in row["traits"].split()}
    code = "".join(path.read_text() for path in Path(suites.__file__).parent.rglob("*.py"))
    assert traits == set(re.findall(r'has(?:_trait)?\([^()]*"(\w+)"\)', code))


def test_an_accuracy_check_takes_the_small_batch() -> None:
    def batch(suite: str, case: str, **knobs: OptionValue) -> int | None:
        spec = TaskSpec(suite, case, "inference", "float32", "eager", "cpu", knobs=knobs)
        return rules.batch_size_of(spec, for_accuracy=True)

    assert batch("huggingface", "BertForMaskedLM") == 1
    assert batch("timm", "deit_tiny_patch16_224.fb_in1k") == 8
    assert batch("torchbench", "resnet50") == 4
    assert batch("torchbench", "pytorch_unet") == 2
    assert batch("torchbench", "resnet50", batch_size=64) == 4
    assert batch("torchbench", "resnet50", batch_size=2) == 2
    assert batch("timm", "inception_v3", batch_invariant=True) == 16


@pytest.mark.parametrize(
    ("suite", "case"), [("huggingface", "DistillGPT2"), ("timm", "ghostnet_100"), ("torchbench", "resnet18")]
)
def test_a_tiny_model_has_the_batch_that_is_asked_for(suite: str, case: str) -> None:
    assert load(tiny(suite, case, batch_size=3)).batch_size == 3
    assert load(tiny(suite, case)).batch_size == 2


@pytest.mark.parametrize("suite", SUITE_NAMES)
def test_whole_models_have_the_known_numbers_of_parameters(suite: str) -> None:
    """Built on `meta`, which has shapes and no memory."""
    models = importlib.import_module(f"runner.suites.{suite}.models")
    for case in SUITES[suite].cases:
        if suite == "torchbench" and not has_trait(suite, case.name, "torchvision"):
            continue
        built = models.build(case.name, ModelRequest("meta", batch_size=1))
        count = sum(parameter.numel() for parameter in built.module.parameters())
        assert round(count / 1e6, 1) == PARAMETERS[case.name], case.name
        assert built.size_note == ""


@pytest.mark.parametrize(
    ("suite", "case"),
    [
        pytest.param(*stepped, marks=[] if number % 4 == 0 else [pytest.mark.soak])
        for number, stepped in enumerate(STEPPED)
    ],
)
def test_a_reduced_model_steps_and_says_that_it_is_reduced(suite: str, case: str) -> None:
    inference = tiny(suite, case)
    model = load(inference)
    assert model.size_note.startswith("reduced: ")
    assert model.batch_size == (default_batch_size(suite, case, "inference", tiny=True) or 1)
    assert not model.module.training
    output = Step(model, inference).function(model.inputs)
    for tensor in torch.utils._pytree.tree_leaves(output):
        assert tensor.isfinite().all()
        assert not tensor.requires_grad
    training = tiny(suite, case, "training", optimizer="sgd")
    if case.endswith(PHASES[1:]):
        with pytest.raises(TaskFailure, match="inference"):
            load(training)
        return
    model = load(training)
    assert model.module.training
    step = Step(model, training)
    assert step.function(model.inputs).isfinite()
    assert any(parameter.grad is not None for parameter in model.module.parameters())


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "amp"])
def test_every_dtype_steps(mode: str, dtype: str) -> None:
    spec = tiny("huggingface", "BertForMaskedLM", mode, dtype)
    model = load(spec)
    result = Step(model, spec).function(model.inputs)
    weights = {parameter.dtype for parameter in model.module.parameters()}
    assert weights == {torch.float32 if dtype == "amp" else getattr(torch, dtype)}
    if mode == "inference":
        assert result.logits.dtype == getattr(torch, "bfloat16" if dtype == "amp" else dtype)


def test_the_same_task_has_the_same_weights_and_inputs() -> None:
    spec = tiny("timm", "deit_tiny_patch16_224.fb_in1k")
    one, other = load(spec), load(spec)
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert isinstance(one.inputs, tuple)
    assert isinstance(other.inputs, tuple)
    assert torch.equal(one.inputs[0], other.inputs[0])


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_graph_break_counts_as_in_the_harness_step(mode: str) -> None:
    spec = tiny("timm", "deit_tiny_patch16_224.fb_in1k", mode, optimizer="sgd")
    step = Step(load(spec), spec)

    def breaks(inputs: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return inputs.sum().requires_grad_()

    torch._dynamo.reset()
    counters.clear()
    torch.compile(step.calling(breaks), backend="eager")((torch.ones(2),))
    (times,) = (times for reason, times in counters["graph_break"].items() if "graph_break()" in reason)
    assert times == 2  # of the step's frame and of the called one


def test_restoring_takes_a_training_step_back() -> None:
    spec = tiny("huggingface", "DistilBertForMaskedLM", "training", optimizer="adam", use_eval_mode=True)
    model = load(spec)
    step = Step(model, spec)
    step.remember()
    before = [parameter.detach().clone() for parameter in model.module.parameters()]
    first = step.function(model.inputs)
    assert step.function(model.inputs) != first
    step.restore()
    assert all(map(torch.equal, before, model.module.parameters()))
    step.begin()
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert step.function(model.inputs) == first


def test_no_dropout_in_an_accuracy_check() -> None:
    spec = tiny("huggingface", "BertForMaskedLM", "training")
    dropouts = [module.p for module in load(spec).module.modules() if isinstance(module, torch.nn.Dropout)]
    assert 0.1 in dropouts
    checked = load(spec, for_accuracy=True)
    assert checked.module.training
    assert {module.p for module in checked.module.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}
    assert not load(tiny("torchbench", "squeezenet1_1", "training"), for_accuracy=True).module.training


@pytest.mark.parametrize(
    ("suite", "case"),
    [("huggingface", "XGLMForCausalLM"), ("timm", "deit_base_distilled_patch16_224")],
)
def test_the_loss_is_a_number(suite: str, case: str) -> None:
    spec = tiny(suite, case, "training")
    model = load(spec)
    value = Step(model, spec).function(model.inputs)
    assert value.shape == ()
    assert value.isfinite()


def test_a_smaller_batch_is_the_first_rows() -> None:
    model = load(tiny("huggingface", "ElectraForCausalLM"))
    half = model.inputs_at(1)
    assert isinstance(half, dict)
    assert isinstance(model.inputs, dict)
    assert torch.equal(half["input_ids"], model.inputs["input_ids"][:1])
    assert len(model.batch_tensors()) == 2
    model.batch_size = 16
    assert model.smaller_batch() == 12
    model.batch_size = 2
    assert model.smaller_batch() == 2
    model.batched = False
    with pytest.raises(TaskFailure, match="no batch dimension"):
        model.inputs_at(1)


@pytest.mark.parametrize(
    ("suite", "case", "device", "asked", "optimizer"),
    [
        ("huggingface", "BertForMaskedLM", "cuda", "harness", "adam"),
        ("huggingface", "OPTForCausalLM", "cuda", "harness", "sgd"),
        ("huggingface", "MobileBertForMaskedLM", "cuda", "harness", "none"),
        ("huggingface", "BertForMaskedLM", "cpu", "harness", "none"),
        ("timm", "ghostnet_100", "cuda", "harness", "sgd"),
        ("timm", "ghostnet_100", "cpu", "adam", "adam"),
    ],
)
def test_the_optimizer_is_the_harness_s(
    suite: str, case: str, device: str, asked: str, optimizer: str
) -> None:
    spec = TaskSpec(suite, case, "training", "amp", "inductor", device, knobs={"optimizer": asked})
    assert rules.optimizer_of(spec) == optimizer


@pytest.mark.parametrize(
    ("suite", "case", "mode", "dtype", "device", "tolerance"),
    [
        ("huggingface", "BertForMaskedLM", "inference", "bfloat16", "cuda", 1e-3),
        ("huggingface", "BertForMaskedLM", "training", "amp", "cuda", 1e-2),
        ("huggingface", "MT5ForConditionalGeneration", "training", "amp", "cuda", 2e-2),
        ("huggingface", "GPT2ForSequenceClassification", "inference", "float32", "cpu", 5e-3),
        ("timm", "beit_base_patch16_224", "training", "amp", "cuda", 16e-2),
        ("timm", "inception_v3", "training", "amp", "cuda", 4e-2),
        ("timm", "inception_v3", "inference", "amp", "cuda", 1e-3),
        ("torchbench", "resnet18", "inference", "float32", "cuda", 1e-4),
        ("torchbench", "resnet18", "training", "float32", "cuda", 1e-3),
        ("torchbench", "resnet18", "inference", "amp", "cuda", 1e-3),
        ("torchbench", "squeezenet1_1", "inference", "float16", "cuda", 8e-2),
    ],
)
def test_the_tolerance_is_the_harness_s(  # noqa: PLR0917 - a table's columns
    suite: str, case: str, mode: str, dtype: str, device: str, tolerance: float
) -> None:
    spec = TaskSpec(suite, case, mode, dtype, "inductor", device)
    assert rules.accuracy_rules(spec).tolerance == tolerance


def test_a_decode_step_reads_the_same_cache_in_every_dtype_and_copy() -> None:
    spec = tiny("huggingface", "openai/gpt-oss-20b:decode", dtype="bfloat16", batch_size=2)
    model = load(spec)
    assert model.tokens == 2
    first = Step(model, spec).function(model.inputs)
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, Step(model, spec).function(model.inputs))
    assert torch.equal(first, Step(model.copy(), spec).function(model.inputs))
    model.module.cache.layers[-1].values.zero_()
    assert not torch.equal(first, Step(model, spec).function(model.inputs))


def hub_copy(folder: Path, name: str, config: dict[str, object]) -> None:
    """A file of a repository of the hub, as its cache keeps it."""
    snapshot = folder / f"models--{name.replace('/', '--')}"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text("0" * 40)
    (snapshot / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (snapshot / "snapshots" / ("0" * 40) / "config.json").write_text(json.dumps(config))


def test_any_model_of_the_hub_is_built_from_its_configuration_and_never_from_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    bert = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "num_hidden_layers": 3}
    hub_copy(tmp_path, "acme/bert", bert)
    hub_copy(tmp_path, "acme/own", {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}})
    model = load(spec_of("huggingface", "acme/bert"))
    assert len(model.module.bert.encoder.layer) == 3
    assert Step(model, spec_of("huggingface", "acme/bert")).function(model.inputs).loss.isfinite()
    assert load(tiny("huggingface", "acme/bert")).parameters < model.parameters / 100
    for name, code in (
        ("acme/own", "own_code"),
        ("acme/absent", "not_downloaded"),
        ("acme/bert:decode", "inference_only"),
    ):
        with pytest.raises(TaskFailure) as refused:
            load(spec_of("huggingface", name))
        assert (refused.value.status, refused.value.code) == ("unsupported", code)
    with pytest.raises(TaskFailure, match=r"hf download Qwen/Qwen3-0\.6B"):
        load(spec_of("huggingface", "Qwen/Qwen3-0.6B:forward", weights="real"))


def test_any_model_of_timm_is_built_by_name() -> None:
    assert load(tiny("timm", "test_vit.r160_in1k")).parameters > 100_000
    with pytest.raises(TaskFailure) as refused:
        load(tiny("timm", "no_such_model"))
    assert refused.value.code == "no_model"


@pytest.mark.parametrize(
    ("suite", "case"),
    [("huggingface", "BertForMaskedLM"), ("torchbench", "resnet18"), ("timm", "mobilevit_s")],
)
def test_a_reduced_model_has_no_published_weights(suite: str, case: str) -> None:
    with pytest.raises(TaskFailure) as refused:
        load(tiny(suite, case, weights="real"))
    assert refused.value.code == "no_weights"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (spec_of("torchbench", "llama", "training"), "inference_only"),
        (spec_of("torchbench", "moco"), "cuda_only"),
        (tiny("timm", "mobilevit_s", "training", enable_activation_checkpointing=True), "not_implemented"),
    ],
)
def test_what_a_model_cannot_do_is_unsupported(spec: TaskSpec, code: str) -> None:
    with pytest.raises(TaskFailure) as refused:
        load(spec)
    assert (refused.value.status, refused.value.code) == ("unsupported", code)


def test_a_model_that_cannot_be_built_fails_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    models = importlib.import_module("runner.suites.timm.models")
    monkeypatch.setattr(models, "torchvision", lambda: 1 / 0)
    with pytest.raises(TaskFailure) as failed:
        load(tiny("timm", "mobilevit_s"))
    assert (failed.value.status, failed.value.code) == ("failed", "model_fail_to_load")


@pytest.mark.parametrize("suite", ["huggingface", "timm", "torchbench"])
def test_the_table_of_tolerances_names_models_of_its_suite_and_ends_with_all_others(suite: str) -> None:
    *of_some, rest = rows_of(suite, "tolerances")
    named = {case for row in of_some for case in row["cases"].split()}
    assert named <= set(models_of(suite))
    assert {name for name, cell in rest.items() if cell} == {"tolerance"}
