"""Forced choices of inductor's autotuners.

In a pinned run the choices are those of an earlier compilation, by slot, or proven ones. A kernel is forced
at its first call, when its slot is known and before inductor would time the candidates. Templates that
max-autotune chose are not forced: proven ones get into torch's lookup table.
"""

import copy
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from types import MethodType
from typing import Any

from runner.measure.compiler.counters import modules
from runner.measure.kernels import lookup
from runner.measure.kernels.slots import slot_of
from runner.schema.compilations import PINNED_VARIABLE, digest, pinned_from_json
from runner.schema.devices import arch_key
from runner.schema.records import Json
from runner.system.task_files import read_object

_SEARCHES = (
    "inductor read its file and searched on, as it may without"
    " TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_DYNAMIC_SCALE_RBLOCK=0"
)
_LAUNCH_SETTINGS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_MOST_NAMED = 20
# Kernels of this process: those that were forced, those whose slot has no stored choice, those whose choice
# does not compile here, and the slots of the latter two.
_forced: list[str] = []
_unknown: list[str] = []
_failed: list[str] = []
_slots: list[str] = []
_makes: list["Given"] = []  # whose templates this process adds to torch's lookup table


def forget_pinned() -> None:
    """Count no kernel so far, such as the one that warms the toolchain."""
    for names in (_forced, _unknown, _failed, _slots):
        names.clear()


class Miss(Exception):
    """A kernel cannot take the choice that it was given."""


@dataclass(frozen=True)
class Given:
    """Choices for the kernels of this process, as configurations by slot.

    Proven ones are those of an arch and a Triton, and hold where Triton gives the kernel the same hash again,
    whose digest is in `binaries`. What inductor reads instead of tuning is then written to `files`. A process
    that `only_looks` leaves all to inductor.
    """

    choices: Mapping[str, str]
    binaries: Mapping[str, str] = field(default_factory=dict)
    arch: str = ""
    triton: str = ""
    files: str = ""
    only_looks: bool = False
    templates: Mapping[str, str] = field(default_factory=dict)
    table: str = ""  # the file of torch's lookup table, for a process that has `files`
    entries: Mapping[str, Json] = field(default_factory=dict)  # in that file

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> "Given":
        return cls(**{**value, "choices": pinned_from_json(value["choices"])})

    def check_place(self) -> None:
        """Raise Miss where this GPU or this Triton is not the one of the choices."""
        if self.binaries:
            here = {"arch": _arch(), "triton": _triton()}
            for name, value in here.items():
                if (own := getattr(self, name)) != value:
                    raise Miss(f"the proven choices are of {name} {own}, this is {value}")

    def is_here(self) -> bool:
        with suppress(Miss):
            self.check_place()
            return True
        return False

    def check(self, slot: str, launcher: Any) -> None:
        """Raise Miss where the binary is not the one that was proven."""
        proven = self.binaries.get(slot)
        if proven and digest(str(launcher.cache_hash or "")) != proven:
            raise Miss("its source is another than the one that the choice was proven with")


@cache
def _arch() -> str:
    import torch  # noqa: PLC0415 - the device is asked once a kernel runs there

    return arch_key(torch.cuda.get_device_name())


def _triton() -> str:
    import triton  # noqa: PLC0415 - as above

    return str(triton.__version__)


def pin_if_asked() -> None:
    """Force the choices in the file that the environment names, if it names one."""
    if path := os.environ.get(PINNED_VARIABLE):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415 - seldom asked

        value = read_object(Path(path))
        given = Given.from_json(value) if "choices" in value else Given(pinned_from_json(value))
        pin(CachingAutotuner, given, lambda autotuner: slot_of(autotuner, modules()))
        if given.files and not given.only_looks:
            _makes.append(given)
        else:
            lookup.use(given.entries, given.is_here)


def pin(autotuner_class: Any, given: Given, slot: Callable[[Any], str]) -> None:
    """Force the choices that are given on the kernels of this class. `slot` reads a slot."""
    run = autotuner_class.run

    @wraps(run)
    def pinned_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = MethodType(run, self)  # later calls have no detour
        own = slot(self)
        if not _force(self, own, given):
            _slots.append(own)
        return run(self, *args, **kwargs)

    autotuner_class.run = pinned_run


def keep_template(slot: str, name: str, entries: Mapping[str, lookup.Entry]) -> None:
    """Add the proven choice of a template to torch's lookup table, if this process fills it and max-autotune
    timed that choice."""
    for given in _makes:
        if given.is_here() and (entry := entries.get(given.templates.get(slot, ""))):
            lookup.add(Path(given.table), entry)
            _failed.append(f"{name}: torch's lookup table has it from now on")


def forced() -> int | None:
    """Return how many kernels of this process were forced, None where none were to be."""
    return len(_forced) if _forced or _slots else None


def unpinned() -> tuple[str, ...]:
    """Return the slots of the kernels that were left to the autotuner."""
    return tuple(filter(None, dict.fromkeys(_slots)))


