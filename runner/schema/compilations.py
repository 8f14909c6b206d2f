"""A compilation: options of inductor it is given, choices that are forced on it, and what it produced.

A compilation is one fresh process that compiles with empty caches. What it produced, kernels with their
choices and facts of its graphs, travels as JSON in the `extra_info` of its record of `kernel_count`, under
`COMPILED`; every record of a process names its compilation by number (`metric.extra_info.compilation`, from
0). Standard library only, Python 3.10 syntax, like `records.py`.

A kernel has three keys (the project's measuring rule C2), each of 16 hex digits:

* `slot`: the place in the program: graph, origin operators, shapes, and the number among equal ones. It does
  not change with torch or Triton.
* `choice`: the slot and the configuration that the autotuner took.
* `binary`: the compiled code.

Every host takes the options of a list with bounds (`inductor_options.csv`). An interpreter reports further
ones with their kinds (`measure/compiler/`), and its host takes those too, unless they name a place or a
program.
"""

import dataclasses
import hashlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal

from runner.schema.options import Option
from runner.schema.records import Json
from runner.schema.suite import BadRequest
from runner.schema.tables import rows

COMPILED = "compiled"  # key of extra_info that holds `Compiled.to_json`
COMPILATION = "compilation"  # key of extra_info that holds the number
PINNED_VARIABLE = "RUNNER_PINNED"  # in a process's environment: the file of the choices to force, by slot
MOST_PINNED = 2000  # slots
MOST_LINES = 8  # of a kernel
_SLOT = re.compile(r"[0-9a-f]{16}")
_SETTING = r"[A-Za-z_]\w{0,39}=-?\d{1,9}"
_CHOICE = re.compile(rf"{_SETTING}( {_SETTING}){{0,15}}", re.ASCII)
EXPLAINED = "explained"  # key of extra_info of a failed record that holds `Explanation.to_json`
EXPLAINABLE = ("wrong", "failed", "crashed")  # statuses for which the compiler may be at fault
BISECTED = "compiler bisected: "  # begins `Explanation.text` and so the reason of the failed record

SEARCHES_ON = "coordinate descent"  # among the offered: the autotuner goes on from the best one
ANATOMY = ("registers", "spills", "shared_bytes", "skipped")  # of a kernel: what its binary takes
UNTUNED = frozenset({"library", "copy", "cpp"})  # kinds of kernels without candidates
KernelKind = Literal["pointwise", "reduction", "template", "library", "combo", "copy", "user", "cpp", "other"]


@dataclass(unsafe_hash=True)  # not frozen: pages build hundreds, which would take four times as long
class Kernel:
    """One kernel of a step. Times, bytes and FLOPs are of all its calls in one step."""

    slot: str
    choice: str
    binary: str
    name: str
    kind: KernelKind
    config: str = ""  # "XBLOCK=1 R0_BLOCK=1024 num_warps=4"; '' for a library's
    origins: tuple[str, ...] = ()  # the operators it was made of, as aten.mm
    calls: float = 1.0  # in one step
    time_us: float | None = None  # None on a CPU, where nothing tells it
    bytes: int | None = None  # that the step must move at least
    flops: int | None = None
    candidates: int = 0  # configurations that the autotuner timed; 0 if unknown
    ranked: tuple[tuple[str, float], ...] = ()  # of max-autotune: configuration and µs, fastest first
    default: str = ""  # the one among `ranked` that is taken without max-autotune
    # configurations that the autotuner had to choose from, perhaps `SEARCHES_ON`; () if unknown
    offered: tuple[str, ...] = ()
    registers: int | None = None  # of a thread; None: unknown, as for a library's
    spills: int | None = None  # registers that a thread keeps in memory
    shared_bytes: int | None = None  # of a block
    skipped: tuple[tuple[str, int], ...] = ()  # configurations that spill, and how many registers
    lines: tuple[str, ...] = ()  # of the model, as "transformers/gpt2.py:214 GPT2MLP.forward"; () if unknown


@dataclass(frozen=True)
class Note:
    """A reason that the compiler gives, where it came from in the user's code, and how often."""

    reason: str
    place: str = ""  # file:line
    count: int = 1


