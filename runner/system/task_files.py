"""Read the files of a task's folder, where a benchmark writes too.

A benchmark is arbitrary code: what stands in a file's place may be a link to another file, a device or a pipe
without end, or of any size.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_RESULTS_BYTES = 64 * 2**20  # of results.jsonl; what follows is not read
MAX_JSON_BYTES = 2**20  # of a file with one JSON object


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raise OSError for anything else, such as a link or a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, at_most: int) -> bytes:
    """Return a file's content. Raise OSError for one that is larger or is no regular file."""
    with open_file(path) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"it is larger than {at_most} bytes", str(path))
    return content


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise OSError, or ValueError for anything else in it."""
    try:
        value = json.loads(read_file(path, MAX_JSON_BYTES))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no object")  # noqa: TRY004 - of a file, not of an argument
    return value
