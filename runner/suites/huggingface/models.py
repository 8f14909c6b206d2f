"""HuggingFace's models, from their configurations."""

import importlib
import importlib.util
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.suites.torchdynamo import has_trait, models_of
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, torchvision

_NAME = "huggingface"
_TINY_SEQUENCE = 32
# Settings of configurations, where the harness has others than transformers; `tiny` makes any one small.
_SETTINGS = json.loads(Path(__file__).with_name("settings.json").read_text())


def build(case: str, request: ModelRequest) -> LoadedModel:
    """Build the model of a case. Without `dropout` every probability of the configuration is 0."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
        torchvision()
    transformers = importlib.import_module("transformers")
    row = models_of(_NAME)[case]
    model_class = getattr(transformers, row["class"] or case)
    settings: dict[str, Any] = dict(_SETTINGS.get(case, {}))
    known = model_class.config_class(**settings).to_dict()
    if "use_cache" in known:  # said before the modules exist: decoders copy their configuration
        settings["use_cache"] = False
    if request.tiny:
        settings |= {name: value for name, value in _SETTINGS["tiny"].items() if name in known}
        settings |= {"attention_window": [16, 16]} if "attention_window" in known else {}
    if not request.dropout:  # before the modules exist: they copy the probabilities
        settings |= {
            name: 0.0 for name, value in known.items() if "drop" in name and isinstance(value, float)
        }
    config = model_class.config_class(**settings)
    with torch.device(request.device):
        module = model_class(config)
    if request.checkpointing:
        module.gradient_checkpointing_enable()
    size = request.batch_size or 1
    sequence = min(int(row["sequence"]), _TINY_SEQUENCE) if request.tiny else int(row["sequence"])
    return LoadedModel(
        module=module,
        inputs=_inputs(case, config, request.device, size, sequence),
        loss=lambda output: output[0],
        batch_size=size,
        size_note=f"reduced: two layers, 64 wide, 512 words, {sequence} tokens" if request.tiny else "",
    )


def _inputs(case: str, config: Any, device: str, batch: int, sequence: int) -> dict[str, torch.Tensor]:
    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=device)

    has = partial(has_trait, _NAME, case)
    # as the harness has it: every token of one of them is 0
    tokens = random(1 if has("only_zeros") else config.vocab_size, batch, sequence)
    if has("ends_with_eos"):
        tokens[:, -1] = config.eos_token_id
    inputs = {"input_ids": tokens}
    if has("decoder_inputs"):
        inputs["decoder_input_ids"] = tokens
    if has("class_labels"):
        inputs["labels"] = random(config.num_labels - 1, batch)
    else:
        inputs["labels"] = random(config.vocab_size - has("labels_but_last"), batch, sequence)
    return inputs
