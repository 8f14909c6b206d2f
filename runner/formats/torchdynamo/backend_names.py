"""Backend names: inductor with its parts, or another backend that dynamo knows.

The names are those of the results (`inductor_cudagraphs_freezing`), which stand for what the harness's
flags and PyTorch's HUD mean. Knobs that are parts (`freezing`, `cudagraphs`, …) lead to the same names, so
that one way of compiling is one experiment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.formats.torchdynamo.compiler_names import Compiler, inductor_words
from runner.schema.inductor_options import LISTED
from runner.schema.suite import TaskSpec

# Words of a name, longest first, and the setting that each stands for.
_WORDS: dict[str, dict[str, bool | str]] = {
    "max_autotune_no_cudagraphs": {"compile_mode": "max-autotune-no-cudagraphs", "cudagraphs": False},
    "reduce_overhead": {"compile_mode": "reduce-overhead"},
    "with_cudagraphs": {"cudagraphs": True},
    "no_cudagraphs": {"cudagraphs": False},
    "cudagraphs": {"cudagraphs": True},
    "default": {"cudagraphs": False},
    "aot_inductor": {"export": "aot_inductor"},
    "cpp_wrapper": {"cpp_wrapper": True},
    "max_autotune": {"compile_mode": "max-autotune"},
    "freezing": {"freezing": True},
    "export": {"export": "export"},
}
_DEFAULTS: dict[str, object] = {
    "cudagraphs": True, "freezing": False, "cpp_wrapper": False, "compile_mode": "default", "export": "none",
}  # fmt: skip
PARTS = tuple(_DEFAULTS)  # knobs
_HARNESS_SWITCHES = {
    "disable_split_reductions": "split_reductions",
    "disable_persistent_reductions": "triton.persistent_reductions",
    "disable_divisible_by_16": "triton.divisible_by_16",
}


@dataclass(frozen=True)
class Backend:
    """`dynamo` is the name that torch.compile takes; the other fields are inductor's alone.

    `options` are inductor's settings by their paths in `torch._inductor.config`.
    """

    dynamo: str
    cudagraphs: bool = False
    freezing: bool = False
    cpp_wrapper: bool = False
    compile_mode: str = "default"
    export: str = "none"  # an exporter instead of torch.compile
    options: Mapping[str, bool | int] = field(default_factory=dict)

    @property
    def is_inductor(self) -> bool:
        return self.dynamo == "inductor" and self.export in {"none", "aot_inductor", "aot_precompile"}

    def name(self, device: str) -> str:
        """Return the name in the results."""
        if self.export == "aot_precompile":
            return self.export
        if self.dynamo != "inductor":
            return self.dynamo
        parts = {self.export, *(name for name in ("cpp_wrapper", "freezing") if getattr(self, name))}
        mode = "" if self.compile_mode == "default" else re.sub(r"\W+", "_", self.compile_mode)
        return Compiler(frozenset(parts), self.cudagraphs, mode).name(device)


def backend_of(spec: TaskSpec) -> Backend:
    """Return the backend of a task from its name and its knobs; a knob overrides the name."""
    parts = parts_of(spec.backend)
    if parts is None:
        return Backend(spec.backend)
    parts |= _parts_asked(spec, str(parts["export"]))
    options: dict[str, bool | int] = {name: True for name in ("freezing", "cpp_wrapper") if parts[name]}
    if parts["compile_mode"] == "reduce-overhead":
        parts["cudagraphs"] = True  # that is all it means
    graphs = bool(parts["cudagraphs"]) and spec.device == "cuda" and parts["export"] == "none"
    if parts["compile_mode"] == "max-autotune-no-cudagraphs":
        graphs, parts["compile_mode"] = False, "max-autotune"
    options |= {"triton.cudagraphs": graphs}
    options |= {option: False for knob, option in _HARNESS_SWITCHES.items() if spec.knobs.get(knob)}
    options |= {
        name: value for name, value in spec.knobs.items() if name in LISTED and isinstance(value, bool | int)
    }
    return Backend(
        dynamo="inductor",
        cudagraphs=graphs,
        freezing=bool(parts["freezing"]),
        cpp_wrapper=bool(parts["cpp_wrapper"]),
        compile_mode=str(parts["compile_mode"]),
        export=str(parts["export"]),
        options=options,
    )


def _parts_asked(spec: TaskSpec, export: str) -> dict[str, object]:
    """Return the knobs that say how inductor compiles this task; `export` is the exporter of its name."""
    found: dict[str, object] = {name: spec.knobs[name] for name in PARTS if name in spec.knobs}
    if spec.mode == "training" or spec.dynamic:
        found.pop("export", None)  # exporters take the forward pass with static shapes
    export = str(found.get("export", export))
    if spec.mode == "training" or export not in {"none", "aot_inductor"}:
        found.pop("freezing", None)
    if export != "none":
        found.pop("cpp_wrapper", None)
    mode = found.get("compile_mode")
    if (
        export not in {"none", "aot_inductor"}
        or (export == "aot_inductor" and mode in {"reduce-overhead", "max-autotune-no-cudagraphs"})
        or (spec.device != "cuda" and mode == "reduce-overhead")
    ):
        found.pop("compile_mode", None)
    return found


def parts_of(name: str) -> dict[str, object] | None:
    """Return the settings that a name of inductor means; None for another backend's name."""
    words = inductor_words(name, _WORDS)
    if words is None:
        return None
    # the runs that PyTorch's CI calls cpp_wrapper have CUDA graphs off
    parts = _DEFAULTS | {"cudagraphs": "cpp_wrapper" not in words}
    for word in words:
        parts |= _WORDS[word]
    return parts
