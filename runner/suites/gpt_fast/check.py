"""Are the compiled steps right? Teacher forcing: the same tokens through compiled, eager and reference.

The reference is a second implementation of the model on purpose: one pass over the whole sequence in
float32, without a KV cache. It dequantises the weights of one product at a time, so that a model of 7 billion
weights is checked without a copy of it.
"""

import torch
from torch import nn

from runner.launch.failures import TaskFailure
from runner.measure import accuracy
from runner.suites.gpt_fast.generate import Steps, forced
from runner.suites.gpt_fast.model import Attention, FeedForward, MixtureOfExperts, Norm, Transformer, rotated

_STEPS = 16  # decoded tokens that are compared, at most
_UNRELATED = 1.0  # relative error of a position's logits at which nothing is right (unrelated ones have 1.4)


def compare(
    model: Transformer, eager: Steps, compiled: Steps, *, prompt: int, new_tokens: int, device: str
) -> dict[str, float]:
    """Run the same random tokens through compiled and eager steps and compare with the reference.

    Return relative errors of logits against float32, and how often compiled and eager prefer the same token.

    Raise TaskFailure (wrong) if compiled logits are worse than eager's rounding explains.
    """
    length = prompt + min(new_tokens - 1, _STEPS)
    tokens = torch.randint(model.shape.vocabulary, (length,), device=device)
    with torch.no_grad():
        of_compiled = forced(model, compiled, tokens, prompt)
        of_eager = forced(model, eager, tokens, prompt)
        right = reference_logits(model, tokens).double()
    if of_compiled.shape != right.shape or of_compiled.dtype != of_eager.dtype:
        raise TaskFailure("wrong", "shape", "the compiled step gives logits of another shape or type")
    same = float((of_compiled.argmax(-1) == of_eager.argmax(-1)).double().mean())
    if model.shape.experts:
        _mixture(of_compiled[:prompt], of_eager[:prompt], right[:prompt])
        found = _mixture(of_compiled[prompt:], of_eager[prompt:], right[prompt:])
    else:
        found = accuracy.check(of_compiled, of_eager, right)
    return {**found, "same_token": same}


def _mixture(compiled: torch.Tensor, eager: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    """Check a mixture of experts by the quantiles of its positions' errors.

    Where two experts score nearly the same, rounding decides between them, and the logits of that token
    and a little of all later ones change far more than by rounding. So a quarter of the positions must be
    as good as eager's rounding explains, and none may be altogether wrong.
    """
    errors, of_eager = (accuracy.relative_error(logits, right, dim=-1) for logits in (compiled, eager))
    quartile, worst, middle = float(errors.quantile(0.25)), float(errors.max()), float(of_eager.median())
    if not (quartile <= accuracy.bound(middle) and worst < _UNRELATED):
        said = f"{quartile:.2e} (lower quartile) and {worst:.2e} (largest) compiled"
        said += f", {middle:.2e} (median) eager"
        reason = f"relative error of a position's logits {said}, against float32"
        raise TaskFailure("wrong", "fail_accuracy", reason)
    return {"relative_error_compiled": quartile, "relative_error_eager": middle}


def reference_logits(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
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
