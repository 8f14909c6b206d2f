"""Token generation as in gpt-fast's generate.py: a prefill, then one decode step for each token.

Both are compiled, the decode step with CUDA graphs. Every step begins a new generation for CUDA graphs and
its token is copied, so that one graph is recorded and replayed (gpt-fast keeps the previous step's token
alive and marks a generation once a sequence, which records one graph for each token of it).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runner.suites.gpt_fast.model import Transformer

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