def pinned_facts() -> dict[str, Json]:
    """Return how many kernels of this process were forced and which were not, by name and by slot; {} in a
    run without."""
    if not (_forced or _unknown or _failed):
        return {}
    return {
        "pinned": {
            "forced": len(_forced),
            "without_choice": _unknown[:_MOST_NAMED],
            "failed": _failed[:_MOST_NAMED],
            "slots": list(unpinned()),
        }
    }


def pinned_warning() -> str:
    """Return which kernels were left to the autotuner, '' for none."""
    parts = {"have no stored choice": _unknown, "cannot take theirs": _failed}
    return "; ".join(
        f"not pinned: {len(names)} kernels {why} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for why, names in parts.items()
        if names
    )


def _force(autotuner: Any, slot: str, given: Given) -> bool:
    """Leave the autotuner the one launcher of the choice for this slot, compiled here if it is none of its
    own. Return False where it chooses itself."""
    name, text = str(autotuner.fn.__name__), given.choices.get(slot, "")
    if not text:
        _unknown.append(name)
        return False
    try:
        given.check_place()
        launcher = launcher_of(autotuner, text)
        given.check(slot, launcher)
        if given.only_looks:
            _look_at_file(autotuner)
            return True
        if given.files:
            _write_file(autotuner, launcher.config, Path(given.files))
    except Exception as error:  # noqa: BLE001 - the autotuner's own choice is a measurement too
        reason = f"{error}" if isinstance(error, Miss) else f"{type(error).__name__}: {error}"
        _failed.append(f"{name}: {reason}"[:200])
        return False
    take(autotuner, launcher)
    _forced.append(name)
    return True


def take(autotuner: Any, launcher: Any) -> None:
    """Leave an autotuner one launcher, from which neither coordinate descent nor the tuning of combined
    kernels goes on."""
    launcher.config.found_by_coordesc = launcher.config.found_by_combo_autotune = True
    autotuner.launchers, autotuner._cached_launcher = [launcher], None  # the latter is what ran before


def _look_at_file(autotuner: Any) -> None:
    """Raise Miss if inductor says that it found no `.best_config` of this kernel. Note it if inductor may
    search on from the choice that it read: what a compile worker sends, and a copy with half the block, lose
    the mark of a final one (pytorch/pytorch#181292)."""
    state = (getattr(autotuner, "autotune_cache_info", None) or {}).get("autotune_cache_state")
    if state in {"miss", "force_disabled"}:
        raise Miss(f"inductor read no file of its choice ({state})")
    finals = [getattr(one.config, "found_by_coordesc", False) for one in autotuner.launchers]
    if state == "hit" and autotuner.inductor_meta.get("coordinate_descent_tuning") and not all(finals):
        _failed.append(f"{autotuner.fn.__name__}: {_SEARCHES}")


def launcher_of(autotuner: Any, text: str) -> Any:
    """Return the launcher of a configuration, one of the autotuner's or a new one. Raise what inductor raises
    for one that it cannot compile."""
    if not autotuner.launchers:
        autotuner.precompile()
    launcher = next((one for one in autotuner.launchers if _settings(one.config, text) == text), None)
    if launcher is None:
        config = _config(text, autotuner.launchers[0].config)
        if getattr(autotuner.fn, "fn", autotuner) is None:  # compiled by a worker
            autotuner.fn = autotuner._reload_kernel().fn
        with autotuner.lock:
            launcher = autotuner._precompile_config(config).make_launcher()
    return launcher


def _write_file(autotuner: Any, config: Any, folder: Path) -> None:
    """Have inductor write its `.best_config` of a kernel, and copy it, under the path that it has in any
    folder of caches. A kernel with one configuration has none."""
    if save := autotuner.save_cache_hook:
        save(config, 0, found_by_coordesc=True)
        file = Path(save.__self__.local_cache[1])
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.parent.name / file.name)


def _settings(config: Any, text: str) -> str:
    """Return the settings of a configuration that `text` names, written as there."""
    values = {**{name: getattr(config, name, None) for name in _LAUNCH_SETTINGS}, **config.kwargs}
    names = [part.partition("=")[0] for part in text.split()]
    return " ".join(f"{name}={values.get(name)}" for name in names)


def _config(text: str, like: Any) -> Any:
    """Return the configuration of a text as `config_text` writes it. Raise ValueError for names that a kernel
    of this kind does not take."""
    values = {name: int(value) for name, _, value in (part.partition("=") for part in text.split())}
    config = copy.deepcopy(like)
    launch = {name: values.pop(name) for name in _LAUNCH_SETTINGS if name in values}
    if values.keys() != config.kwargs.keys():
        raise ValueError(f"it takes {', '.join(config.kwargs)}, not {', '.join(values)}")
    config.kwargs.update(values)
    for name, value in launch.items():
        setattr(config, name, value)
    return config
