"""HuggingFace's models, from their configurations."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from runner.suites.torchdynamo.model.built_model import BuiltModel, ModelRequest, torchvision

_TINY_SEQUENCE = 32
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
_SMALL_T5 = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}


@dataclass(frozen=True)
class _Recipe:
    sequence: int
    model: str = ""  # a class of transformers; '' for the one that is called as the case
    settings: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)
    labels: str = "tokens"  # tokens, tokens_but_last, or class
    decoder_inputs: bool = False  # the same tokens go to the decoder
    ends_with_eos: bool = False
    only_zeros: bool = False  # as the harness has it: every token is 0


_LONGFORMER = {
    "attention_window": [512] * 12,
    "max_position_embeddings": 4098,
    "vocab_size": 50265,
    "type_vocab_size": 1,
}
_RECIPES = {
    "AlbertForMaskedLM": _Recipe(512),
    "AllenaiLongformerBase": _Recipe(
        1024, "LongformerForMaskedLM", settings=_LONGFORMER, tiny={"attention_window": [16, 16]}
    ),
    "BartForCausalLM": _Recipe(1024, ends_with_eos=True),
    "BertForMaskedLM": _Recipe(512),
    "BlenderbotForCausalLM": _Recipe(128),
    "DistilBertForMaskedLM": _Recipe(128),
    "DistillGPT2": _Recipe(512, "GPT2LMHeadModel", settings={"n_layer": 6}),
    "ElectraForCausalLM": _Recipe(512),
    "GPT2ForSequenceClassification": _Recipe(1024, settings={"pad_token_id": 0}, labels="class"),
    "GoogleFnet": _Recipe(512, "FNetForMaskedLM"),
    "LayoutLMForMaskedLM": _Recipe(512),
    "M2M100ForConditionalGeneration": _Recipe(128, labels="tokens_but_last", decoder_inputs=True),
    "MBartForCausalLM": _Recipe(1024, ends_with_eos=True),
    "MT5ForConditionalGeneration": _Recipe(128, labels="tokens_but_last", decoder_inputs=True),
    "MegatronBertForCausalLM": _Recipe(512),
    "MobileBertForMaskedLM": _Recipe(128),
    "OPTForCausalLM": _Recipe(2048),
    "PLBartForCausalLM": _Recipe(1024, ends_with_eos=True),
    "PegasusForCausalLM": _Recipe(128),
    "RobertaForCausalLM": _Recipe(512, settings={"pad_token_id": 0}, only_zeros=True),
    "T5ForConditionalGeneration": _Recipe(1024, labels="tokens_but_last", decoder_inputs=True),
    "T5Small": _Recipe(1024, "T5ForConditionalGeneration", settings=_SMALL_T5, decoder_inputs=True),
    "TrOCRForCausalLM": _Recipe(256),
    "XGLMForCausalLM": _Recipe(128),
    "XLNetLMHeadModel": _Recipe(512),
    "YituTechConvBert": _Recipe(512, "ConvBertForMaskedLM"),
}


def build(case: str, request: ModelRequest) -> BuiltModel:
    """Build the model of a case. Without `dropout` every probability of the configuration is 0."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
        torchvision()
    transformers = importlib.import_module("transformers")
    recipe = _RECIPES[case]
    model_class = getattr(transformers, recipe.model or case)
    config = _config(model_class.config_class, recipe, tiny=request.tiny, dropout=request.dropout)
    with torch.device(request.device):
        module = model_class(config)
    if request.checkpointing:
        module.gradient_checkpointing_enable()
    size = request.batch_size or 1
    sequence = min(recipe.sequence, _TINY_SEQUENCE) if request.tiny else recipe.sequence
    return BuiltModel(
        module=module,
        inputs=_inputs(recipe, config, request.device, size, sequence),
        loss=lambda output: output[0],
        batch_size=size,
        size_note=f"reduced: two layers, 64 wide, 512 words, {sequence} tokens" if request.tiny else "",
    )


def _config(config_class: Any, recipe: _Recipe, *, tiny: bool, dropout: bool) -> Any:
    settings = dict(recipe.settings)
    known = config_class(**settings).to_dict()
    if "use_cache" in known:  # said before the modules exist: decoders copy their configuration
        settings["use_cache"] = False
    if tiny:
        settings |= {name: value for name, value in _TINY.items() if name in known} | recipe.tiny
    if not dropout:  # before the modules exist: they copy the probabilities
        settings |= {
            name: 0.0 for name, value in known.items() if "drop" in name and isinstance(value, float)
        }
    return config_class(**settings)


def _inputs(recipe: _Recipe, config: Any, device: str, batch: int, sequence: int) -> dict[str, torch.Tensor]:
    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=device)

    tokens = random(1 if recipe.only_zeros else config.vocab_size, batch, sequence)
    if recipe.ends_with_eos:
        tokens[:, -1] = config.eos_token_id
    inputs = {"input_ids": tokens}
    if recipe.decoder_inputs:
        inputs["decoder_input_ids"] = tokens
    if recipe.labels == "class":
        inputs["labels"] = random(config.num_labels - 1, batch)
    else:
        inputs["labels"] = random(config.vocab_size - (recipe.labels != "tokens"), batch, sequence)
    return inputs
