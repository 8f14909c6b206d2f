"""gpt-fast's models: token generation with a static KV cache."""

from __future__ import annotations

from runner.catalog.suites.suite import Case, Knob, Option, Suite

_MEASURED_MODES = ("bfloat16", "int8")

SUITE = Suite(
    name="gpt_fast",
    title="Token generation, as gpt-fast",
    module="runner.suites.gpt_fast",
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
        Knob("samples", "int", "sequences that are timed", low=1, high=100, default=5, identity=False),
        Knob(
            "repeat",
            "int",
            "pairs of an eager and a compiled step, at least",
            low=10,
            high=1000,
            default=30,
            identity=False,
        ),
        Knob(
            "budget_s",
            "int",
            "time for more pairs where 0.5 % is not reached",
            low=0,
            high=600,
            default=5,
            identity=False,
        ),
        Knob("top_k", "int", "likeliest tokens of which one is drawn", low=1, high=1000, default=200),
        Knob("temperature_percent", "int", "of the drawing, in hundredths", low=1, high=500, default=80),
        Knob("cudagraphs", "bool", "CUDA graphs for the step, as mode reduce-overhead", default=True),
        Knob(
            "coordinate_descent_tuning",
            "bool",
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
    options=(
        Option("--only", ours="--case"),
        Option("--output", ours="--output"),
        Option("name", ours="--case"),
        Option("mode bfloat16|int8", ours="--dtype"),
        Option("mode autoquant|autoquant_v2", reason="needs torchao, whose releases are another subject"),
        Option("num_samples", ours="samples"),
        Option("max_new_tokens", ours="new_tokens"),
        Option("top_k", ours="top_k"),
        Option("temperature", ours="temperature_percent"),
        Option("device", ours="--device"),
        Option("batch_size", reason="one sequence, as in all its experiments; only autoquant_v2 reads it"),
        Option("coordinate_descent_tuning", ours="coordinate_descent_tuning"),
        Option("mode=reduce-overhead", ours="cudagraphs"),
        Option("fx_graph_cache", ours="caches"),
        Option("triton.unique_kernel_names", reason="inductor's default since torch 2.6"),
        Option("assert_indirect_indexing", reason="always off, as gpt-fast has it: indices are our own"),
    ),
)
