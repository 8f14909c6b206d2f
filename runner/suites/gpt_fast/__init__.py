"""gpt-fast's models: token generation with a static KV cache."""

from __future__ import annotations

from runner.schema.options import BUDGET_S, count, repeat, switch
from runner.schema.suite import Case, Knob, Suite

_MEASURED_MODES = ("bfloat16", "int8")

SUITE = Suite(
    name="gpt_fast",
    title="Token generation, as gpt-fast",
    module="runner.suites.gpt_fast.run",
    cases=(
        Case("Llama-2-7b-chat-hf", "7 billion random weights in the shape of Llama 2", _MEASURED_MODES),
        Case("Mixtral-8x7B-v0.1", "Random weights in the shape of Mixtral, 16 of its 32 layers", ("int8",)),
        Case("toy-llama", "Two layers of 64 like Llama's, no real model: for a CPU and CI", _MEASURED_MODES),
        Case(
            "toy-mixtral", "Two layers of 64 like Mixtral's, no real model: for a CPU and CI", _MEASURED_MODES
        ),
    ),
    backends=("inductor",),
    knobs=(
        Knob("layers", "int", "of the model; the case's own where not given", low=1, high=80),
        Knob("prompt", "int", "tokens of the prompt", low=1, high=4096, default=6),
        Knob("new_tokens", "int", "tokens to generate", low=4, high=4096, default=200),
        count("samples", "sequences that are timed", 1, 100, 5),
        repeat("pairs of an eager and a compiled step, at least", 10, 1000, 30),
        BUDGET_S,
        Knob("top_k", "int", "likeliest tokens of which one is drawn", low=1, high=1000, default=200),
        Knob("temperature_percent", "int", "of the drawing, in hundredths", low=1, high=500, default=80),
        switch("cudagraphs", "CUDA graphs for the step, as mode reduce-overhead", default=True),
        switch(
            "coordinate_descent_tuning",
            "inductor's option of that name, on which int8 weights are fused into the products",
            default=True,
        ),
        Knob(
            "caches",
            "choice",
            "compile caches: fresh ones, for a cold and a warm compile, or the host's own, kept",
            choices=("fresh", "kept"),
            default="fresh",
        ),
    ),
    timeout_s=1800,
)
