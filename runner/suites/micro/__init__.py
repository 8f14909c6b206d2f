"""gpt-fast's micro-benchmarks, and beside its mlp of one vector one whose FLOP utilisation says something."""

from __future__ import annotations

from runner.schema.suite import Case, Knob, Suite

# gpt-fast's four sizes; a CPU takes smaller ones, so that one kernel stays under a minute.
SIZES = {"cuda": (1024, 4096, 8192, 16384), "cpu": (256, 512, 1024, 2048)}
_REPEAT = Knob("repeat", "int", "samples of call time for each shape, at least", low=20, high=1000)

SUITE = Suite(
    name="micro",
    title="gpt-fast's micro-benchmarks",
    module="runner.suites.micro.run",
    cases=(
        Case("layer_norm", "LayerNorm over 4096 rows of D", ("bfloat16",)),
        Case("gemv", "D×D matrix times vector", ("int8", "bfloat16")),
        Case("gather_gemv", "Two of eight D×D matrices times vector", ("int8", "bfloat16")),
        Case("mlp_layer_norm_gelu", "Linear, LayerNorm, Linear, LayerNorm of one vector of D", ("bfloat16",)),
        Case("mlp_batched", "Linear, LayerNorm, GELU, Linear, LayerNorm of 4096 rows of D", ("bfloat16",)),
    ),
    backends=("inductor",),
    inductor_options=True,
    knobs=(
        Knob("D", "ints", "sizes; the mean is derived only from the full set", low=64, high=16384),
        _REPEAT,
    ),
)
