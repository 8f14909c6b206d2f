"""The harness's rules for single models: tolerances, optimizers, batches, exceptions from comparing.

Sources: its `common.py`, `huggingface.py`, `timm_models.py`, `torchbench.py` and their yaml files.
"""

from dataclasses import dataclass

from runner.formats.torchdynamo.batch_sizes import TINY_BATCH, default_batch_size
from runner.schema.suite import TaskSpec

_ACCURACY_BATCH = {"huggingface": 1, "torchbench": 4, "timm": 8}
_INVARIANCE_BATCH = {"huggingface": 8, "torchbench": 8, "timm": 16}
_ACCURACY_BATCH_AT_MOST = {"pytorch_unet": 2}
_OWN_BATCH = ("pyhpc_turbulent_kinetic_energy",)  # a batch size that must not be changed

_SGD = frozenset(
    (
        *("BERT_pytorch", "LearningToPaint", "alexnet", "dcgan", "densenet121", "dlrm", "mobilenet_v2"),
        *("phlippe_densenet", "phlippe_resnet", "resnet18", "shufflenet_v2_x1_0", "squeezenet1_1", "vgg16"),
        *("AlbertForMaskedLM", "BartForCausalLM", "ElectraForCausalLM", "M2M100ForConditionalGeneration"),
        *("MBartForCausalLM", "OPTForCausalLM", "PLBartForCausalLM", "PegasusForCausalLM"),
        *("TrOCRForCausalLM", "XGLMForCausalLM", "adv_inception_v3", "ghostnet_100", "tf_efficientnet_b0"),
    )
)
_SGD_FOR_INDUCTOR_ACCURACY = ("convnextv2_nano.fcmae_ft_in22k_in1k", "vit_base_patch14_dinov2.lvd142m")
_NO_OPTIMIZER = ("MobileBertForMaskedLM",)

_LARGER_MULTIPLIER = (
    *("GPT2ForSequenceClassification", "BertForMaskedLM"),
    *("inception_v3", "mobilenetv3_large_100", "vit_base_patch14_dinov2.lvd142m"),
)
_EVAL_IN_ACCURACY = ("M2M100ForConditionalGeneration",)
_NOT_COMPARED_IN_TRAINING = ("pytorch_unet",)  # eager has no deterministic algorithms for it
NOT_DETERMINISTIC_ALGORITHMS = ("alexnet", "pytorch_unet", "vgg16")

EMULATE_CASTS = ("vit_base_patch14_dinov2.lvd142m",)  # fused casts grow in its very small gradients

_TIMM_TRAINING = {
    "beit_base_patch16_224": 16e-2,
    "deit_base_distilled_patch16_224": 8e-2,
    "vit_base_patch16_siglip_256": 8e-2,
    "inception_v3": 4e-2,
    "mobilenetv3_large_100": 4e-2,
}


@dataclass(frozen=True)
class AccuracyRules:
    """How the harness compares a model.

    `larger_multiplier`: it allows small tensors of this model a larger error. `widest`: it allows ten times
    eager's (convolutions folded in bfloat16). `skip` is the reason why nothing is compared, or ''.
    """

    tolerance: float
    cosine: bool = False
    larger_multiplier: bool = False
    skip: str = ""
    equal_nan: bool = False
    widest: bool = False


def accuracy_rules(spec: TaskSpec) -> AccuracyRules:
    """Return the harness's rules for this case in this mode, dtype and on this device."""
    training = spec.mode == "training"
    freezes = bool(spec.knobs.get("freezing")) or "freezing" in spec.backend
    tolerance = _TOLERANCES.get(spec.suite, _torchbench_tolerance)
    not_compared = training and spec.case in _NOT_COMPARED_IN_TRAINING
    return AccuracyRules(
        tolerance=tolerance(spec, training, freezes),
        cosine=bool(spec.knobs.get("cosine")),
        larger_multiplier=spec.case in _LARGER_MULTIPLIER,
        skip="its eager mode has no deterministic algorithms" if not_compared else "",
    )


def _huggingface_tolerance(spec: TaskSpec, training: bool, _freezes: bool) -> float:
    if training:
        return 2e-2 if spec.case == "MT5ForConditionalGeneration" else 1e-2
    if spec.case == "GPT2ForSequenceClassification":
        return 5e-3 if spec.device == "cpu" else 4e-3
    return 1e-3


def _timm_tolerance(spec: TaskSpec, training: bool, freezes: bool) -> float:
    if training:
        return _TIMM_TRAINING.get(spec.case, 1e-2)
    return 8e-2 if freezes and spec.case == "adv_inception_v3" else 1e-3


def _torchbench_tolerance(spec: TaskSpec, training: bool, freezes: bool) -> float:
    half = spec.dtype in ("float16", "amp")
    if half and freezes and spec.case == "mobilenet_v2":
        return 8e-2
    if half and spec.case == "phlippe_resnet":
        return 1e-2
    if half or (training and spec.device == "cuda"):
        return 8e-2 if spec.case in ("squeezenet1_1", "shufflenet_v2_x1_0") else 1e-3
    return 1e-4


_TOLERANCES = {"huggingface": _huggingface_tolerance, "timm": _timm_tolerance}  # the others: torchbench's


def optimizer_of(spec: TaskSpec, *, for_accuracy: bool = False) -> str:
    """Return none, sgd or adam: the knob's choice, else the harness's (on a CPU: none)."""
    asked = str(spec.knobs.get("optimizer", "harness"))
    if asked != "harness":
        return asked
    if spec.device != "cuda" or spec.case in _NO_OPTIMIZER:
        return "none"
    inductor_accuracy = for_accuracy and spec.backend.startswith("inductor")
    if spec.case in _SGD or (inductor_accuracy and spec.case in _SGD_FOR_INDUCTOR_ACCURACY):
        return "sgd"
    return "adam"


def batch_size_of(spec: TaskSpec, *, for_accuracy: bool = False) -> int | None:
    """Return the knob's batch size, else the model's own in the harness; None where only the model knows it.

    An accuracy check takes a small one, even where the knob asks for more.
    """
    tiny = spec.knobs.get("size") == "tiny"
    asked = spec.knobs.get("batch_size")
    own = default_batch_size(spec.suite, spec.case, spec.mode, tiny=tiny)
    if spec.case in _OWN_BATCH:
        return own
    if not for_accuracy or spec.suite not in _ACCURACY_BATCH:
        return asked if isinstance(asked, int) else own
    table = _INVARIANCE_BATCH if spec.knobs.get("batch_invariant") else _ACCURACY_BATCH
    small = min(table[spec.suite], _ACCURACY_BATCH_AT_MOST.get(spec.case, 1 << 30))
    if isinstance(asked, int):
        return min(small, asked)
    return min(small, TINY_BATCH) if tiny else small


def trains(spec: TaskSpec, *, for_accuracy: bool = False) -> bool:
    """Return whether the module is put into train(). The harness checks torchbench's training in eval()."""
    if spec.mode != "training" or spec.knobs.get("use_eval_mode"):
        return False
    return not (for_accuracy and (spec.suite == "torchbench" or spec.case in _EVAL_IN_ACCURACY))
