"""One name here for each of torchdynamo's compilers, from flags, file names, PyTorch's HUD, and tasks.

`inductor_cudagraphs` and `inductor_no_cudagraphs` on CUDA (upstream's `--inductor` means CUDA graphs on),
`inductor` elsewhere, `inductor_aot_inductor`, `inductor_cpp_wrapper`, …; what is no inductor keeps its name.
Knobs of a task that are parts of a name (`freezing`, `cudagraphs`, …) lead to the same names, so that one way
of compiling is one experiment.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from runner.formats.scalars import base_name
from runner.schema.compilations import INDUCTOR_OPTIONS
from runner.schema.suite import TaskSpec
from runner.schema.tables import rows

# Parts in the order in which a name has them.
_NAME_PARTS = ("export", "eager", "aot_inductor", "cpp_wrapper", "freezing", "max_autotune", "low_precision")
_UNSAID_GRAPHS = "unsaid_cudagraphs"  # in what a file's name says, and in no name of a compiler
# Words of a compiler's name, and the part each stands for.
_WORDS = {
    word: word for word in (*_NAME_PARTS, "no_cudagraphs", _UNSAID_GRAPHS, "cudagraphs", "dynamic")
} | {
    "with_cudagraphs": "cudagraphs", "default": "no_cudagraphs", "autotune": "max_autotune",
}  # fmt: skip
# Flags that choose another compiler, and its name.
OTHER_COMPILERS = {row["flag"]: row["compiler"] for row in rows(__file__, "compilers.csv")}
# What environment variables switch on stands only in the name of the output file.
_BY_ENVIRONMENT = frozenset(("cpp_wrapper", "max_autotune", "low_precision"))
_FILE = re.compile(
    r"(?:(?P<before>.+?)_)?(?P<suite>torchbench|huggingface|timm_models|timm|distributed)(?:_(?P<after>.+))?",
    re.IGNORECASE,
)
_IN_FILE_NAMES = {
    "dtype": {"amp", "float16", "bfloat16", "float32", "quant", "notset"},
    "mode": {"training", "inference"},
    "device": {"cuda", "cpu", "rocm", "xpu", "mps", "hpu"},
}
_AMP_TYPES = {"bf16", "fp16"}
_KINDS = ("performance", "accuracy")
# The names that the script itself gives (`common.py`, `output_filename`).
_SCRIPT_FILE = re.compile(
    r"(speedup|accuracy|tolerance)_(?P<backend>[A-Za-z]\w*?)(_compilation_metrics|_stats)?"
)
_SCRIPT_FILES = {name: compiler for name, compiler in OTHER_COMPILERS.items() if name != "overhead"}
_OTHER_BACKENDS = {
    "eager", "aot_eager", "dynamo_eager", "cudagraphs", "torchao", "optimus", *_SCRIPT_FILES.values(),
}  # fmt: skip
_SUITE_FOLDER = re.compile(r"(torchbench|huggingface|timm_models|timm)(?![a-z])", re.IGNORECASE)
_SETTINGS: dict[str, dict[str, bool | str]] = {}  # by word of a name, longest first
for _row in rows(__file__, "settings.csv"):
    _value = {"on": True, "off": False}.get(_row["value"], _row["value"])
    _SETTINGS.setdefault(_row["word"], {})[_row["setting"]] = _value
_DEFAULTS: dict[str, Any] = {
    "cudagraphs": True, "freezing": False, "cpp_wrapper": False, "compile_mode": "default", "export": "none",
}  # fmt: skip
PARTS = tuple(_DEFAULTS)  # knobs
_HARNESS_SWITCHES = {
    "disable_split_reductions": "split_reductions",
    "disable_persistent_reductions": "triton.persistent_reductions",
    "disable_divisible_by_16": "triton.divisible_by_16",
}


@dataclass(frozen=True)
class Compiler:
    """inductor with its parts. `cudagraphs` is None if nothing says it; then they are on."""

    parts: frozenset[str] = frozenset()
    cudagraphs: bool | None = None
    mode: str = ""  # of torch.compile
    dynamic: bool = False

    def name(self, device: str) -> str:
        words = ["inductor"]
        graphs = self.cudagraphs is not False
        standalone = self.parts & {"export", "eager", "aot_inductor"}
        hidden = standalone or _UNSAID_GRAPHS in self.parts
        if device == "cuda" and not hidden and (graphs or "cpp_wrapper" not in self.parts):
            words.append("cudagraphs" if graphs else "no_cudagraphs")
        words += [part for part in _NAME_PARTS if part in self.parts]
        return "_".join([*words, self.mode] if self.mode else words)


def inductor_words(name: str, known: Iterable[str]) -> list[str] | None:
    """Split ``inductor_WORD_WORD`` into known words, longer ones first in `known`; None for another name."""
    word = rf"_({'|'.join(known)})(?=_|$)"
    return re.findall(word, name) if re.fullmatch(rf"inductor(?:{word})*", name) else None


@lru_cache(maxsize=1024)  # every record of a file says the same name
def named(name: str) -> Compiler | None:
    """Return the compiler that a file name or an upload parameter means, None for one that is no inductor."""
    rest = name.lower()
    if rest.startswith("dynamic_"):
        rest = rest.removeprefix("dynamic_") + "_dynamic"
    if rest.startswith("aot_inductor"):
        rest = f"inductor_{rest}"
    words = inductor_words(rest, _WORDS)
    if words is None:
        return None
    parts = {_WORDS[word] for word in words}
    # the runs that CI calls cpp_wrapper have CUDA graphs off
    graphs = True if "cudagraphs" in parts else False if parts & {"no_cudagraphs", "cpp_wrapper"} else None
    return Compiler(frozenset(parts) & {*_NAME_PARTS, _UNSAID_GRAPHS}, graphs, "", "dynamic" in parts)


def flagged(info: dict[str, Any]) -> Compiler:
    """Return the inductor that the harness's command-line arguments ask for."""
    settings = inductor_settings(info)
    parts = {
        "aot_inductor": bool(info.get("export_aot_inductor")),
        "freezing": bool(info.get("freezing")) or settings.get("freezing") is True,
        "cpp_wrapper": settings.get("cpp_wrapper") is True,
        "max_autotune": settings.get("max_autotune") is True,
    }
    mode = info.get("inductor_compile_mode")
    mode = re.sub(r"\W+", "_", mode)[:40] if isinstance(mode, str) and mode != "default" else ""
    if mode == "max_autotune":
        mode, parts["max_autotune"] = "", True
    graphs = settings.get("triton.cudagraphs", not info.get("disable_cudagraphs"))
    in_file = named(file_hints(str(info.get("output") or "")).get("backend", ""))
    by_environment = in_file.parts & _BY_ENVIRONMENT if in_file else frozenset()
    return Compiler(by_environment | {name for name, on in parts.items() if on}, graphs is True, mode)


