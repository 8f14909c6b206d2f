"""`python -m tests.freeze record FOLDER` and `python -m tests.freeze compare FOLDER FOLDER`."""

from __future__ import annotations

import argparse
import difflib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.freeze import commands, old_host, web
from tests.freeze.dashboard import Dashboard
from tests.freeze.masks import Recording

HERE = Path(__file__).resolve().parent.parent.parent
PARTS = ("ingest", "pages", "access", "plans", "measured", "old_host")
_NOT_COMPARED = "kept"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.freeze", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    record_ = modes.add_parser("record", help="what a checkout does, as files below FOLDER")
    record_.add_argument("folder", type=Path)
    record_.add_argument("--checkout", type=Path, default=HERE, help="default: the one of this file")
    record_.add_argument(
        "--inputs", type=Path, help="the checkout whose samples are used; default: --checkout"
    )
    record_.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    record_.add_argument("--old-runner", type=Path, help="the checkout of the host of part old_host")
    record_.add_argument("--old", type=Path, help="a recording whose result files are resumed too")
    compare_ = modes.add_parser(
        "compare", help="the differences of two recordings; exit 1 where there are some"
    )
    compare_.add_argument("folders", type=Path, nargs=2)
    compare_.add_argument("--lines", type=int, default=12, help="of each difference to print")
    options = parser.parse_args()
    if options.mode == "compare":
        return compare(options.folders[0], options.folders[1], options.lines)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that servers and folders go
    scratch = Path(
        tempfile.mkdtemp(prefix="freeze-", dir="/tmp")
    )  # short: sockets have their places below it
    try:
        record(options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def record(options: argparse.Namespace, scratch: Path) -> None:
    chosen, checkout = set(options.only.split(",")), options.checkout.resolve()
    if unknown := chosen - set(PARTS):
        sys.exit(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    web_parts = chosen & {"ingest", "pages", "access"}  # which begin with `ingest`, as all need its rows
    for part in chosen | ({"receipts", "exports"} if web_parts else set()):
        shutil.rmtree(options.folder / part, ignore_errors=True)
    recording = Recording(options.folder.resolve())
    if web_parts:
        _record_web(chosen, checkout, (options.inputs or checkout).resolve(), scratch, recording)
    if "plans" in chosen:
        _timed("plans", commands.plans, checkout, scratch, recording)
    if "measured" in chosen:
        old = Recording(options.old.resolve()) if options.old else recording
        _timed("measured", commands.measured, checkout, scratch, recording, old)
    if "old_host" in chosen and options.old_runner:
        _timed("old_host", old_host.old_host, checkout, options.old_runner.resolve(), scratch, recording)


def _record_web(chosen: set[str], checkout: Path, inputs: Path, scratch: Path, recording: Recording) -> None:
    with Dashboard(checkout, scratch / "data") as dashboard:
        _timed("ingest", web.ingest, dashboard, inputs, recording)
        if "pages" in chosen:
            _timed("pages", web.pages, dashboard, inputs, recording)
        if "access" in chosen:
            _timed("access", web.access, dashboard, recording)
    if "access" in chosen:
        with Dashboard(checkout, scratch / "data", HUD_PUBLIC_READ="0") as dashboard:
            _timed("access, private", partial(web.access, private=True), dashboard, recording)


def compare(first: Path, second: Path, lines: int) -> int:
    """Print what differs, file by file, and return the exit status."""
    names = [_files(folder) for folder in (first, second)]
    different = 0
    for name in sorted(names[0] | names[1]):
        if name not in names[0] or name not in names[1]:
            different += 1
            print(f"only in {first if name in names[0] else second}: {name}")
            continue
        one, other = ((folder / name).read_text().splitlines() for folder in (first, second))
        if one != other:
            different += 1
            found = list(difflib.unified_diff(one, other, name, name, lineterm="", n=1))
            print("\n".join(line[:400] for line in found[:lines]))
            if len(found) > lines:
                print(f"… and {len(found) - lines} more lines")
    print(f"{different} of {len(names[0] | names[1])} things differ")
    return 1 if different else 0


def _files(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(f"{_NOT_COMPARED}/")}


def _timed(name: str, part: Callable[..., None], *arguments: object) -> None:
    started = time.monotonic()
    part(*arguments)
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
