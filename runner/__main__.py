"""`python -m runner`: the command line of the runner, which needs no web application."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runner.cli import check, choices, doctor, env, run, upload, written
from runner.client.commands import add_commands
from runner.client.connection import WrongUsage
from runner.client.hud import Hud, said_by_ci
from runner.formats.parameters import with_switch_values
from runner.host import attach
from runner.schema.options import Option
from runner.schema.suite import BadRequest
from runner.suites import SUITES, suite_of
from runner.system import locks

_UPSTREAM_OPTIONS = "docs/upstream_options.md"
_OPTION = re.compile(r"^--[^=]+")


class _Parser(argparse.ArgumentParser):
    """Take options with underscores too, as outside systems' scripts write them: `--run_id`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        spelt = [_OPTION.sub(lambda name: name[0].replace("_", "-"), text) for text in given]
        if self.get_default("command") is _upload:
            spelt = with_switch_values(spelt)
        return super().parse_known_args(spelt, namespace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 for success, 1 for a failure or refusal, 2 for wrong usage or a HUD that cannot
    be reached, 130 if cancelled."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (BadRequest, WrongUsage, locks.Busy, PermissionError) as error:
        print(f"runner: {error}", file=sys.stderr)
        return 1 if isinstance(error, locks.Busy) else 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m runner", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the suites, the cases of one, or its options")
    listing.add_argument("suites", nargs="*", metavar="SUITE")
    listing.add_argument("--options", action="store_true", help="options with their bounds and defaults")
    listing.set_defaults(command=_list)
    for name, add_arguments, command, about in _COMMANDS:
        added = commands.add_parser(name, help=about)
        add_arguments(added)
        added.set_defaults(command=command)
    choices.add_commands(add_commands(commands))
    return parser


def _add_upload_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--hud", default=os.environ.get("HUD_URL"), help="address (HUD_URL)")
    parser.add_argument("--key", default=os.environ.get("HUD_KEY"), help="key with scope upload (HUD_KEY)")
    for name in upload.PARAMETERS:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=f"given_{name}", default="", metavar="…")


def _list(options: argparse.Namespace) -> int:
    suites = [suite_of(name) for name in options.suites] or list(SUITES.values())
    for suite in suites:
        print(f"{suite.name}: {suite.title}")
        if options.options:
            for option in suite.options:
                default = "" if option.default is None else f", default {option.default}".lower()
                print(f"  {option.name}: {_bounds(option)}{default}; {option.help}")
        elif options.suites:
            print(
                f"  devices {', '.join(suite.devices)}; modes {', '.join(suite.modes)}; "
                f"backends {', '.join(suite.backends)}"
            )
            cases = {case.name: case for case in (*suite.cases, *suite.local_cases())}
            for case in cases.values():
                print(f"  {case.name}  [{', '.join(case.dtypes)}]  {case.title}")
    if options.options:
        print(f"\nset one by --opt NAME=VALUE; options of other projects' scripts: {_UPSTREAM_OPTIONS}")
    return 0


def _bounds(option: Option) -> str:
    if option.kind == "choice":
        return "one of " + ", ".join(option.choices)
    if option.kind == "bool":
        return "true or false"
    if option.kind == "word":
        return "a name"
    if option.kind == "flags":
        return "--xla_NAME=VALUE, several with blanks"
    return f"{option.low} to {option.high}" + (", several joined by +" if option.kind == "ints" else "")


def _upload(options: argparse.Namespace) -> int:
    hud = Hud(options.hud, options.key)
    for path in options.files:
        upload.check(path)  # nothing is sent if one of them is unfit
    values = {name: getattr(options, f"given_{name}") for name in upload.PARAMETERS}
    given = {name: value for name, value in values.items() if value}
    by_ci = {name: value for name, value in said_by_ci(os.environ).items() if name not in given}
    if by_ci:
        print("from the variables of CI: " + ", ".join(f"{name} {value}" for name, value in by_ci.items()))
    accepted = True
    for number, path in enumerate(options.files, start=1):
        answer = upload.upload_file(path, hud, by_ci | given)
        accepted = accepted and answer.accepted
        for line in answer.lines:
            print(f"{path}: {line}")
        if not answer.delivered:
            for other in options.files[number:]:
                print(f"{other}: not tried")
            return 2  # the same command again stores nothing twice
    return 0 if accepted else 1


_Add = Callable[[argparse.ArgumentParser], object]
_COMMANDS: tuple[tuple[str, _Add, Callable[[argparse.Namespace], int], str], ...] = (
    ("run", run.add_arguments, run.main, "run suites on this machine"),
    ("doctor", lambda parser: parser, doctor.main, "can this machine run them?"),
    ("upload", _add_upload_arguments, _upload, "post result files to a hud"),
    ("check", check.add_arguments, check.main, "compare results with what PyTorch's CI expects"),
    ("env", env.add_arguments, env.main, "build an interpreter with packages of its own for this host"),
    ("record", written.add_record_arguments, written.record, "write the operators that a model calls"),
    ("reproduce", run.add_arguments, written.reproduce, "write a task as a file that runs with torch alone"),
    ("attach", attach.add_arguments, attach.main, "make this machine a host of a hud, until stopped"),
)

if __name__ == "__main__":
    sys.exit(main())
