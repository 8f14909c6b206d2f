"""The failure of a task, and the failure that an exception of torch or its compilers stands for."""

import re

from runner.schema.tables import rows

# Exceptions of torch and its compilers, by class name, so that the mapping needs no torch to import, or text.
_KNOWN = tuple(rows(__file__, "failures.csv"))
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
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def failure_of(error: BaseException) -> TaskFailure:
    """Return the failure for an exception, by its class or text or those of an exception behind it."""
    if isinstance(error, TaskFailure):
        return error
    first_line = next((line for line in str(error).splitlines() if line.strip()), "")
    message = f"{type(error).__name__}: {first_line}"
    behind: BaseException | None = error
    while behind is not None:
        for row in _KNOWN:
            if row["class"] == type(behind).__name__ or (row["text"] and row["text"] in str(behind)):
                reason = f"{row['advice']} {message}".lstrip()
                return TaskFailure(row["status"], row["code"], reason[:_REASON_CHARACTERS])
        behind = behind.__cause__ or behind.__context__
    return TaskFailure("failed", type(error).__name__, message[:_REASON_CHARACTERS])
