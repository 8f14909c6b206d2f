"""The failure of a task, and the failure that an exception of torch or its compilers stands for."""

import re

_NO_COMPILER = "inductor found no working C++ compiler: install g++ or name one in CXX. "
# Exceptions of torch and its compilers by class name, so that the mapping needs no torch to import.
_BY_CLASS = {
    "OutOfMemoryError": ("oom", "out_of_memory", ""),
    "MemoryError": ("oom", "out_of_memory", ""),
    "InvalidCxxCompiler": ("failed", "no_cpp_compiler", _NO_COMPILER),
    "AcceleratorError": ("crashed", "device_error", ""),
}
_BY_TEXT = {
    "CUDA out of memory": ("oom", "out_of_memory", ""),
    "can't allocate memory": ("oom", "out_of_memory", ""),
    "InvalidCxxCompiler": _BY_CLASS["InvalidCxxCompiler"],
    "Failed to find C compiler": ("failed", "no_c_compiler", "triton needs a C compiler: install gcc. "),
    "Cannot re-initialize CUDA": ("failed", "cuda_before_fork", "an import has used the GPU too early. "),
    "CUDA error": ("crashed", "device_error", ""),
    "No module named 'torch'": ("failed", "no_torch", "this interpreter has no torch. "),
}
_REASON_CHARACTERS = 900
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


class TaskFailure(Exception):
    """The failure of a task, or of one of its shapes, with a status of `runner.schema.records.STATUSES`.

    `code` is for programs, `reason` is a sentence for people.
    """

    def __init__(self, status: str, code: str, reason: str) -> None:
        self.status = status
        self.code = printable(code)
        self.reason = printable(reason)
        super().__init__(status, self.code, self.reason)  # so that it can be pickled

    def __str__(self) -> str:
        return self.reason


def printable(text: str) -> str:
    """Escape control characters (except line ends and tabs) and lone surrogates, which no database takes."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def failure_of(error: BaseException) -> TaskFailure:
    """Return the failure for an exception, by its class or text or those of an exception behind it."""
    if isinstance(error, TaskFailure):
        return error
    first_line = next((line for line in str(error).splitlines() if line.strip()), "")
    message = f"{type(error).__name__}: {first_line}"
    behind: BaseException | None = error
    while behind is not None:
        of_text = (row for text, row in _BY_TEXT.items() if text in str(behind))
        if known := _BY_CLASS.get(type(behind).__name__) or next(of_text, None):
            status, code, advice = known
            return TaskFailure(status, code, (advice + message)[:_REASON_CHARACTERS])
        behind = behind.__cause__ or behind.__context__
    return TaskFailure("failed", type(error).__name__, message[:_REASON_CHARACTERS])
