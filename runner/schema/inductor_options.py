"""Options of inductor that the new side of a pair is given, while the base goes without.

Every host takes those of a fixed list with bounds. An interpreter reports further ones with their kinds
(`measure/compiler/inductor_options.py`), and its host takes those too, unless they name a place or a program.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence

from runner.schema.options import Option
from runner.schema.suite import BadRequest

VARIABLE = "RUNNER_INDUCTOR_OPTIONS"  # of the process that measures: a JSON object

InductorValue = bool | int | float | str
InductorOptions = dict[str, InductorValue]
Kinds = Mapping[str, object]  # by option: "bool", "int", "float", or a list of words

# Options of inductor that every host takes: on or off, and numbers with their bounds.
_INDUCTOR_SWITCHES = (
    "aggressive_fusion", "allow_buffer_reuse", "assume_aligned_inputs", "b2b_gemm_pass",
    "benchmark_combo_kernel", "benchmark_fusion", "benchmark_kernel", "combo_kernels",
    "comprehensive_padding", "conv_1x1_as_mm", "coordinate_descent_check_all_directions",
    "coordinate_descent_tuning", "cpp.dynamic_threads", "cpp.enable_tiling_heuristics", "cpp.weight_prepack",
    "dynamic_scale_rblock", "efficient_conv_bn_eval_fx_passes", "emulate_precision_casts", "epilogue_fusion",
    "force_fuse_int_mm_with_mul", "force_shape_pad", "fx_graph_cache", "graph_partition", "inplace_buffers",
    "keep_output_stride", "layout_optimization", "loop_ordering_after_fusion", "max_autotune_gemm",
    "max_autotune_pointwise", "memory_planning", "nan_asserts", "pattern_matcher", "permute_fusion",
    "prologue_fusion", "reorder_for_locality", "shape_padding", "size_asserts", "triton.autotune_pointwise",
    "triton.codegen_upcast_to_fp32", "triton.cooperative_reductions", "triton.cudagraph_skip_dynamic_graphs",
    "triton.cudagraph_trees", "triton.dense_indexing", "triton.force_cudagraph_sync",
    "triton.prefer_nd_tiling", "triton.slow_path_cudagraph_asserts",
    "triton.tiling_prevents_pointwise_fusion", "triton.tiling_prevents_reduction_fusion",
    "triton.unique_kernel_names", "triton.use_block_ptr",
)  # fmt: skip
_INDUCTOR_NUMBERS = {
    "compile_threads": (1, 256), "coordinate_descent_search_radius": (1, 8),
    "cpp.max_horizontal_fusion_size": (1, 1024), "cpp.min_chunk_size": (1, 1048576),
    "cpp.simdlen": (0, 512), "max_fusion_size": (1, 1024), "max_pointwise_cat_inputs": (1, 64),
    "padding_alignment_bytes": (1, 4096), "triton.max_tiles": (1, 3), "triton.multi_kernel": (0, 3),
    "unroll_reductions_threshold": (1, 1024),
}  # fmt: skip
INDUCTOR_OPTIONS = (
    *(Option(name, "bool", "option of inductor") for name in _INDUCTOR_SWITCHES),
    *(Option(name, "int", "option of inductor", *limits) for name, limits in _INDUCTOR_NUMBERS.items()),
)
LISTED = {option.name: option for option in INDUCTOR_OPTIONS}
_WORDS = {"true": True, "on": True, "false": False, "off": False}
_MOST = 2**31
_MOST_LETTERS = 100
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", re.ASCII)
# What writes files, reaches another machine, runs a program, or is there for inductor's own tests.
_FORBIDDEN = re.compile(
    r"^trace\.|^test_configs\.|(_dirs?|_paths?|_root|_home)$|remote|upload|compiler|cxx|wrapper|command"
    r"|_cmd|hook|dump|save_|testing|type_checking",
    re.IGNORECASE,
)


def may_be_set(name: str) -> bool:
    """Return whether an option may be offered at all, whatever an interpreter reports."""
    return bool(_NAME.fullmatch(name)) and not _FORBIDDEN.search(name)


def problems(options: Mapping[str, object], kinds: Kinds | None) -> dict[str, str]:
    """Return why options cannot be set, by name. `kinds` is what the interpreter reports, None where it
    checks them itself later."""
    said = {name: _problem(name, value, kinds) for name, value in options.items()}
    return {name: problem for name, problem in said.items() if problem}


def checked(options: Mapping[str, object], kinds: Kinds | None) -> InductorOptions:
    """Return the options as inductor takes them. Raise BadRequest for one that cannot be set."""
    for name, problem in problems(options, kinds).items():
        raise BadRequest(f"inductor's option {name}: {problem}")
    return {
        name: float(value) if kinds and kinds.get(name) == "float" else value
        for name, value in sorted(options.items())
        if isinstance(value, InductorValue)
    }


def parsed(settings: Sequence[str], kinds: Kinds | None = None) -> InductorOptions:
    """Return the options of texts ``NAME=VALUE``, as a person types them. Raise BadRequest."""
    found: dict[str, object] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name in found:
            raise BadRequest(f"{setting!r} is not NAME=VALUE, each name once")
        found[name] = _value(text)
    return checked(found, kinds)


def variable(options: Mapping[str, InductorValue]) -> dict[str, str]:
    """Return the environment variable that carries them; none for no options."""
    return {VARIABLE: json.dumps(dict(options), sort_keys=True)} if options else {}


def texts(options: Mapping[str, InductorValue]) -> list[str]:
    """Return the options as a person types them, for `parsed`: ``["epilogue_fusion=off"]``."""
    said = {True: "on", False: "off"}
    return [
        f"{name}={said[value] if isinstance(value, bool) else value}"
        for name, value in sorted(options.items())
    ]


def words(options: Mapping[str, InductorValue]) -> str:
    """Return the options as people read them: ``epilogue_fusion=off, max_fusion_size=8``."""
    return ", ".join(texts(options))


def _problem(name: str, value: object, kinds: Kinds | None) -> str:
    if name in LISTED:
        return LISTED[name].problem(value)
    if not may_be_set(name):
        return f"{name[:100]!r} cannot be set from outside"
    unchecked = [value] if isinstance(value, str) else type(value).__name__
    kind = unchecked if kinds is None else kinds.get(name)
    if kind is None:
        return f"no option that can be set has this name here; every host takes: {', '.join(sorted(LISTED))}"
    return _value_problem(kind, value)


def _value_problem(kind: object, value: object) -> str:
    if kind == "float":
        finite = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        return "" if finite and not isinstance(value, bool) else f"{value!r} is not a finite number"
    if kind in ("bool", "int"):
        return Option("", "bool" if kind == "bool" else "int", "", -_MOST, _MOST).problem(value)
    listed = kind if isinstance(kind, list) else []
    words = (word for word in listed if isinstance(word, str) and len(word) <= _MOST_LETTERS)
    return Option("", "choice", "", choices=tuple(words)).problem(value)


def _value(text: str) -> InductorValue:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        return text
