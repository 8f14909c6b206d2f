"""TIMM's models, by name, without their weights."""

import importlib
import os
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.suites.torchdynamo import has_trait, models_of
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, fetching, mean_of, torchvision

_PLAIN_VIT = {"depth": 2, "embed_dim": 64, "num_heads": 4, "img_size": 64}
# Reduced models where the architecture has such settings; the others keep theirs and see small images.
_TINY: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": _PLAIN_VIT,
    "deit_base_distilled_patch16_224": _PLAIN_VIT,
    "deit_tiny_patch16_224.fb_in1k": _PLAIN_VIT,
    "vit_base_patch14_dinov2.lvd142m": _PLAIN_VIT | {"img_size": 56},
    "vit_base_patch16_siglip_256": _PLAIN_VIT,
    "swin_base_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 32, "img_size": 224},
    "visformer_small": {"img_size": 224, "embed_dim": 48, "depth": (1, 1, 1)},
}
_TINY_IMAGE = 96


def build(case: str, request: ModelRequest) -> LoadedModel:
    """Build the model of a case, with standardised noise of the image size that its configuration names.

    As in the harness, there is never dropout.
    """
    if not request.real_weights:
        os.environ.update(HF_HUB_OFFLINE="1")
    torchvision()
    timm = importlib.import_module("timm")
    if not timm.is_model(case):
        raise TaskFailure("unsupported", "no_model", f"timm {timm.__version__} has no model {case!r}")
    if request.checkpointing:
        raise NotImplementedError("the harness checkpoints no activations in this suite")
    batch_size = request.batch_size or 1
    settings = _TINY.get(case, {}) if request.tiny else {}
    card = timm.get_pretrained_cfg(case)
    if request.real_weights and card is None:
        raise TaskFailure("unsupported", "no_weights", f"no weights are published for {case}")
    with torch.device(request.device), fetching(f"hf download {card.hf_hub_id if card else case}"):
        module = timm.create_model(case, pretrained=request.real_weights, drop_rate=0.0, **settings)
    data = timm.data.resolve_data_config({}, model=module, use_test_size=not request.training)
    channels, height, width = data["input_size"]
    size_note = ""
    if request.tiny:
        if case in models_of("timm"):  # others may take images of their own size alone
            height = width = settings.get("img_size", _TINY_IMAGE)
        shrunk = "".join(f"{name} {value}, " for name, value in settings.items() if name != "img_size")
        size_note = f"reduced: {shrunk}images of {height}×{width}"
    noise = torch.randint(256, (batch_size, channels, height, width), device=request.device).float()
    scale = 1000.0 if has_trait("timm", case, "scaled_loss") else 1.0
    return LoadedModel(
        module=module,
        inputs=((noise - noise.mean()) / noise.std(),),
        loss=lambda output: mean_of(output[0] if isinstance(output, tuple) else output) / scale,
        batch_size=batch_size,
        size_note=size_note,
    )
