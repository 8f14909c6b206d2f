"""Token generation as in gpt-fast's generate.py: a prefill, then one decode step for each token.

Both are compiled, the decode step with CUDA graphs. Every step begins a new generation for CUDA graphs and
its token is copied, so that one graph is recorded and replayed (gpt-fast keeps the previous step's token
alive and marks a generation once a sequence, which records one graph for each token of it).

The check of the compiled steps is by teacher forcing: the same tokens through compiled, eager and reference,
which is the model in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.func import functional_call

from runner.launch.failures import TaskFailure
from runner.measure import accuracy
from runner.suites.gpt_fast.model import Transformer

_COMPARED_STEPS = 16  # decoded tokens that are compared, at most
_UNRELATED = 1.0  # relative error of a position's logits at which nothing is right (unrelated ones have 1.4)

# Model, tokens [n], positions [n] → the next token [1], logits [n, vocabulary]
Step = Callable[[Transformer, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Steps:
    prefill: Step
    decode: Step


def steps(*, temperature: float, top_k: int) -> Steps:
    """Return two functions with equal bodies, so that the compiler sees each with one shape only."""

    def prefill(
        model: Transformer, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(tokens, positions)
        return sampled(logits[-1], temperature, top_k), logits

    def decode(
        model: Transformer, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(tokens, positions)
        return sampled(logits[-1], temperature, top_k), logits

    return Steps(prefill, decode)


def compiled(eager: Steps, *, cudagraphs: bool, coordinate_descent_tuning: bool) -> Steps:
    """Compile both steps with inductor: whole graphs, static shapes, options as in gpt-fast."""
    options = {"coordinate_descent_tuning": coordinate_descent_tuning, "assert_indirect_indexing": False}

    def one(step: Step, graphs: bool) -> Step:
        # mode="reduce-overhead" sets this too, but torch.compile does not accept a mode with options
        all_options = {**options, "triton.cudagraphs": graphs}
        return torch.compile(step, backend="inductor", dynamic=False, fullgraph=True, options=all_options)

    return Steps(one(eager.prefill, False), one(eager.decode, cudagraphs))


def sampled(logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
    """Draw a token [1] from the `top_k` likeliest of logits [vocabulary], without a synchronisation."""
    scaled = logits.float() / temperature
    least = torch.topk(scaled, min(top_k, scaled.shape[-1])).values[-1]
    probabilities = torch.softmax(scaled.masked_fill(scaled < least, float("-inf")), dim=-1)
    return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(1), dim=-1, keepdim=True)


def sequence(model: Transformer, with_steps: Steps, prompt: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Generate new tokens [new_tokens] after a prompt [n]. Call under no_grad, as `forced`."""
    positions = torch.arange(len(prompt), device=prompt.device)
    token = with_steps.prefill(model, prompt, positions)[0].clone()
    tokens = [token]
    position = positions[-1:] + 1
    for _ in range(new_tokens - 1):
        torch.compiler.cudagraph_mark_step_begin()
        token = with_steps.decode(model, token, position)[0].clone()
        tokens.append(token)
        position += 1
    return torch.cat(tokens)


def forced(model: Transformer, with_steps: Steps, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Return logits [n, vocabulary] of a given sequence [n], of which the first `prompt` are prefilled."""
    positions = torch.arange(len(tokens), device=tokens.device)
    rows = [with_steps.prefill(model, tokens[:prompt], positions[:prompt])[1].clone()]
    for place in range(prompt, len(tokens)):
        torch.compiler.cudagraph_mark_step_begin()
        one = slice(place, place + 1)
        rows.append(with_steps.decode(model, tokens[one].clone(), positions[one].clone())[1].clone())
    return torch.cat(rows)


def compare(
    model: Transformer, eager: Steps, compiled: Steps, *, prompt: int, new_tokens: int
) -> dict[str, float]:
    """Run the same random tokens through compiled and eager steps and compare with the reference.

    Return relative errors of logits against float32, and how often compiled and eager prefer the same token.

    Raise TaskFailure (wrong) if compiled logits are worse than eager's rounding explains.
    """
    length = prompt + min(new_tokens - 1, _COMPARED_STEPS)
    tokens = torch.randint(model.shape.vocabulary, (length,), device=model.rotation.device)
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
    """Return float32 logits [n, vocabulary] after each of the tokens [n].

    They come from the same model in one pass. Its weights follow the type of what they multiply, so that a
    model of 7 billion weights is checked without a copy of it.
    """
    wide = {
        name: tensor.float()
        for name, tensor in model.state_dict().items()
        if name.endswith(("embedding.weight", ".keys", ".values"))
    }
    positions = torch.arange(len(tokens), device=tokens.device)
    logits: torch.Tensor = functional_call(model, wide, (tokens, positions))
    return logits
