"""`python -m runner`: the command line of the runner, which needs no web application."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.cli import check as check_command
from runner.cli import choices as choices_command
from runner.cli import doctor
from runner.cli import env as env_command
from runner.cli import record as record_command
from runner.cli import reproduce as reproduce_command
from runner.cli import run as run_command
from runner.cli.upload import PARAMETERS, check, upload_file
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
    except (BadRequest, WrongUsage, locks.Busy) as error:
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
    running = commands.add_parser("run", help="run suites on this machine")
    run_command.add_arguments(running)
    running.set_defaults(command=run_command.main)
    checkup = commands.add_parser("doctor", help="can this machine run them?")
    checkup.set_defaults(command=doctor.main)
    sending = commands.add_parser("upload", help="post result files to a hud")
    sending.add_argument("files", nargs="+", type=Path, metavar="FILE")
    sending.add_argument("--hud", default=os.environ.get("HUD_URL"), help="address (HUD_URL)")
    sending.add_argument("--key", default=os.environ.get("HUD_KEY"), help="key with scope upload (HUD_KEY)")
    for name in PARAMETERS:
        sending.add_argument(f"--{name.replace('_', '-')}", dest=f"given_{name}", default="", metavar="…")
    sending.set_defaults(command=_upload)
    checking = commands.add_parser("check", help="compare results with what PyTorch's CI expects")
    check_command.add_arguments(checking)
    checking.set_defaults(command=check_command.main)
    building = commands.add_parser("env", help="build an interpreter with packages of its own for this host")
    env_command.add_arguments(building)
    building.set_defaults(command=env_command.main)
    recording = commands.add_parser("record", help="write the operators that a model calls")
    record_command.add_arguments(recording)
    recording.set_defaults(command=record_command.main)
    reproducing = commands.add_parser("reproduce", help="write a task as a file that runs with torch alone")
    run_command.add_arguments(reproducing)
    reproducing.set_defaults(command=reproduce_command.main)
    choices_command.add_commands(add_commands(commands))
    attaching = commands.add_parser("attach", help="make this machine a host of a hud, until stopped")
    attach.add_arguments(attaching)
    attaching.set_defaults(command=attach.main)
    return parser


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
        check(path)  # nothing is sent if one of them is unfit
    values = {name: getattr(options, f"given_{name}") for name in PARAMETERS}
    given = {name: value for name, value in values.items() if value}
    by_ci = {name: value for name, value in said_by_ci(os.environ).items() if name not in given}
    if by_ci:
        print("from the variables of CI: " + ", ".join(f"{name} {value}" for name, value in by_ci.items()))
    accepted = True
    for number, path in enumerate(options.files, start=1):
        answer = upload_file(path, hud, by_ci | given)
        accepted = accepted and answer.accepted
        for line in answer.lines:
            print(f"{path}: {line}")
        if not answer.delivered:
            for other in options.files[number:]:
                print(f"{other}: not tried")
            return 2  # the same command again stores nothing twice
    return 0 if accepted else 1


if __name__ == "__main__":
    sys.exit(main())
