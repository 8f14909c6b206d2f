"""cachebench: how long a model takes to compile with empty caches, and with full ones."""

from __future__ import annotations

from dataclasses import replace

from runner.catalog.suites.suite import Case, Knob, Option, Suite
from runner.catalog.suites.torchdynamo_cases import HUGGINGFACE, TORCHBENCH
from runner.catalog.suites.torchdynamo_knobs import KNOBS

# cachebench's own lists, first here; it takes any other model of the two suites by name too.
_DEFAULTS = (
    *("nanogpt", "BERT_pytorch", "resnet50", "moco", "llama"),
    *("AllenaiLongformerBase", "BertForMaskedLM", "GPT2ForSequenceClassification"),
)
ORIGINS = {
    **{case.name: "torchbench" for case in TORCHBENCH},
    **{case.name: "huggingface" for case in HUGGINGFACE},
}
# amp and bfloat16 are what cachebench takes in training and in inference
_DTYPES = ("amp", "bfloat16", "float16", "float32")
_SHARED_KNOBS = ("size", "batch_size", "cudagraphs")


def _cases() -> tuple[Case, ...]:
    found = {case.name: case for case in (*TORCHBENCH, *HUGGINGFACE)}
    names = [name for name in _DEFAULTS if name in found]
    names += [name for name in found if name not in names]
    return tuple(
        replace(found[name], dtypes=tuple(kind for kind in _DTYPES if kind in found[name].dtypes))
        for name in names
    )


def _switch(name: str, help_text: str) -> Knob:
    return Knob(name, "bool", help_text, default=True)


SUITE = Suite(
    name="cache",
    title="Compile time with cold and warm caches, as cachebench",
    module="runner.suites.cache",
    cases=_cases(),
    backends=("inductor",),
    modes=("training", "inference"),
    knobs=(
        Knob(
            "repeat",
            "int",
            "pairs of a cold and a warm process",
            low=1,
            high=9,
            default=1,
            identity=False,
        ),
        *(knob for knob in KNOBS if knob.name in _SHARED_KNOBS),
        _switch("fx_graph_cache", "inductor's cache of compiled graphs"),
        _switch("aot_autograd_cache", "AOTAutograd's cache, which holds those of inductor"),
        _switch("autotune_cache", "inductor's cache of the configurations that autotuning chose"),
        _switch("local_pgo", "dynamo's memory of shapes that changed, of an earlier process"),
    ),
    dynamic=True,
    timeout_s=4000,
    axes=(("dtype", ("amp",)),),
    options=(
        Option("--model", ours="--case"),
        Option("--benchmark", ours="--case"),  # a model's name says its suite
        Option("--mode", ours="--mode"),
        Option("--dynamic", ours="--dynamic"),
        Option("--device", ours="--device"),
        Option("--output", ours="--output"),
        Option("--repeat", ours="repeat"),
        Option("fx_graph_cache", ours="fx_graph_cache"),
        Option("enable_autograd_cache", ours="aot_autograd_cache"),
        Option("autotune_local_cache", ours="autotune_cache"),
        Option("automatic_dynamic_local_pgo", ours="local_pgo"),
        Option("--disable-cudagraphs", ours="cudagraphs"),
        Option("remote caches", reason="always off: a compile that another machine did is not this one's"),
        Option("Triton's cache", reason="in the named folder with the others; Triton has no switch for it"),
    ),
)