@dataclass(frozen=True)
class Compiled:
    """One compilation. `busy_us` is the time of a step in which the GPU works, `gaps_us` the time between its
    kernels, `overlap_us` what kernels share: kernels - overlap = busy, busy + gaps = span."""

    kernels: tuple[Kernel, ...] = ()
    busy_us: float | None = None
    gaps_us: float | None = None
    overlap_us: float | None = None
    graph_breaks: tuple[Note, ...] = ()
    recompiles: tuple[Note, ...] = ()  # the guard that failed
    cudagraph_skips: tuple[Note, ...] = ()
    phases_s: Mapping[str, float] = field(default_factory=dict)  # dynamo's own phases
    caches: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # hits and misses by cache
    forced: int | None = None  # kernels whose choice was given, and not elected
    unpinned: tuple[str, ...] = ()  # of a process with forced choices: slots left to the autotuner
    blind: Mapping[str, str] = field(default_factory=dict)  # kinds of notes that failed, with the reason

    def to_json(self) -> dict[str, Json]:
        """Return the JSON object without empty fields; `msgspec.convert` reads it back."""
        return dataclasses.asdict(self, dict_factory=_without_empty)

    def variant(self) -> str:
        """Return the fingerprint of the choices (the multiset of them), '' where no kernel is known."""
        if not self.kernels:
            return ""
        return digest(*sorted(kernel.choice for kernel in self.kernels))


@dataclass(frozen=True)
class Explanation:
    """The part of the compiler at fault for a failure, as torch's CompilerBisector names it.

    Without `backend` it found none; then `problem` says why.
    """

    backend: str = ""  # the first of dynamo's that fails: eager, aot_eager, …, inductor
    subsystem: str = ""  # such as lowerings or post_grad_passes; '' if the bisector has no smaller part
    number: int | None = None  # which application of the subsystem, from 0
    detail: str = ""  # the pass or node of that application
    problem: str = ""  # why no (smaller) part was found

    def to_json(self) -> dict[str, Json]:
        return dataclasses.asdict(self, dict_factory=_without_empty)

    def text(self) -> str:
        """Return `compiler bisected: inductor, lowerings, number 3 (relu)`."""
        number = "" if self.number is None else f"number {self.number}"
        suspect = f"{number} ({self.detail})" if self.detail and self.detail != self.subsystem else number
        named = ", ".join(filter(None, (self.backend, self.subsystem, suspect, self.problem)))
        return BISECTED + named.replace(";", ",")


def blind_text(blind: Mapping[str, str]) -> str:
    """Return `blind: choices — AttributeError: …`, '' if no note is."""
    reasons = "; ".join(f"{name} — {reason}" for name, reason in blind.items())
    return f"blind: {reasons}" if reasons else ""


def explained_in(reason: str) -> str:
    """Return the explanation that a reason begins with, without its first words; '' if none."""
    return reason.removeprefix(BISECTED).split(";")[0] if reason.startswith(BISECTED) else ""


def digest(*parts: str) -> str:
    """Return the 16 hex digits of a key made of these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def pinned(kernels: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the configurations that can be forced, by slot, from pairs of slot and configuration.

    A library's kernel and a template's have none; of several kernels of one slot the first counts.
    """
    pins: dict[str, str] = {}
    for slot, config in kernels:
        if _SLOT.fullmatch(slot) and _CHOICE.fullmatch(config) and len(pins) < MOST_PINNED:
            pins.setdefault(slot, config)
    return pins


def choices_of(records: Iterable[Mapping[str, Json]]) -> dict[str, str] | None:
    """Return the configurations that can be forced, by slot, of the kernels that these v3 records name; None
    if they name no kernel."""
    kernels = list(kernels_in(records))
    if not kernels:
        return None
    return pinned((str(kernel.get("slot", "")), str(kernel.get("config", ""))) for kernel in kernels)


def kernels_in(records: Iterable[Mapping[str, Json]]) -> Iterator[Mapping[str, Json]]:
    """Yield the kernels that these v3 records name."""
    for record in records:
        info = (record.get("metric") or {}).get("extra_info") or {}
        yield from (info.get(COMPILED) or {}).get("kernels", [])


@dataclass(frozen=True)
class TimedChoice:
    """A kernel of one process: its choice, its device time in µs, and the choices that the autotuner had:
    None if they are unknown, empty where nothing is tuned, as for a library's kernel."""

    choice: str
    time_us: float
    offered: frozenset[str] | None = None

    @classmethod
    def of(cls, choice: str, time_us: float, offered: Collection[str], kind: str) -> "TimedChoice":
        return cls(choice, time_us, frozenset(offered) if offered or kind in UNTUNED else None)


