"""Every option of PyTorch's torchdynamo harness, with the knob or option of ours, or a reason."""

from __future__ import annotations

from runner.catalog.suites.suite import Option

_ALWAYS = "always on"
_STOOD_STILL = "its backend is no longer in PyTorch"
_SEVERAL_PROCESSES = "one task has one accelerator; runs over several processes are another kind of benchmark"


def _same(*names: str) -> tuple[Option, ...]:
    """Options that are knobs of the same name here."""
    return tuple(Option(name, ours=name.removeprefix("--").replace("-", "_")) for name in names)


_WHAT = (
    Option("--only", ours="--case"),
    Option("--filter", ours="--filter"),
    Option("--exclude", ours="--exclude"),
    Option("--exclude-exact", ours="--exclude-exact"),
    Option("--fast", ours="--exclude"),
    Option("--total-partitions", ours="--partition"),
    Option("--partition-id", ours="--partition"),
    Option("--performance", ours="test"),
    Option("--accuracy", ours="test"),
    Option("--training", ours="--mode"),
    Option("--inference", ours="--mode"),
    Option("--float32", ours="--dtype"),
    Option("--float16", ours="--dtype"),
    Option("--bfloat16", ours="--dtype"),
    Option("--amp", ours="--dtype"),
    Option("--device", ours="--device"),
    Option("--devices", ours="--devices"),
    Option("--device-index", ours="--device"),
    Option("--dynamic-shapes", ours="--dynamic"),
    Option("--dynamic-batch-only", ours="dynamic_dimensions"),
    Option("--compare-backed-unbacked", ours="unbacked_batch_only"),
    *_same("--amp-dtype", "--batch-size", "--threads", "--channels-last", "--randomize-input"),
    *_same("--use-eval-mode", "--enable-activation-checkpointing", "--unbacked-batch-only"),
    Option(
        "--batch-size-file", reason="a file of the host; the harness's own batch sizes are in the catalogue"
    ),
    Option("--no-skip", reason="nothing is skipped: what cannot run is a row with its reason"),
    Option("--part", reason="for two models of torchbench that need downloads"),
    Option(
        "--quantization",
        reason="needs torchao, which follows one version of torch; gpt_fast has int8 weights",
    ),
    Option("--multiprocess", reason=_SEVERAL_PROCESSES),
    Option("--ddp", reason=_SEVERAL_PROCESSES),
    Option("--fsdp", reason=_SEVERAL_PROCESSES),
    Option("--optimize-ddp-mode", reason=_SEVERAL_PROCESSES),
    Option("--distributed-master-port", reason=_SEVERAL_PROCESSES),
)
_COMPILER = (
    Option("--inductor", ours="--backend"),
    Option("--backend", ours="--backend"),
    Option("--inductor-compile-mode", ours="compile_mode"),
    Option("--inductor-config", ours="--opt"),
    Option("--disable-cudagraphs", ours="cudagraphs"),
    Option("--export", ours="export"),
    Option("--export-aot-inductor", ours="export"),
    Option("--aot-precompile", ours="export"),
    Option("--torchscript-jit-trace", ours="export"),
    *_same("--freezing", "--nopython", "--suppress-errors", "--compiled-autograd", "--specialize-int"),
    *_same("--disable-split-reductions", "--disable-persistent-reductions", "--disable-divisible-by-16"),
    Option(
        "--export-nativert",
        reason="its runtime takes a package of torch.export that no release promises to read",
    ),
    Option("--caching-precompile", reason="suite cache measures what caches save, precompilation among it"),
    Option(
        "--propagate-real-tensors", reason="looks for data-dependent graph breaks; it changes what is timed"
    ),
    Option("--optimus", reason="passes of Meta's own, for its own models"),
    Option("--inductor-settings", reason="for comparing other backends under inductor's settings"),
    Option("--xla", reason="suite xla measures PyTorch/XLA"),
    Option("--trace-on-xla", reason="suite xla measures PyTorch/XLA"),
    Option("--xla-tolerance", reason="suite xla measures PyTorch/XLA"),
    Option("--nvfuser", reason=_STOOD_STILL),
    Option("--prims-nvfuser", reason=_STOOD_STILL),
    Option("--nnc", reason="TorchScript's fuser; TorchScript is deprecated"),
    Option("--speedup-dynamo-ts", reason="TorchScript is deprecated"),
    Option(
        "--speedup-fx2trt", reason="needs TensorRT; its backend can be named with --backend where installed"
    ),
    Option("--speedup-fx2trt-fp16", reason="needs TensorRT; its backend can be named with --backend"),
    Option("--no-translation-validation", reason="the harness's own test of dynamo's guards, off here"),
)
_PROCEDURE = (
    Option("--repeat", ours="--repeat"),
    Option("--iterations-per-run", ours="--iterations-per-run"),
    *_same("--iterations", "--deterministic", "--cosine", "--batch-invariant"),
    Option("--ci", ours="repeat"),
    Option("--timeout", ours="--timeout"),
    Option("--cold-start-latency", ours="caches"),
    Option("--warm-start-latency", ours="caches"),
    Option("--per-process-memory-fraction", ours="memory_percent"),
    Option("--use-warm-peak-memory", reason=f"{_ALWAYS}: memory has a process of its own, with warm caches"),
    Option("--tolerance", reason="the ratio to eager's own error is kept with every accuracy"),
    Option("--skip-accuracy-check", ours="test"),
    Option(
        "--skip-fp64-check", reason="a model that does not run in float64 is compared by cosine, and says so"
    ),
    Option("--collect-outputs", reason=f"{_ALWAYS} in the accuracy check, whose process is not timed"),
    Option("--find-batch-sizes", reason="batch_size can be set; a search would take the host for hours"),
    Option("--save-model-outputs-to", reason="outputs of random weights; accuracy compares inside a task"),
    Option("--compare-model-outputs-with", reason="accuracy compares inside a task"),
    Option("--minify", reason="torch's own after_aot and after_dynamo minifiers work on the task's command"),
    Option("--diff-branch", ours="--base-python"),
    Option("--baseline", ours="--baseline"),
)
_KEPT = (
    Option("--output", ours="--output"),
    Option("--output-directory", ours="--output"),
    Option("--retain-output", ours="--resume"),
    Option("--disable-output", reason="without --output there is none"),
    Option("--tag", reason="a run has a title, a commit and environments by name"),
    Option("--dashboard", ours="--format"),
    Option("--export-profiler-trace", ours="keep_trace"),
    Option("--profile-details", ours="profile_details"),
    Option("--profiler-trace-name", reason="an artifact's name is the hud's"),
    Option("--snapshot-memory", ours="keep_memory_snapshot"),
    Option("--dump-raw-metrics", reason=f"{_ALWAYS}: every sample is in its record"),
    Option("--log-graph-breaks", reason=f"{_ALWAYS}: graph breaks with their reasons are an artifact"),
    Option("--print-graph-breaks", reason=f"{_ALWAYS}: graph breaks with their reasons are an artifact"),
    Option("--explain", reason=f"{_ALWAYS}: graph breaks with their reasons are an artifact"),
    Option("--stats", reason=f"{_ALWAYS}: dynamo's counters are metrics"),
    Option("--timing", reason=f"{_ALWAYS}: dynamo's phases are metrics"),
    Option("--print-memory", reason=f"{_ALWAYS}: peaks of memory are metrics"),
    Option("--print-compilation-time", reason=f"{_ALWAYS}: compile times are metrics"),
    Option("--print-dataframe-summary", reason="a table stands at the end of every run"),
    Option("--progress", reason=_ALWAYS),
    Option("--verbose", reason="a task's log holds everything"),
    Option("--quiet", reason="a task's log holds everything"),
    Option(
        "--print-fx", reason="keep_code keeps what inductor generated; TORCH_LOGS works on the task's command"
    ),
    Option("--print-aten-ops", reason="TORCH_LOGS=aot works on the task's command"),
    Option(
        "--generate-aot-autograd-stats", reason="counts of graphs are metrics; the file is read where it is"
    ),
    Option("--export-perfdoctor", reason="Meta's internal service"),
    Option("--log-operator-inputs", reason="suite operators records operators and their inputs by itself"),
    Option("--log-conv-args", reason="suite operators records operators and their inputs by itself"),
    Option("--coverage", reason="its file is read; captured calls and graph breaks are metrics"),
    Option("--overhead", reason="backend eager measures dynamo's own overhead"),
    Option("--nothing", reason="backend eager measures dynamo's own overhead"),
    Option("--recompile-profiler", reason=f"{_ALWAYS}: recompiles are a metric, their reasons in the log"),
    Option(
        "--profile-dynamo-cache-lookup", reason="one number inside dynamo that instruction counts see better"
    ),
)
OPTIONS = (*_WHAT, *_COMPILER, *_PROCEDURE, *_KEPT)
