"""HuggingFace's models, from their configurations."""

import importlib
import importlib.util
import os
from functools import partial
from typing import Any

import torch

from runner.suites.torchdynamo import has_trait, models_of
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, torchvision

_NAME = "huggingface"
_TINY_SEQUENCE = 32
_SETTINGS: dict[str, dict[str, Any]] = {  # of configurations, where the harness has others than transformers
    "AllenaiLongformerBase": {
        "attention_window": [512] * 12,
        "max_position_embeddings": 4098,
        "vocab_size": 50265,
        "type_vocab_size": 1,
    },
    "DistillGPT2": {"n_layer": 6},
    "GPT2ForSequenceClassification": {"pad_token_id": 0},
    "RobertaForCausalLM": {"pad_token_id": 0},
    "T5Small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
}
# Settings that make a configuration small, by every name that configurations have for them.
_TINY = {
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers", "n_layer"), 2),
    **dict.fromkeys(("num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 128),
    **dict.fromkeys(("ffn_dim", "d_ff", "d_inner"), 128),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("n_heads", "n_head", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("d_kv", "d_head"), 16),
    **dict.fromkeys(("intra_bottleneck_size", "true_hidden_size"), 32),
    "vocab_size": 512,
}


def build(case: str, request: ModelRequest) -> LoadedModel:
    """Build the model of a case. Without `dropout` every probability of the configuration is 0."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
        torchvision()
    transformers = importlib.import_module("transformers")
    row = models_of(_NAME)[case]
    model_class = getattr(transformers, row["class"] or case)
    settings = dict(_SETTINGS.get(case, {}))
    known = model_class.config_class(**settings).to_dict()
    if "use_cache" in known:  # said before the modules exist: decoders copy their configuration
        settings["use_cache"] = False
    if request.tiny:
        settings |= {name: value for name, value in _TINY.items() if name in known}
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