Kernels = Mapping[str, TimedChoice]  # of one process, by slot
OTHER_CANDIDATES = "the candidates of the autotuner differ or are unknown"
ONE_SIDED = "some kernels are on one side only"
UNSEEN_CHOICE = "the candidate has choices that the baseline did not draw"


def timed_kernels(records: Iterable[Mapping[str, Json]]) -> Kernels:
    """Return the timed kernels that these v3 records of a process name, by slot."""
    return {
        str(one["slot"]): TimedChoice.of(
            one.get("config") or one["choice"], one["time_us"], one.get("offered", ()), one["kind"]
        )
        for one in kernels_in(records)
        if one.get("time_us") is not None
    }


def compare_candidates(
    base: Sequence[Kernels], head: Sequence[Kernels]
) -> tuple[bool | None, dict[str, list[frozenset[str]]]]:
    """Return whether the autotuner had the same candidates in each slot that both sides have, None where some
    are unknown; and those of both sides by slot where they differ."""
    shared = sorted(set().union(*base) & set().union(*head))
    known = {}
    for slot in shared:
        offers = [[kernels[slot].offered for kernels in side if slot in kernels] for side in (base, head)]
        if all(None not in side for side in offers):
            known[slot] = [frozenset[str]().union(*filter(None, side)) for side in offers]
    differing = {slot: sides for slot, sides in known.items() if sides[0] != sides[1]}
    return (False if differing else True if shared and len(known) == len(shared) else None), differing


def candidate_pins(base: Kernels, new: Kernels) -> list[dict[str, str]]:
    """Return choices to force so that each candidate of each slot is timed that the sides offer unlike ones
    of: all these slots take their next candidate at once, so there are as many as the longest list has."""
    differing = {
        slot: list(filter(_CHOICE.fullmatch, sorted(frozenset[str]().union(*sides))))
        for slot, sides in compare_candidates([base], [new])[1].items()
    }
    most = max(map(len, differing.values()), default=0)
    turns = {slot: list(islice(cycle(texts), most)) for slot, texts in differing.items() if texts}
    return [{slot: texts[index] for slot, texts in turns.items()} for index in range(most)]


def draw_obstacle(
    base: Sequence[Kernels],
    head: Sequence[Kernels],
    device: str,
    suspects: Sequence[Kernels] = (),
    drawn: Sequence[Kernels] = (),
) -> str:
    """Return why the draw of the autotuner may hide a change though the code has none, or ''.

    `base` and `head` are the kernels of both sides' free processes; a CPU's are neither timed nor tuned.
    `suspects` (without them `head`) may only have choices that the baseline took there or in `drawn`.
    """
    if not base or not head:
        return "" if device == "cpu" else OTHER_CANDIDATES
    if not compare_candidates(base, head)[0]:
        return OTHER_CANDIDATES
    if set().union(*base) != set().union(*head):
        return ONE_SIDED
    known, chosen = (
        {(slot, kernel.choice) for kernels in side for slot, kernel in kernels.items()}
        for side in ((*base, *drawn), suspects or head)
    )
    return "" if chosen <= known else UNSEEN_CHOICE


def shown_word(word: str, obstacle: str) -> str:
    """Return the word for an answer on the code: it dismisses only a change that the draw cannot hide."""
    return "same code" if word == "dismissed" and obstacle else word


def pinned_from_json(value: Json) -> dict[str, str]:
    """Return the choices of a pinned run: names and integers only. Raise BadRequest for anything else."""
    if not isinstance(value, dict) or len(value) > MOST_PINNED:
        raise BadRequest(f"pinned choices are at most {MOST_PINNED} configurations by slot")
    if len(pinned((slot, config) for slot, config in value.items() if isinstance(config, str))) < len(value):
        raise BadRequest("a pinned choice is a slot with a configuration as XBLOCK=4 num_warps=8")
    return dict(value)


def _without_empty(fields: list[tuple[str, Json]]) -> dict[str, Json]:
    return {name: value for name, value in fields if value not in ("", None, (), [], {})}


INDUCTOR_VARIABLE = "RUNNER_INDUCTOR_OPTIONS"  # of the process that measures: a JSON object

