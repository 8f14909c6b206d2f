"""How a task can fail, and what an exception of torch or its compilers means."""

from __future__ import annotations

from collections.abc import Iterator

# Exceptions of torch and its compilers by class name, so that the mapping needs no torch to import.
_BY_CLASS = {
    "OutOfMemoryError": ("oom", "out_of_memory", ""),
    "MemoryError": ("oom", "out_of_memory", ""),
    "InvalidCxxCompiler": (
        "failed",
        "no_cpp_compiler",
        "inductor found no working C++ compiler: install g++ or name one in CXX. ",
    ),
    "AcceleratorError": ("crashed", "device_error", ""),
}
_BY_TEXT = {
    "CUDA out of memory": ("oom", "out_of_memory", ""),
    "can't allocate memory": ("oom", "out_of_memory", ""),
    "InvalidCxxCompiler": _BY_CLASS["InvalidCxxCompiler"],
    "Failed to find C compiler": ("failed", "no_c_compiler", "triton needs a C compiler: install gcc. "),
    "CUDA error": ("crashed", "device_error", ""),
    "No module named 'torch'": ("failed", "no_torch", "this interpreter has no torch. "),
}
_REASON_CHARACTERS = 900


class TaskFailure(Exception):
    """Ends a task, or one of its shapes, with a status of `runner.records.STATUSES`.

    `code` is a word that programs compare; `reason` is a sentence for people.
    """

    def __init__(self, status: str, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason


def failure_of(error: BaseException) -> TaskFailure:
    """Status, code and reason of whatever a benchmark raised, by the exception or one behind it."""
    if isinstance(error, TaskFailure):
        return error
    first_line = next((line for line in str(error).splitlines() if line.strip()), "")
    said = f"{type(error).__name__}: {first_line}"
    for behind in _chain(error):
        known = _BY_CLASS.get(type(behind).__name__)
        if known is None:
            known = next((row for text, row in _BY_TEXT.items() if text in str(behind)), None)
        if known is not None:
            status, code, advice = known
            return TaskFailure(status, code, (advice + said)[:_REASON_CHARACTERS])
    return TaskFailure("failed", type(error).__name__, said[:_REASON_CHARACTERS])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
