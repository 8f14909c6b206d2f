"""HuggingFace's models, from their configurations."""

import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.suites.torchdynamo import has_trait, models_of
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, fetching, mean_of, torchvision

_NAME = "huggingface"
_TINY_SEQUENCE = 32
_SEQUENCE = 512  # of a model that is not listed
# Settings of configurations, where the harness has others than transformers. Those of a model of the hub are
# the ones of its config.json. `tiny` makes any model small.
_SETTINGS = json.loads(Path(__file__).with_name("settings.json").read_text())


class DecodeStep(torch.nn.Module):
    """A language model's next token after a prompt, whose keys and values stand in a static cache."""

    def __init__(self, model: Any, batch: int, prompt: int) -> None:
        super().__init__()
        self.model, self.prompt = model, prompt
        config, weight = model.config, model.get_input_embeddings().weight
        self.cache = importlib.import_module("transformers").StaticCache(config, max_cache_len=prompt + 1)
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(batch, heads, width, weight.dtype, weight.device)
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "DecodeStep":
        """Move or cast the cache with the weights."""
        super()._apply(fn, recurse)
        for layer in self.cache.layers:
            for name in ("keys", "values", "cumulative_length"):
                setattr(layer, name, fn(getattr(layer, name)))
                torch._dynamo.mark_static_address(getattr(layer, name))
        return self

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        for layer in self.cache.layers:  # each call decodes the same token
            layer.cumulative_length.fill_(self.prompt)
            if layer.is_sliding:
                layer.cumulative_length_int = self.prompt
        logits: torch.Tensor = self.model(input_ids, past_key_values=self.cache, use_cache=True).logits
        return logits


def build(case: str, request: ModelRequest) -> LoadedModel:
    """Build the model of a case. Without `dropout` every probability of the configuration is 0."""
    phase = case.partition(":")[2].removeprefix("forward")
    row = models_of(_NAME).get(case)
    module = _module(case, row, request)
    if phase and (request.training or not type(module).__name__.endswith("CausalLM")):
        reason = f"{phase} is a part of a language model's inference"
        raise TaskFailure("unsupported", "inference_only", reason)
    if request.checkpointing:
        module.gradient_checkpointing_enable()
    size = request.batch_size or 1
    sequence = int(row["sequence"]) if row else _SEQUENCE
    if request.tiny:
        sequence = min(sequence, _TINY_SEQUENCE)
    inputs = _inputs(case, module, request.device, size, sequence)
    if phase == "prefill":
        inputs = {"input_ids": inputs["input_ids"], "logits_to_keep": 1}
    elif phase:
        inputs = {"input_ids": inputs["input_ids"][:, :1]}
        with torch.device(request.device):
            module = DecodeStep(module, size, sequence)
    return LoadedModel(
        module=module,
        inputs=inputs,
        loss=(lambda output: output[0]) if "labels" in inputs else (lambda output: mean_of(output[0])),
        batch_size=size,
        size_note=f"reduced: two layers, 64 wide, 512 words, {sequence} tokens" if request.tiny else "",
        tokens={"prefill": size * sequence, "decode": size}.get(phase, 0),
        answers_prompt=phase == "prefill",
    )


def _module(case: str, row: Any, request: ModelRequest) -> Any:
    """Return the model of transformers' own class with random weights, or with the published ones."""
    name = case.partition(":")[0]
    if request.real_weights and "/" not in name:
        raise TaskFailure("unsupported", "no_weights", f"{name} is a class, and no model of the hub")
    if row and not request.real_weights:
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
        torchvision()
    transformers = importlib.import_module("transformers")
    settings: dict[str, Any] = dict(_SETTINGS.get(name, {}))
    if not row:
        settings = _from_hub(transformers.AutoConfig, name).to_dict()
    class_name = (row["class"] or case) if row else (settings.get("architectures") or [""])[0]
    model_class = getattr(transformers, class_name, None)
    if model_class is None:
        raise TaskFailure("unsupported", "own_code", f"{name} is of no class of transformers: {class_name!r}")
    known = model_class.config_class(**settings).to_dict()
    if "use_cache" in known:  # said before the modules exist: decoders copy their configuration
        settings["use_cache"] = False
    if request.tiny:
        settings.pop("layer_types", None)
        tiny = _SETTINGS["tiny"]
        tokens = [key for key in known if key.endswith("token_id") and isinstance(known[key], int)]
        beyond = [key for key in tokens if known[key] >= tiny["vocab_size"]]
        settings |= {key: value for key, value in tiny.items() if key in known} | dict.fromkeys(beyond, 0)
        settings |= {"attention_window": [16, 16]} if "attention_window" in known else {}
    if not request.dropout:  # before the modules exist: they copy the probabilities
        settings |= {key: 0.0 for key, value in known.items() if "drop" in key and isinstance(value, float)}
    config = model_class.config_class(**settings)
    if request.real_weights:
        return _from_hub(model_class, name, config=config, dtype=torch.float32).to(request.device)
    with torch.device(request.device):
        return model_class(config)


def _from_hub(kind: Any, name: str, **settings: Any) -> Any:
    """Return what transformers makes of a repository's data, never of its code."""
    try:
        with fetching(f"hf download {name}"):
            return kind.from_pretrained(name, trust_remote_code=False, **settings)
    except ValueError as error:
        raise TaskFailure("unsupported", "own_code", f"{name}: {error}") from error


def _inputs(case: str, module: Any, device: str, batch: int, sequence: int) -> dict[str, Any]:
    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=device)

    has, config, kind = partial(has_trait, _NAME, case), module.config, type(module).__name__
    inputs: dict[str, Any] = {}
    if module.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        inputs["input_features"] = torch.randn(batch, config.num_mel_bins, frames, device=device)
    elif module.main_input_name == "pixel_values":
        inputs["pixel_values"] = torch.randn(batch, 3, config.image_size, config.image_size, device=device)
    else:
        # as the harness has it: every token of one of them is 0
        tokens = random(1 if has("only_zeros") else config.vocab_size, batch, sequence)
        if has("ends_with_eos"):
            tokens[:, -1] = config.eos_token_id
        inputs["input_ids"] = tokens
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
    if kind.endswith(("SequenceClassification", "ImageClassification")):
        inputs["labels"] = random(config.num_labels - 1, batch)
    elif kind.endswith(("LM", "LMHeadModel", "ForConditionalGeneration")):
        inputs["labels"] = random(config.vocab_size - has("labels_but_last"), batch, sequence)
    return inputs
