"""Cut what fails down to the operators that fail, by torch's minifier."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from torch._dynamo import config

_OF_THIS_RUN = re.compile(
    r"^(os\.environ\[.*|.*debug_dir_root.*)\n", re.MULTILINE
)  # folders that will be gone
_DUMPS, _COMPARES = 2, 4  # levels of torch: a compile that raises, and also a result that differs
_FILES = (
    "minifier_launcher.py",
    "repro.py",
)  # the whole graph, and what is left of it: both run with torch alone


def minify(
    again: Callable[[], object],
    folder: Path,
    *,
    wrong: bool,
    after: Literal["dynamo", "aot"],
    limit_s: float,
) -> None:
    """Repeat what failed, `wrong` or by raising, and leave in `folder` the graph at fault and what the
    minifier makes of it in time. Call it in a process of its own."""
    ends = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # where torch leaves its results
        levels = {"repro_after": after, "repro_level": _COMPARES if wrong else _DUMPS}
        # it raises what the task has already reported as its result
        with config.patch(debug_dir_root=scratch, **levels), contextlib.suppress(Exception):
            again()
        launchers = list(Path(scratch).rglob(_FILES[0]))
        with contextlib.suppress(subprocess.TimeoutExpired):
            for launcher in launchers[:1]:
                left_s = max(1.0, ends - time.monotonic())
                subprocess.run([sys.executable, launcher], cwd=scratch, timeout=left_s, check=False)
        for path in (path for name in _FILES for path in Path(scratch).rglob(name)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / path.name).write_text(_OF_THIS_RUN.sub("", path.read_text()))
