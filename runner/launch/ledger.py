"""The proven choices of the autotuner that this host was given (`python -m runner choices apply`).

A HUD exports them as JSON, with the hash that Triton gave each binary when it was proven. A kernel takes its
choice only where Triton gives it the same hash again: same source, same Triton. Nothing else of the file is
used, and what does not look like a choice is left out.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from operator import or_
from pathlib import Path
from typing import Any

from runner.launch.failures import printable
from runner.schema.compilations import PINNED_VARIABLE, pinned
from runner.schema.records import Json
from runner.schema.suite import IDENTITY, BadRequest, TaskSpec, suite_of
from runner.system import machine
from runner.system.task_files import open_file, read_file, write_json, write_new

_MOST_BYTES = 64 * 2**20
_BINARY = re.compile(r"[0-9a-f]{16}")  # and a slot
_TEMPLATE = re.compile(r"[A-Za-z_]\w{0,39}=[\w.]{1,40}( [A-Za-z_]\w{0,39}=[\w.]{1,40}){0,40}", re.ASCII)
_NONE = "no proven choices on this host: python -m runner choices apply FILE"


@dataclass(frozen=True)
class Proven:
    """Configurations by slot, and the digest of the binary that each was proven with."""

    configs: dict[str, str]
    binaries: dict[str, str]
    templates: dict[str, str] = field(default_factory=dict)  # configurations of max-autotune's

    @property
    def all(self) -> dict[str, str]:
        return self.configs | self.templates


@dataclass(frozen=True)
class ChoiceFile:
    """An export: what it was measured on, and the proven choices of each experiment, by its identity."""

    arch: str
    torch: str
    triton: str
    experiments: tuple[tuple[dict[str, Any], Proven], ...]
    left_out: int = 0  # entries that are no choice
    exported: Json = field(default=None, repr=False, compare=False)  # what it was read from

    @classmethod
    def from_json(cls, value: Json) -> "ChoiceFile":
        """Read what `choices export` wrote. Raise BadRequest for anything else, or without choices."""
        slots: defaultdict[Any, dict[str, tuple[str, str]]] = defaultdict(dict)
        try:
            arch, torch, triton = (str(value[name]) for name in ("arch", "torch", "triton"))
            for row in value["slots"]:
                slots[row["experiment"]][str(row["slot"])] = str(row["config"]), str(row["binary"])
            experiments = [(_identity(row), _proven(slots[row["experiment"]])) for row in value["items"]]
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise BadRequest(f"it is no export of proven choices ({reason}): choices export") from error
        chosen = tuple((own, proven) for own, proven in experiments if proven.all)
        left_out = sum(map(len, slots.values())) - sum(len(proven.all) for _own, proven in experiments)
        if not chosen:
            raise BadRequest(f"it has no proven choice, and {left_out} entries that are none")
        return cls(arch, torch, triton, chosen, left_out, value)

    def of(self, task: TaskSpec) -> Proven:
        """Return the choices of a task's experiments."""
        suite = suite_of(task.suite)
        expected = suite.expected_in_full(task, os.environ)
        merged = Proven({}, {})
        for own, proven in self.experiments:
            if not suite.problem_of(own, task, expected):
                merged = Proven(*map(or_, astuple(merged), astuple(proven)))
        return merged

    def force(
        self, proven: Proven, path: Path, *, files: Path | None = None, only_looks: bool = False
    ) -> dict[str, str]:
        """Write what a process forces on its kernels; return its variable. Inductor's own files of these
        choices go to `files`, templates then to `made_table`. A process that `only_looks` forces none, and
        says which of its kernels have another source."""
        table = made_table() if files and not only_looks else _table()
        given = {
            "arch": self.arch, "triton": self.triton, "only_looks": only_looks,
            "files": str(files or ""), "choices": dict(proven.configs), "binaries": dict(proven.binaries),
            "templates": dict(proven.templates), "table": str(table),
            "entries": json.loads(read_file(table, _MOST_BYTES)) if table.exists() else {},
        }  # fmt: skip
        return pinned_variables(path, given)


def _identity(row: Mapping[str, Json]) -> dict[str, Any]:
    """Return the experiment of an export's row, whose texts are shown. Raise TypeError for another."""
    own = {name: row[name] for name in IDENTITY}
    texts = [own[name] for name in IDENTITY if name not in ("dynamic", "knobs")]
    if not isinstance(own["knobs"], dict) or not all(isinstance(text, str) for text in texts):
        raise TypeError("an item has texts, and an object of knobs")
    return own | {name: printable(own[name]) for name in IDENTITY if isinstance(own[name], str)}


def _proven(slots: Mapping[str, tuple[str, str]]) -> Proven:
    """Return the choices that can be forced, and those of templates."""
    fitting = {slot: config for slot, (config, binary) in slots.items() if _BINARY.fullmatch(binary)}
    configs = pinned(fitting.items())
    others = {slot: config for slot, config in fitting.items() if slot not in configs}
    templates = {s: text for s, text in others.items() if _BINARY.fullmatch(s) and _TEMPLATE.fullmatch(text)}
    return Proven(configs, {slot: slots[slot][1] for slot in configs}, templates)


def read(path: Path, *, is_given: bool = True) -> ChoiceFile:
    """Return the export in a file, which may be a pipe if somebody gave its path. Raise BadRequest."""
    try:
        with path.open("rb") if is_given else open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise BadRequest(f"{path}: it is larger than {_MOST_BYTES} bytes")
    try:
        return ChoiceFile.from_json(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path}: {error}") from error


def keep(choices: ChoiceFile) -> None:
    """Make an export the choices of this host's runs with `--caches ledger`, with the table that was made."""
    _table().unlink(missing_ok=True)  # of earlier choices
    if made_table().exists():
        made_table().replace(_table())
    write_json(_applied(), choices.exported)


def applied() -> ChoiceFile:
    """Return the choices that this host was given. Raise BadRequest."""
    if not _applied().exists():
        raise BadRequest(_NONE)
    return read(_applied(), is_given=False)


def _applied() -> Path:
    return machine.cache_folder() / "choices.json"


def _table() -> Path:
    return _applied().with_name("lookup_table.json")


def made_table() -> Path:
    """Return the file of torch's lookup table that `choices apply` fills, until its choices are kept."""
    return _table().with_suffix(".new")


def pinned_variables(path: Path, choices: Mapping[str, Json]) -> dict[str, str]:
    """Write the choices that a process is to force; return its variable."""
    write_new(path, json.dumps(dict(choices)))
    return {PINNED_VARIABLE: str(path)}
