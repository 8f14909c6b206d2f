"""Choices of inductor's autotuners: those they made, and the times they took on the way.

`watch` must be called before the compilation: torch keeps a choice, but not what it was chosen from.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib.util import find_spec
from math import isinf
from pathlib import PurePath
from typing import Any

from runner.measure.compiler.counters import note
from runner.measure.kernels import lines, lookup
from runner.measure.kernels.slots import Call, Operand
from runner.schema.compilations import SEARCHES_ON

_TIMED = "_timed_us"  # of a CachingAutotuner: microseconds by configuration
_OFFERED = "_offered_configs"  # of a CachingAutotuner: texts
_SKIPPED = "_skipped_spills"  # of a CachingAutotuner: registers by configuration
_DEFAULTS = {"num_ctas": 1, "maxnreg": None}  # which say nothing
_CONSTANT = re.compile(r"^ *(?P<name>[A-Z]\w*) ?: tl\.constexpr = (?P<value>[^\n]+)$", re.MULTILINE)
_LAUNCH = re.compile(r"^ *(?P<name>num_\w+)=(?P<value>\d+),", re.MULTILINE)
_PAIR = re.compile(r"(?P<name>\w+)=(?P<value>'[^']*'|[^,]*)")
_CUBIN = re.compile(r"[^\"/]+\.(?:cubin|hsaco)")
_MOST_RANKED = 40
_MOST_OFFERED = 64


@dataclass(frozen=True)
class Chosen:
    """The configuration of a generated kernel, the hash that Triton gave its binary, the number of
    configurations that were timed, those that could be chosen, and what the kernel takes of a processor;
    empty where unknown. Of `skipped` ones inductor timed nothing, since they spill."""

    config: str = ""
    binary: str = ""
    candidates: int = 0
    offered: tuple[str, ...] = ()
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    skipped: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Ranking:
    """What max-autotune timed for one operator, fastest first: a library's name or a template's
    configuration, and microseconds."""

    operator: str
    operands: tuple[Operand, ...]
    ranked: tuple[tuple[str, float], ...]
    default: str  # what is taken without max-autotune
    entries: Mapping[str, lookup.Entry] = field(default_factory=dict, compare=False)  # of torch's table

    def is_of(self, call: Call) -> bool:
        origin = f"aten.{self.operator}"
        needed = Counter(operand.elements for operand in self.operands)
        return origin in call.origins and needed <= Counter(operand.elements for operand in call.operands)


rankings: list[Ranking] = []  # what max-autotune timed in this process since `watch`
_by_file: dict[str, Chosen] = {}  # of a wrapper in C++, which loads a binary's file


@cache
def watch() -> None:
    """Note from now on what this process's autotuners time, and lines; without Triton nothing is tuned."""
    with note("lines"):
        lines.ask()
    if not find_spec("triton"):
        return
    with note("choices"):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415
        from torch._inductor.select_algorithm import add_feedback_saver  # noqa: PLC0415

        CachingAutotuner.bench = _noting(CachingAutotuner.bench, _note_time)
        CachingAutotuner.precompile = _noting(CachingAutotuner.precompile, _note_offers, _note_offers)
        add_feedback_saver(_note_ranking)
        CachingAutotuner.save_gpu_kernel = _noting(CachingAutotuner.save_gpu_kernel, _note_files)


def chosen(autotuner: Any, source: str) -> Chosen:
    """Return what was chosen for a generated kernel: from its autotuner, where the wrapper has one, else from
    its source in the wrapper."""
    if autotuner is not None and len(autotuner.launchers) == 1:
        return _of_launcher(autotuner, autotuner.launchers[0], source)
    file = _CUBIN.search(source)
    return _by_file.get(file[0], Chosen()) if file else Chosen()


def config_text(config: Any) -> str:
    """Return a Triton configuration as `XBLOCK=4 R0_BLOCK=2048 num_warps=8 num_stages=1`."""
    rare = {name: getattr(config, name, default) for name, default in _DEFAULTS.items()}
    shown = {name: value for name, value in rare.items() if value != _DEFAULTS[name]}
    return _text({**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages, **shown})


def template_config(source: str) -> str:
    """Return the configuration in a template's source, as `ranking` has it; '' for any other kernel."""
    if "@triton_heuristics.template(" not in source:
        return ""
    constants = {match["name"]: match["value"] for match in _CONSTANT.finditer(source)}
    constants.pop("INDEX_DTYPE", None)
    return _text(dict(sorted(constants.items())) | {m["name"]: m["value"] for m in _LAUNCH.finditer(source)})


