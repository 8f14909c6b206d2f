"""`--format upstream`: each outside system's own files, as that system writes them, one file a system.

A writer is made for the path a person gave and is told of every finished task; after each one the files
on disk are whole. It chooses suffixes and side files by itself, as the system does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from runner.catalog import BadRequest
from runner.terminal import Finished
from runner.upstream.cachebench import CacheFile
from runner.upstream.gpt_fast import GptFastFiles
from runner.upstream.operatorbench import OperatorbenchFiles
from runner.upstream.torchdynamo import DynamoFiles
from runner.upstream.xla import XlaFiles


class Writer(Protocol):
    def add(self, finished: Finished) -> None: ...


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "micro": GptFastFiles,
    "gpt_fast": GptFastFiles,
    "cache": CacheFile,
    "huggingface": DynamoFiles,
    "timm": DynamoFiles,
    "torchbench": DynamoFiles,
    "operators": OperatorbenchFiles,
    "xla": XlaFiles,
}


def writer(path: Path, suites: Sequence[str]) -> Writer:
    """Of the one system that these suites belong to. Raises BadRequest for none or several."""
    found = {WRITERS.get(suite) for suite in suites}
    if len(found) != 1 or None in found:
        offered = ", ".join(sorted(WRITERS))
        raise BadRequest(f"--format upstream is for suites of one outside system; there are: {offered}")
    (make,) = found
    assert make is not None
    return make(path)
