"""Notes of a compile out of the texts that torch writes: graph breaks, recompiles, skipped CUDA graphs.

The texts are the same in a process (`runner/measure/compiler/graph_facts.py`) and in a structured trace
(TORCH_TRACE). A note has the same text in two processes and on two hosts: paths begin at their package, and
addresses, ids of objects and ids of compiles are left out.
"""

import re
from collections.abc import Iterable, Sequence

from runner.schema.compilations import Note

_MOST_NOTES = 50
_MOST_CHARACTERS = 300
_PACKAGES = "torch|torchbenchmark|transformers|timm|runner"  # also where they run from their sources
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_OF_PACKAGE = re.compile(rf"^.*?/(?=(?:{_PACKAGES})/)")
_PATH = re.compile(r"(?<![\w.:/])(?:~|/[\w.+@~-]+)(?:/[\w.+@~-]+)+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_OBJECT_ID = re.compile(r"\b\d{9,}\b")
_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_COMPILE_ID = re.compile(r"^!?\d+/\d+(?:_\d+)?: ")
_GUARD_COMMENT = re.compile(r"(?<!\s)\s{2,}# .*", re.DOTALL)  # the user's line, cut by where torch lies
_EXPLANATION = re.compile(
    r"\n +Explanation: (.+?)(?=\n\s*\n|\n +Hint: |\n +Developer debug context: |\Z)", re.DOTALL
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})')
_TRACE_HEAD = re.compile(r"\AGraph break in user code at .*?\nGraph Break Reason: ", re.DOTALL)
_TRACE_TAIL = re.compile(r"(?<!\n)\n+User code traceback:\n(?P<stack>.*)\Z", re.DOTALL)
_ATTEMPT = re.compile(r"\AEncountered graph break when attempting to trace .*:\n\s*")
_JUMP = "generic_jump "  # older torch's reason, and newer torch's second one, of a branch on data
_SKIP = re.compile(r"\Askipping cudagraphs due to (?:skipping cudagraphs due to )?", re.IGNORECASE)
_FOUND_FROM = re.compile(r"\.? Found from ?:.*", re.DOTALL)

Frame = tuple[str, int]  # file and line


def short_path(path: str) -> str:
    """Return a path from its package on (`torch/nn/modules/linear.py`), or the file's name."""
    match = _INSTALLED.match(path) or _OF_PACKAGE.match(path)
    return path[match.end() :] if match else path.rsplit("/", 1)[-1]


def plain(text: str) -> str:
    """Return one line without what differs between processes and hosts, of up to 300 characters."""
    text = _PATH.sub(lambda match: short_path(match[0]), " ".join(text.split()))
    text = _OBJECT_ID.sub("…", _ADDRESS.sub("0x…", text))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def place(frames: Sequence[Frame]) -> str:
    """Return `file:line` of the innermost frame outside torch, else of the innermost; '' of no frame."""
    short = [(short_path(file), line) for file, line in frames]
    of_user = [frame for frame in short if not frame[0].startswith("torch/")]
    for file, line in reversed(of_user or short):
        return f"{file}:{line}"
    return ""


def frames_in(text: str) -> list[Frame]:
    """Return the frames of a traceback's text, outermost first."""
    return [(match["file"], int(match["line"])) for match in _FRAME.finditer(text)]


def graph_break(reason: str, frames: Sequence[Frame]) -> Note:
    """Return the note of a break: its kind and explanation, without hints."""
    reason = _ATTEMPT.sub("", reason.strip())
    kind = next(iter(reason.splitlines()), "").strip()
    explained = _EXPLANATION.search(reason)
    return Note(plain(f"{kind}: {explained[1]}" if explained else kind), place(frames))


def graph_break_of_trace(text: str) -> Note:
    """Return the note of a trace's artifact `dynamo_graph_break_reason`."""
    tail = _TRACE_TAIL.search(text)
    reason = _TRACE_HEAD.sub("", text[: tail.start()] if tail else text)
    return graph_break(reason, frames_in(tail["stack"]) if tail else [])


def without_twins(breaks: Iterable[Note]) -> list[Note]:
    """Leave out the second note that torch makes of a branch on data, at the place of the first."""
    listed = list(breaks)
    explained = {note.place for note in listed if not note.reason.startswith(_JUMP)}
    return [note for note in listed if not (note.reason.startswith(_JUMP) and note.place in explained)]


def recompile(guard: str, function: Frame | None = None) -> Note:
    """Return the note of a recompile: the guard that failed, and where the recompiled function is."""
    guard = _GUARD_COMMENT.sub("", _COMPILE_ID.sub("", guard.strip().split("\nUser stack trace:")[0]))
    return Note(plain(_LOCAL.sub(r"\1", guard)), place([function]) if function else "")


def recompiles_of_frame(guards: Sequence[str], function: Frame) -> list[Note]:
    """Return a note for each recompile of a function out of all guards that failed, as dynamo lists them.

    The first recompile looks at one compiled entry, the next at two, and so on, and the entry that was used
    last comes first: its guard is the reason.
    """
    notes, start, entries = [], 0, 1
    while start < len(guards):
        notes.append(recompile(guards[start], function))
        start, entries = start + entries, entries + 1
    return notes


def cudagraph_skip(text: str) -> Note:
    """Return the note of a skipped CUDA graph, with the user's line where torch names one."""
    reason = _FOUND_FROM.sub("", _SKIP.sub("", text.strip()))
    return Note(plain(reason), place(frames_in(text)))


def summed(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return equal notes as one with their number, the most frequent first, at most 50."""
    counts: dict[tuple[str, str], int] = {}
    for note in notes:
        key = (note.reason, note.place)
        counts[key] = counts.get(key, 0) + note.count
    ordered = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return tuple(Note(reason, where, count) for (reason, where), count in ordered[:_MOST_NOTES])
