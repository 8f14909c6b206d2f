"""`python -m runner choices apply` and `verify`: give this host the proven choices of the autotuner, and say
which kernels take them.

Both compile each experiment of the export that this host has. `apply` forces the choices, and has inductor
write the `.best_config` files that it reads instead of tuning, for the torch that is installed here. Proven
templates get into torch's lookup table.
`verify` compiles with these files alone.
"""

import argparse
import getpass
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runner.cli import terminal
from runner.cli.terminal import RunContext
from runner.launch import ledger
from runner.launch.jobs import Job
from runner.launch.ledger import ChoiceFile, Proven
from runner.schema.compilations import UNTUNED, kernels_in
from runner.schema.records import Json
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import CANCELLED, NEW_CACHES, TaskResult, task_of
from runner.system import interpreters, machine
from runner.system.accelerators import Accelerator, accelerators
from runner.system.interpreters import DEFAULT, Interpreter, interpreter_or_own

_HIT = "hit"
_UNPROVEN = "no entry: no choice is proven"
_ELSEWHERE = "no kernel: the program compiles none of this slot"


def add_commands(actions: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    """Add `apply` and `verify` beside `export`."""
    applying = actions.add_parser("apply", help="have inductor take them on this host")
    applying.add_argument("file", type=Path, metavar="FILE", help="an export")
    verifying = actions.add_parser("verify", help="compile with them, and say which kernels take theirs")
    for parser in (applying, verifying):
        parser.add_argument("--device", default="", help="cuda:N; the first GPU")
        parser.add_argument("--python", default="", metavar="NAME=PATH[,ENV=VALUE…]", help="that has torch")
        about = "inductor's folder of caches; by default the one that it uses for this user"
        parser.add_argument("--files", type=Path, default=_inductor_folder(), metavar="FOLDER", help=about)
        parser.set_defaults(command=main, file=None)


def main(options: argparse.Namespace) -> int:
    """Print what became of each kernel; return 0 if every entry is a hit, 1 if not, 130 if cancelled. An
    export replaces the earlier one if this host can use a choice of it. Raise BadRequest or locks.Busy."""
    choices = ledger.read(options.file) if options.file else ledger.applied()
    ledger.made_table().unlink(missing_ok=True)
    chosen = accelerators([options.device] if options.device else [])[0]
    python = interpreter_or_own(options.python)[1]
    compiler = _Compiler(choices, chosen, python, options.files, forces=options.file is not None)
    elsewhere = compiler.elsewhere()
    if choices.left_out:
        print(f"{choices.left_out} entries left out: they are no choice of a kernel")
    counts: Counter[str] = Counter()
    for own, proven in choices.experiments:
        print(" ".join(str(own[name]) for name in ("suite", "case", "knobs", "mode", "dtype", "backend")))
        lines = [(slot, f"miss: {elsewhere}") for slot in proven.all]
        if not elsewhere:
            try:
                result = compiler.run(task_of(own), proven)
            except BadRequest as error:
                lines = [(slot, f"not here: {error}") for slot in proven.all]
            else:
                if result.outcome.status == CANCELLED:
                    return 130
                lines = answers(result.records, proven)
                if result.outcome.status != "ok":
                    print(f"  {result.outcome.status} {result.outcome.reason}; log: {result.folder / 'log'}")
        print("".join(f"  {name}: {answer}\n" for name, answer in lines), end="")
        counts.update(answer.partition(":")[0] for _name, answer in lines)
    print(", ".join(f"{number} {answer}" for answer, number in counts.items()) or "no proven choice")
    if options.file and (counts[_HIT] or ledger.made_table().exists()):
        ledger.keep(choices)
    elif options.file:
        print("not applied: no entry can be used on this host; what was applied before stays")
    return int(not counts[_HIT] or bool(counts.keys() - {_HIT, _UNPROVEN.partition(":")[0]}))


def answers(records: Iterable[Mapping[str, Json]], proven: Proven) -> list[tuple[str, str]]:
    """Return each tuned kernel of a compilation, and each entry that has none, with what became of its
    choice: `hit`, `other choice`, `miss`, `no entry` or `no kernel`, and why."""
    records = list(records)
    kernels = {str(kernel["slot"]): kernel for kernel in kernels_in(records)}
    said = [record["benchmark"]["extra_info"].get("pinned") or {} for record in records]
    facts: Mapping[str, Json] = next(filter(None, said), {})
    reasons = dict(str(text).split(": ", 1) for text in facts.get("failed", ()))
    # a record names the first kernels alone
    unnamed = (
        next(iter(reasons.values()), "") if len(set(reasons.values())) == 1 else "it cannot take its choice"
    )
    lines = []
    for slot, kernel in kernels.items():
        name, config = str(kernel["name"]), proven.all.get(slot)
        if config is None:
            if kernel["kind"] not in UNTUNED:
                lines.append((name, _UNPROVEN))
        elif slot in facts.get("slots", ()):
            lines.append((name, f"miss: {reasons.get(name, unnamed)}"))
        elif kernel.get("config") == config:
            lines.append((name, _HIT))
        else:
            because = f" ({reasons[name]})" if name in reasons else ""
            lines.append((name, f"other choice: {kernel.get('config', '')} in place of {config}{because}"))
    return lines + [(slot, _ELSEWHERE) for slot in proven.all if slot not in kernels]


@dataclass(frozen=True)
class _Compiler:
    """Compiles tasks in fresh processes: with forced choices, or with inductor's files of them alone."""

    choices: ChoiceFile
    chosen: Accelerator
    python: Interpreter
    files: Path
    forces: bool

    def elsewhere(self) -> str:
        """Return why no kernel here can have a choice of the export, or ''."""
        if self.chosen.device == "cpu":
            return "a CPU tunes no kernel"
        triton = interpreters.environment_of(self.chosen.device, self.python).triton
        for name, value in {"arch": self.chosen.arch, "triton": triton or "none"}.items():
            if (own := getattr(self.choices, name)) != value:
                return f"the proven choices are of {name} {own}, this is {value}"
        return ""

    def run(self, task: TaskSpec, proven: Proven) -> TaskResult:
        with tempfile.TemporaryDirectory(prefix="compiler-hud-") as name:
            path = Path(name, "choices.json")
            variables = self.choices.force(proven, path, files=self.files, only_looks=not self.forces)
            if not self.forces:
                variables |= self._caches(task, Path(name, "caches"))
            python = replace(self.python, environment={**self.python.environment, **variables})
            (result,) = terminal.run_jobs(
                [Job(replace(task, compilation=1))],
                self.chosen,
                RunContext({DEFAULT: python}),
                on_event=lambda _task, _event: None,
                on_finished=lambda _result: None,
            )
        outcome = result.outcome
        if outcome.status not in {"ok", CANCELLED} and not any(kernels_in(result.records)):
            raise BadRequest(f"{outcome.status} {outcome.reason}; log: {result.folder / 'log'}")
        return result

    def _caches(self, task: TaskSpec, folder: Path) -> dict[str, str]:
        """Fill caches with inductor's files of choices and nothing else; return their variables."""
        of_task = folder / task.fingerprint()  # for suites that empty their caches, those of models in `t`
        own = (of_task / stage / "torchinductor_cache_dir" for stage in ("", "t"))
        for cache in (folder / "inductor", *own):
            for file in self.files.glob("??/*.best_config"):
                (cache / file.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, cache / file.parent.name / file.name)
        return {NEW_CACHES: str(folder), **machine.compile_caches(folder)}


def _inductor_folder() -> Path:
    """Return the folder in which inductor keeps this user's caches."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{user}")
