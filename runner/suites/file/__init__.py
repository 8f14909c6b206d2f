"""A person's own file as a case: known only to processes that are told its path, never to a hud.

The case is called by the file's stem and the hash of its content, so that it is no other case and a
changed file is another one.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from runner.schema.suite import Case, Suite
from runner.suites.torchdynamo import DTYPES, torchdynamo_suite

NAME = "file"
VARIABLE = "RUNNER_FILE"  # its path, in the environment of whoever runs it
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def own_file() -> Path | None:
    """The file that this process was told of."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


def suite_of_file(path: Path) -> Suite:
    """Its only case is this file. Raises OSError where it cannot be read."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    case = f"{_UNSAFE.sub('-', path.stem)[:100]}-{digest}"
    return torchdynamo_suite(
        NAME,
        "A file of one's own",
        (Case(case, f"build() of {path.name}", DTYPES),),
        axes=(("dtype", ("float32",)),),
    )
