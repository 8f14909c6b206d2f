"""Pinned runs: force the configuration of each Triton kernel in place of inductor's autotuning.

The choices are those of an earlier compilation, by slot. A kernel is forced at its first call, when its slot
is known and before inductor would time the candidates. Templates that max-autotune chose are not forced.
"""

import copy
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

from runner.measure.compiler.counters import modules
from runner.measure.kernels.slots import slot_of
from runner.schema.compilations import PINNED_VARIABLE, pinned_from_json
from runner.schema.records import Json
from runner.system.task_files import read_object

_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_MOST_NAMED = 20


# Kernels of this process: those that were forced, those whose slot has no stored choice, those whose choice
# does not compile here, and the slots of the latter two.
_forced: list[str] = []
_unknown: list[str] = []
_failed: list[str] = []
_slots: list[str] = []


def forget() -> None:
    """Count no kernel so far, such as the one that warms the toolchain."""
    for names in (_forced, _unknown, _failed, _slots):
        names.clear()


def install_if_asked() -> None:
    """Force the choices in the file that the environment names, if it names one."""
    if path := os.environ.get(PINNED_VARIABLE):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415 - seldom asked

        choices = pinned_from_json(read_object(Path(path)))
        install(CachingAutotuner, choices, lambda autotuner: slot_of(autotuner, modules()))


def install(autotuner_class: Any, choices: Mapping[str, str], slot: Callable[[Any], str]) -> None:
    """Force `choices`, a configuration for each slot, on the kernels of this class. `slot` reads a slot."""
    run = autotuner_class.run

    @wraps(run)
    def pinned_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = MethodType(run, self)  # later calls have no detour
        own = slot(self)
        if not _force(self, choices.get(own, "")):
            _slots.append(own)
        return run(self, *args, **kwargs)

    autotuner_class.run = pinned_run


def unpinned() -> tuple[str, ...]:
    """Return the slots of the kernels that were left to the autotuner."""
    return tuple(filter(None, dict.fromkeys(_slots)))


def facts() -> dict[str, Json]:
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


def warning() -> str:
    """Return which kernels were left to the autotuner, '' for none."""
    parts = {"have no stored choice": _unknown, "cannot take theirs": _failed}
    return "; ".join(
        f"not pinned: {len(names)} kernels {why} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for why, names in parts.items()
        if names
    )


def _force(autotuner: Any, text: str) -> bool:
    """Leave the autotuner the one launcher of this configuration, compiled here if it is none of its own.
    Return False where it chooses itself."""
    name = str(autotuner.fn.__name__)
    if not text:
        _unknown.append(name)
        return False
    try:
        if not autotuner.launchers:
            autotuner.precompile()
        launcher = next((one for one in autotuner.launchers if _settings(one.config, text) == text), None)
        if launcher is None:
            config = _config(text, autotuner.launchers[0].config)
            if getattr(autotuner.fn, "fn", autotuner) is None:  # compiled by a worker
                autotuner.fn = autotuner._reload_kernel().fn
            with autotuner.lock:
                launcher = autotuner._precompile_config(config).make_launcher()
    except Exception as error:  # noqa: BLE001 - the autotuner's own choice is a measurement too
        _failed.append(f"{name}: {type(error).__name__}: {error}"[:200])
        return False
    # neither coordinate descent nor the tuning of combined kernels goes on from here
    launcher.config.found_by_coordesc = launcher.config.found_by_combo_autotune = True
    autotuner.launchers = [launcher]
    _forced.append(name)
    return True


def _settings(config: Any, text: str) -> str:
    """Return the settings of a configuration that `text` names, written as there."""
    values = {**{name: getattr(config, name, None) for name in _LAUNCH}, **config.kwargs}
    names = [part.partition("=")[0] for part in text.split()]
    return " ".join(f"{name}={values.get(name)}" for name in names)


def _config(text: str, like: Any) -> Any:
    """Return the configuration of a text as `config_text` writes it. Raise ValueError for names that a kernel
    of this kind does not take."""
    values = {name: int(value) for name, _, value in (part.partition("=") for part in text.split())}
    config = copy.deepcopy(like)
    launch = {name: values.pop(name) for name in _LAUNCH if name in values}
    if values.keys() != config.kwargs.keys():
        raise ValueError(f"it takes {', '.join(config.kwargs)}, not {', '.join(values)}")
    config.kwargs.update(values)
    for name, value in launch.items():
        setattr(config, name, value)
    return config