def _text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={str(value).strip(chr(39))}" for name, value in values.items())


def _of_launcher(autotuner: Any, launcher: Any, source: str) -> Chosen:
    config = template_config(source) or config_text(launcher.config)
    timed, offered = getattr(autotuner, _TIMED, {}), getattr(autotuner, _OFFERED, ())
    skipped = tuple(sorted(getattr(autotuner, _SKIPPED, {}).items()))[:_MOST_OFFERED]
    registers, spills, shared_bytes = (
        getattr(launcher, name, None) for name in ("n_regs", "n_spills", "shared")
    )
    binary = ""
    with note("choices"):
        binary = str(launcher.cache_hash or "")
    # two lists that are cut alike would look the same
    offered = offered if len(offered) <= _MOST_OFFERED else ()
    return Chosen(config, binary, len(timed), offered, registers, spills, shared_bytes, skipped)


def _noting(method: Any, after: Callable[..., None], before: Callable[[Any], None] | None = None) -> Any:
    """Return an autotuner's method with notes taken before it, and after it of its result and arguments."""

    @wraps(method)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        with note("choices"):
            if before:
                before(self)
        result = method(self, *args, **kwargs)
        with note("choices"):
            after(self, result, *args)
        return result

    return noting


def _note_time(autotuner: Any, time_ms: float, launcher: Any, *_others: Any) -> None:
    vars(autotuner).setdefault(_TIMED, {})[config_text(launcher.config)] = float(time_ms) * 1e3
    if isinf(time_ms) and launcher.n_spills:
        vars(autotuner).setdefault(_SKIPPED, {})[config_text(launcher.config)] = int(launcher.n_spills)


def _note_offers(autotuner: Any, *_others: Any) -> None:
    """Note the configurations that an autotuner holds: those to compile, else those that are. Before they are
    compiled, since those that fail go, and after, since inductor adds some."""
    compiled = getattr(autotuner, "compile_results", None) or autotuner.launchers
    configs = autotuner.configs or [launcher.config for launcher in compiled]
    texts = {*vars(autotuner).get(_OFFERED, ()), *map(config_text, configs)}
    if autotuner.inductor_meta.get("coordinate_descent_tuning"):
        texts.add(SEARCHES_ON)
    vars(autotuner)[_OFFERED] = tuple(sorted(texts))


def _note_files(autotuner: Any, _result: Any, *args: Any) -> None:
    """Note the file of a binary that was saved; the launcher is the last argument in every release."""
    from torch._inductor.codecache import CudaKernelParamCache  # noqa: PLC0415 - only with Triton

    saved = CudaKernelParamCache.get(autotuner.inductor_meta["kernel_name"]) or {}
    tuned = _of_launcher(autotuner, args[-1], getattr(autotuner.fn, "src", ""))
    for value in saved.values():
        if isinstance(value, str) and _CUBIN.fullmatch(PurePath(value).name):
            _by_file[PurePath(value).name] = tuned


def _note_ranking(timings: Mapping[Any, float], name: str, inputs: Any, *_others: Any) -> None:
    with note("choices"):
        operands = tuple(
            Operand(
                str(node.get_dtype()).removeprefix("torch."),
                tuple(
                    1 if step == 0 else int(size)
                    for size, step in zip(node.get_size(), node.get_stride(), strict=True)
                ),
            )
            for node in inputs
        )
        ranked = sorted(
            ((_choice(choice), float(time_ms) * 1e3) for choice, time_ms in timings.items()),
            key=lambda row: row[1],
        )
        libraries = [choice.name for choice in timings if not _description(choice)]
        default = name if name in libraries else next(iter(libraries), "")
        finite = tuple((text, round(us, 4)) for text, us in ranked if us < float("inf"))
        found = {_choice(choice): lookup.entry_of(choice, name) for choice in timings}
        entries = {text: entry for text, entry in found.items() if entry}
        rankings.append(Ranking(name, operands, finite[:_MOST_RANKED], default, entries))


def _description(choice: Any) -> str:
    return str(getattr(choice, "description", "") or "")


def _choice(choice: Any) -> str:
    """Return a template's configuration as `template_config` has it, or a library's name."""
    pairs = {match["name"]: match["value"] for match in _PAIR.finditer(_description(choice))}
    return _text(pairs) if pairs else str(choice.name)
