"""Reference logits: one pass over the whole sequence in float32, without a KV cache.

A second implementation of the model on purpose. It dequantises the weights of one product at a time, so that
a model of 7 billion weights is checked without a copy of it.
"""

from __future__ import annotations

import torch
from torch import nn

from runner.suites.gpt_fast.model import Attention, FeedForward, MixtureOfExperts, Norm, Transformer, rotated


def logits(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32 logits [n, vocabulary] after each of the tokens [n]."""
    rotation = model.rotation[: len(tokens)]
    x = model.embedding(tokens).float()
    for block in model.blocks:
        x = x + _attention(block.attention, _norm(block.attention_norm, x), rotation)
        x = x + _feed_forward(block.feed_forward, _norm(block.feed_forward_norm, x))
    return _norm(model.norm, x) @ model.output.dequantized().T


def _norm(norm: Norm, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight.float(), eps=1e-5)


def _attention(attention: Attention, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    query, key, value = attention.split(x @ attention.query_key_value.dequantized().T)
    y = nn.functional.scaled_dot_product_attention(
        rotated(query, rotation).transpose(0, 1)[None],
        rotated(key, rotation).transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )
    return y[0].transpose(0, 1).flatten(1) @ attention.output.dequantized().T


def _feed_forward(part: FeedForward | MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    if isinstance(part, FeedForward):
        hidden = nn.functional.silu(x @ part.gate.dequantized().T) * (x @ part.up.dequantized().T)
        return hidden @ part.down.dequantized().T
    shares, chosen = part.routed(x @ part.router.dequantized().T)
    y = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        tokens, place = torch.where(chosen == expert)
        taken = x[tokens]
        hidden = nn.functional.silu(taken @ part.gate.dequantized(expert).T)
        hidden = hidden * (taken @ part.up.dequantized(expert).T)
        y[tokens] += (hidden @ part.down.dequantized(expert).T) * shares[tokens, place][:, None]
    return y
