"""Options of the suites of PyTorch's torchdynamo harness.

A knob that the harness has is called as there, so that its results and ours are one experiment. What the
harness says in a compiler's name (CUDA graphs, freezing, …) is part of the backend here too: a knob of
that kind changes the backend's name in the results and stands nowhere else.
"""

from __future__ import annotations

from runner.schema.inductor_options import INDUCTOR_OPTIONS
from runner.schema.options import BUDGET_S, EXPLAIN_FAILURE, Option, choice, extra, repeat, switch

_PROCEDURE = (
    choice("test", "what to run", "both", "performance", "accuracy", identity=False),
    repeat("pairs of eager and compiled calls, at least", 1, 1000, 30),
    BUDGET_S,
    Option("iterations_per_run", "int", "calls in one sample", low=1, high=1000, default=1),
    choice("caches", "kept: from earlier processes, no cold compile", "fresh", "kept", identity=False),
)
_PRECISIONS = ("highest", "high", "medium")
_MODEL = (
    choice("size", "tiny: two layers and small inputs, to try a case out", "full", "tiny"),
    Option("batch_size", "int", "of what is timed; the harness's own where not given", low=1, high=65536),
    Option("threads", "int", "threads of the CPU", low=1, high=512),
    switch("channels_last", "memory format of convolutions"),
    switch("randomize_input", "other random numbers in the inputs of each pair"),
    switch("use_eval_mode", "training steps without dropout and batch statistics"),
    switch("enable_activation_checkpointing", "compute activations again in the backward"),
    choice("optimizer", "of a training step; harness: its own choice", "harness", "none", "sgd", "adam"),
    Option("amp_dtype", "choice", "of autocast; default: the harness's own", choices=("float16", "bfloat16")),
    Option("matmul_precision", "choice", "of float32; default: high on CUDA", choices=_PRECISIONS),
    Option("memory_percent", "int", "of the device that may be used", low=1, high=100, default=100),
)
_CHECK = (
    switch("deterministic", "deterministic algorithms while timing too"),
    switch("batch_invariant", "the accuracy check holds for each part of a batch"),
    switch("cosine", "compare by cosine similarity"),
    Option("iterations", "int", "steps of the accuracy check", low=1, high=20, default=2),
    EXPLAIN_FAILURE,
)
_EXPORTERS = ("aot_inductor", "export", "aot_precompile")
_COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_COMPILER = (
    choice("export", "the model by an exporter, not by torch.compile", "none", *_EXPORTERS),
    choice("compile_mode", "mode of torch.compile", "default", *_COMPILE_MODES),
    switch("cudagraphs", "CUDA graphs, as inductor's triton.cudagraphs", default=True),
    switch("freezing", "weights as constants of the graph"),
    switch("cpp_wrapper", "inductor's wrapper in C++"),
    switch("nopython", "fullgraph: a graph break is a failure"),
    choice("dynamic_dimensions", "of --dynamic", "batch", "all"),
    switch("unbacked_batch_only", "the batch is an unbacked symbol"),
    switch("specialize_int", "integers are constants of the graph"),
    switch("suppress_errors", "a frame that does not compile runs eagerly"),
    switch("compiled_autograd", "compile the backward pass at run time"),
    switch("disable_split_reductions", "inductor's split_reductions off"),
    switch("disable_persistent_reductions", "inductor's triton.persistent_reductions off"),
    switch("disable_divisible_by_16", "inductor's triton.divisible_by_16 off"),
)
# bandit: `extra` makes an option and is not the one of a queryset
_KEPT = (
    extra("keep_trace", "a profiler's trace of compiled steps"),  # nosec B610
    extra("profile_details", "the trace with shapes, memory and stacks"),  # nosec B610
    extra("keep_code", "the code that inductor generated"),  # nosec B610
    extra("keep_memory_snapshot", "the allocator's history of the compiled run"),  # nosec B610
    extra("keep_tlparse", "tlparse's report of the compile, where it is installed"),  # nosec B610
)
OPTIONS = (*_PROCEDURE, *_MODEL, *_CHECK, *_COMPILER, *_KEPT, *INDUCTOR_OPTIONS)