InductorValue = bool | int | float | str
InductorOptions = dict[str, InductorValue]
InductorKinds = Mapping[str, object]  # by option: "bool", "int", "float", or a list of words

_SWITCH_WORDS = {"true": True, "on": True, "false": False, "off": False}
_MOST_INTEGER = 2**31
_MOST_WORD_LETTERS = 100
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_OPTION_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", re.ASCII)
# What writes files, reaches another machine, runs a program, or is there for inductor's own tests.
_NOT_FROM_OUTSIDE = re.compile(
    r"^trace\.|^test_configs\.|(_dirs?|_paths?|_root|_home)$|remote|upload|compiler|cxx|wrapper|command"
    r"|_cmd|hook|dump|save_|testing|type_checking",
    re.IGNORECASE,
)


INDUCTOR_OPTIONS = {  # that every host takes
    row["name"]: Option.of_row({**row, "help": "option of inductor"})
    for row in rows(__file__, "inductor_options.csv")
}


def may_be_set(name: str) -> bool:
    """Return whether an option may be offered at all, whatever an interpreter reports."""
    return bool(_OPTION_NAME.fullmatch(name)) and not _NOT_FROM_OUTSIDE.search(name)


def inductor_problems(options: Mapping[str, object], kinds: InductorKinds | None) -> dict[str, str]:
    """Return why options cannot be set, by name. `kinds` is what the interpreter reports, None where it
    checks them itself later."""
    problems = {name: _problem(name, value, kinds) for name, value in options.items()}
    return {name: problem for name, problem in problems.items() if problem}


def checked_inductor_options(options: Mapping[str, object], kinds: InductorKinds | None) -> InductorOptions:
    """Return the options as inductor takes them. Raise BadRequest for one that cannot be set."""
    for name, problem in inductor_problems(options, kinds).items():
        raise BadRequest(f"inductor's option {name}: {problem}")
    return {
        name: float(value) if kinds and kinds.get(name) == "float" else value
        for name, value in sorted(options.items())
        if isinstance(value, InductorValue)
    }


def parsed_inductor_options(settings: Sequence[str]) -> InductorOptions:
    """Return the options of texts ``NAME=VALUE``, as a person types them. Raise BadRequest."""
    options: dict[str, object] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name in options:
            raise BadRequest(f"{setting!r} is not NAME=VALUE, each name once")
        options[name] = _value(text)
    return checked_inductor_options(options, None)


def inductor_texts(options: Mapping[str, InductorValue]) -> list[str]:
    """Return the options as a person types them: ``["epilogue_fusion=off"]``."""
    words = {True: "on", False: "off"}
    return [
        f"{name}={words[value] if isinstance(value, bool) else value}"
        for name, value in sorted(options.items())
    ]


def inductor_words(options: Mapping[str, InductorValue]) -> str:
    """Return the options as people read them: ``epilogue_fusion=off, max_fusion_size=8``."""
    return ", ".join(inductor_texts(options))


def _problem(name: str, value: object, kinds: InductorKinds | None) -> str:
    if name in INDUCTOR_OPTIONS:
        return INDUCTOR_OPTIONS[name].problem(value)
    if not may_be_set(name):
        return f"{name[:100]!r} cannot be set from outside"
    unchecked = [value] if isinstance(value, str) else type(value).__name__
    kind = unchecked if kinds is None else kinds.get(name)
    if kind is None:
        offered = ", ".join(sorted(INDUCTOR_OPTIONS))
        return f"no option that can be set has this name here; every host takes: {offered}"
    return _value_problem(kind, value)


def _value_problem(kind: object, value: object) -> str:
    if kind == "float":
        finite = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        return "" if finite and not isinstance(value, bool) else f"{value!r} is not a finite number"
    if kind in ("bool", "int"):
        known: Literal["bool", "int"] = "bool" if kind == "bool" else "int"
        return Option("", known, "", -_MOST_INTEGER, _MOST_INTEGER).problem(value)
    listed = kind if isinstance(kind, list) else []
    words = (word for word in listed if isinstance(word, str) and len(word) <= _MOST_WORD_LETTERS)
    return Option("", "choice", "", choices=tuple(words)).problem(value)


def _value(text: str) -> InductorValue:
    if text.lower() in _SWITCH_WORDS:
        return _SWITCH_WORDS[text.lower()]
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        return text
