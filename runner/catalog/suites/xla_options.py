"""Every option of PyTorch/XLA's experiment_runner.py, with the knob or option of ours, or a reason."""

from __future__ import annotations

from runner.catalog.suites.suite import Reason, options, same

OPTIONS = options(
    {
        "--suite-name": "origin",
        **same("--accelerator", "--xla"),
        "--dynamo": "--backend",
        "--test": "--mode",
        "--filter": "--filter",
        "--exclude": "--exclude",
        "--filter-by-tier": Reason("the tiers are lists of torchbench models; name the cases"),
        "--exclude-by-tier": Reason("the tiers are lists of torchbench models; name the cases"),
        **same("--repeat", "--iterations-per-run", "--batch-size"),
        "--output-dirname": "--output",
        "--output-basename": "--output",
        "--no-resume": Reason("resuming is what has to be asked for: --resume"),
        "--dry-run": "--dry-run",
        "--subprocess-timeout": "--timeout",
        **same("--verify", "--verify-iterations"),
        "--timestamp": Reason("a run's time is when it was made"),
        "--total-partitions": "--partition",
        "--partition-id": "--partition",
        **same("--randomize-input", "--collect-dynamo-counters", "--dump-dynamo-counters"),
        **same("--profile-cuda-cpu", "--profile-cuda-cpu-individual-ops", "--dump-pytorch-profiles"),
        **same("--save-output", "--pure-wall-time", "--disable-tf32", "--matmul-precision"),
        "--filter-by-single-graph": "single_graph",
        "--collect-full-output": "collect_full_output",
        "--no-skip": Reason("nothing is skipped: a cell that cannot run is a row with its reason"),
        "--print-subprocess": Reason("a task's output is its log"),
        "--progress-bar": Reason("progress is printed always"),
        "--log-level": Reason("a task's log holds everything"),
        "--xla-flags": Reason("free text for XLA's process: XLA_FLAGS of an environment of the host"),
        **same("--dump-hlo", "--save-ir-format", "--dump-pytorch-xla-metrics"),
        "--profile-xla": Reason("XPlane files need TensorBoard; its own help says not to benchmark so"),
        "--profile-xla-duration-ms": Reason("belongs to --profile-xla"),
        "--torch-xla2": Reason("torchax is a project of its own on JAX, and takes no torch.compile"),
        "--enable-functionalization": "enable_functionalization",
        "--experiment-config": Reason("how its runner talks to its child; ours: the task's spec.json"),
        "--model-config": Reason("how its runner talks to its child; ours: the task's spec.json"),
    }
)
