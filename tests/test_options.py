"""Every option of the outside systems is a knob, an option of the command, or left out for a reason."""

from __future__ import annotations

import argparse

import pytest

from runner import run_command
from runner.__main__ import main
from runner.catalog import SUITES

# The options of each system's own scripts (underscores as dashes), so that none is forgotten.
DYNAMO = """
accuracy amp amp-dtype aot-precompile backend baseline batch-invariant batch-size batch-size-file bfloat16
caching-precompile channels-last ci cold-start-latency collect-outputs compare-backed-unbacked
compare-model-outputs-with compiled-autograd cosine coverage dashboard ddp deterministic device device-index
devices diff-branch disable-cudagraphs disable-divisible-by-16 disable-output disable-persistent-reductions
disable-split-reductions distributed-master-port dump-raw-metrics dynamic-batch-only dynamic-shapes
enable-activation-checkpointing exclude exclude-exact explain export export-aot-inductor export-nativert
export-perfdoctor export-profiler-trace fast filter find-batch-sizes float16 float32 freezing fsdp
generate-aot-autograd-stats inductor inductor-compile-mode inductor-config inductor-settings inference
iterations iterations-per-run log-conv-args log-graph-breaks log-operator-inputs minify multiprocess nnc
no-skip no-translation-validation nopython nothing nvfuser only optimize-ddp-mode optimus output
output-directory overhead part partition-id per-process-memory-fraction performance prims-nvfuser
print-aten-ops print-compilation-time print-dataframe-summary print-fx print-graph-breaks print-memory
profile-details profile-dynamo-cache-lookup profiler-trace-name progress propagate-real-tensors quantization
quiet randomize-input recompile-profiler repeat retain-output save-model-outputs-to skip-accuracy-check
skip-fp64-check snapshot-memory specialize-int speedup-dynamo-ts speedup-fx2trt speedup-fx2trt-fp16 stats
suppress-errors tag threads timeout timing tolerance torchscript-jit-trace total-partitions trace-on-xla
training unbacked-batch-only use-eval-mode use-warm-peak-memory verbose warm-start-latency xla xla-tolerance
"""
XLA = """
suite-name accelerator xla dynamo test filter exclude repeat iterations-per-run batch-size output-dirname
output-basename no-resume dry-run subprocess-timeout verify verify-iterations timestamp total-partitions
partition-id filter-by-tier exclude-by-tier randomize-input collect-dynamo-counters dump-dynamo-counters
profile-cuda-cpu profile-cuda-cpu-individual-ops dump-pytorch-profiles save-output pure-wall-time
disable-tf32 matmul-precision filter-by-single-graph collect-full-output no-skip print-subprocess
progress-bar log-level xla-flags dump-hlo save-ir-format dump-pytorch-xla-metrics profile-xla
profile-xla-duration-ms torch-xla2 enable-functionalization experiment-config model-config
"""
CACHE = "model benchmark mode dynamic device output repeat"
OPERATORS = """
suite op dtype max-samples repeats inductor-config device inp-file start-idx accuracy-checking channels-last
profile measure-nvfuser
"""
GPT_FAST = "only output"
UPSTREAM = {
    "huggingface": DYNAMO,
    "timm": DYNAMO,
    "torchbench": DYNAMO,
    "xla": XLA,
    "cache": CACHE,
    "operators": OPERATORS,
    "gpt_fast": GPT_FAST,
    "micro": GPT_FAST,
}


def command_options() -> set[str]:
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings}


def test_every_suite_of_an_outside_system_is_looked_at() -> None:
    assert set(UPSTREAM) == set(SUITES) - {"ceilings"}


@pytest.mark.parametrize("suite", UPSTREAM)
def test_no_option_of_the_outside_system_is_forgotten(suite: str) -> None:
    listed = [option.upstream.removeprefix("--").replace("_", "-") for option in SUITES[suite].options]
    assert len(listed) == len(set(listed))
    assert set(UPSTREAM[suite].split()) - set(listed) == set()


@pytest.mark.parametrize("suite", UPSTREAM)
def test_what_an_option_is_here_is_there(suite: str) -> None:
    knobs = [knob.name for knob in SUITES[suite].knobs]
    assert len(knobs) == len(set(knobs))
    there = {*knobs, *command_options()}
    assert [option for option in SUITES[suite].options if option.ours and option.ours not in there] == []


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--options", "huggingface"]) == 0
    said = capsys.readouterr().out
    assert "--freezing" in said
    assert "knob freezing" in said
    assert "not here: needs TensorRT" in said
    assert "cachebench" not in said
    assert main(["list", "--options", "nothing"]) == 2


def test_the_list_of_one_suite_leaves_out_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "micro"]) == 0
    said = capsys.readouterr().out
    assert "gather_gemv" in said
    assert "huggingface" not in said