def inductor_settings(info: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `--inductor-config key=value …`, truth values as bool."""
    entries = info.get("inductor_config")
    entries = entries if isinstance(entries, list) else []
    pairs = [entry.split("=", 1) for entry in entries if isinstance(entry, str) and "=" in entry]
    truth = {"1": True, "True": True, "0": False, "False": False}
    return {key: truth.get(value, value) for key, value in pairs}


@lru_cache(maxsize=1024)
def file_hints(filename: str) -> Mapping[str, str]:
    """Return the upload parameters in the names of a file and its two folders, such as
    inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda_performance.csv, speedup_inductor.csv or
    huggingface/float32/results.csv. Intel's CI writes dashes for the underscores."""
    *folders, name = PurePosixPath(filename.replace("\\", "/")).parts[-3:] or [""]
    stem = name.split(".", 1)[0].replace("-", "_")
    by_ci, by_script = _FILE.fullmatch(stem), _SCRIPT_FILE.fullmatch(stem)
    words = stem.lower().split("_")
    hints = _said_by_words(words) if by_ci or by_script else {}
    if by_ci:
        if by_ci["suite"].lower() != "distributed":  # some of torchbench's models
            hints["suite"] = _suite_word(by_ci["suite"])
        if "dynamic" in words:
            hints["dynamic"] = "1"
        backend = _compiler_in(by_ci["before"] or "", by_ci["after"] or "")
    else:
        backend = _SCRIPT_FILES.get(stem) or (by_script["backend"] if by_script else stem)
        if by_script and backend == "inductor":  # with or without --disable-cudagraphs
            backend = f"inductor_{_UNSAID_GRAPHS}"
    if named(backend) or (by_script and backend) or backend in _OTHER_BACKENDS:
        hints["backend"] = backend
    for folder in reversed(folders):  # the nearer one first
        suite = _SUITE_FOLDER.match(folder)
        in_folder = {"suite": _suite_word(suite[1])} if suite else {}
        in_folder |= _said_by_words(re.split(r"[_\W]+", folder.lower()))
        in_folder.pop("device", None)  # a folder may be called after a machine
        hints = in_folder | hints
    return hints


def _suite_word(word: str) -> str:
    return "timm" if word.lower().startswith("timm") else word.lower()


def _said_by_words(words: Sequence[str]) -> dict[str, str]:
    """Return dtype, mode and device among the words of a name; mixed precision with its type is amp_bf16."""
    hints = {}
    for parameter, known in _IN_FILE_NAMES.items():
        position = next((index for index, word in enumerate(words) if word in known), None)
        if position is not None:
            word = "cuda" if words[position] == "rocm" else words[position]  # as torch calls it
            following = words[position + 1] if position + 1 < len(words) else ""
            hints[parameter] = f"amp_{following}" if word == "amp" and following in _AMP_TYPES else word
    return hints


def _compiler_in(before: str, after: str) -> str:
    """Return a compiler's name as `named` reads it. CI's lists of expected results put other words around it:
    dynamic_cpu_max_autotune_inductor_amp_freezing_huggingface_inference.csv."""
    others = set().union(*_IN_FILE_NAMES.values())
    words = [word for word in before.lower().split("_") if word not in others | _AMP_TYPES]
    words += [word for word in after.lower().split("_") if word in {"dynamic", "freezing"}]
    if "inductor" in words and "aot" not in words:
        words.sort(key="inductor".__ne__)
    elif "aot" not in words or "inductor" not in words:
        words = [word for word in words if word != "dynamic"]
    return "_".join(words)


def kind_in_name(filename: str) -> str:
    """Return performance or accuracy from a file's name, '' if it says neither."""
    words = re.split(r"[-._]", base_name(filename).lower())
    return next((kind for kind in _KINDS if kind in words), "")


def said_by_name(filename: str) -> Mapping[str, str]:
    return {**file_hints(filename), "kind": kind_in_name(filename)}


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
    parts |= _parts_asked(spec, parts["export"])
    options: dict[str, bool | int] = {name: True for name in ("freezing", "cpp_wrapper") if parts[name]}
    if parts["compile_mode"] == "reduce-overhead":
        parts["cudagraphs"] = True  # that is all it means
    graphs = parts["cudagraphs"] and spec.device == "cuda" and parts["export"] == "none"
    if parts["compile_mode"] == "max-autotune-no-cudagraphs":
        graphs, parts["compile_mode"] = False, "max-autotune"
    options |= {"triton.cudagraphs": graphs}
    options |= {option: False for knob, option in _HARNESS_SWITCHES.items() if spec.knobs.get(knob)}
    options |= {
        name: value
        for name, value in spec.knobs.items()
        if name in INDUCTOR_OPTIONS and isinstance(value, bool | int)
    }
    return Backend("inductor", **(parts | {"cudagraphs": graphs}), options=options)


def _parts_asked(spec: TaskSpec, export: str) -> dict[str, Any]:
    """Return the knobs that say how inductor compiles this task; `export` is the exporter of its name."""
    if spec.mode != "training" and not spec.dynamic:  # exporters take the forward pass with static shapes
        export = str(spec.knobs.get("export", export))
    mode = spec.knobs.get("compile_mode")
    takes_inductor = export in {"none", "aot_inductor"}
    with_graphs = {"reduce-overhead", "max-autotune-no-cudagraphs"}
    unfit = {
        "freezing": spec.mode == "training" or not takes_inductor,
        "cpp_wrapper": export != "none",
        "compile_mode": not takes_inductor
        or (export == "aot_inductor" and mode in with_graphs)
        or (spec.device != "cuda" and mode == "reduce-overhead"),
    }
    asked = (name for name in PARTS if name in spec.knobs and not unfit.get(name))
    return {**{name: spec.knobs[name] for name in asked}, "export": export}


def parts_of(name: str) -> dict[str, Any] | None:
    """Return the settings that a name of inductor means; None for another backend's name."""
    words = inductor_words(name, _SETTINGS)
    if words is None:
        return None
    # the runs that PyTorch's CI calls cpp_wrapper have CUDA graphs off
    parts = _DEFAULTS | {"cudagraphs": "cpp_wrapper" not in words}
    for word in words:
        parts |= _SETTINGS[word]
    return parts
