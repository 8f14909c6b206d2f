"""The commands that ask a HUD: `gate`, `report`, `query`, `choices` and `mcp`."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .answers import Answer, Questions
from .connection import HudError, Refused, WrongUsage
from .gate import FILTERS, STATUS, gate_refs, side_of
from .hud import Hud, with_query
from .report import report

_USAGE = 2
_OF_LEDGER = ("arch", "torch", "triton", "suite", "backend", "stream")
_CANCELLED = 130  # as a shell says it for Ctrl-C


def add_commands(commands: Any) -> Any:
    """Add the commands to a parser's subparsers; return the actions of `choices`."""
    gating = _command(commands, "gate", _gate, "is the candidate slower? exit 0 no, 1 yes, 3 cannot tell")
    gating.add_argument("--budget", type=float, default=0.0, metavar="MIN", help="minutes for pairs")
    gating.add_argument("--case", action="append", default=[], help="with environments: of the suite")
    about = "with environments: an option of these cases; as JSON, such as D=[1024]"
    gating.add_argument("--opt", action="append", default=[], metavar="NAME=VALUE", help=about)
    gating.add_argument("--format", choices=("md", "json"), default="md")
    reporting = _command(commands, "report", _report, "write a report on two sides over whole suites")
    reporting.add_argument("--format", choices=("html", "md"), default="html")
    for parser in (gating, reporting):
        for side in ("base", "head"):
            about = "a commit, branch, run:ID or night:DAY; of `gate` also environment:NAME"
            parser.add_argument(f"--{side}", required=True, metavar="REF", help=about)
        for name in FILTERS:
            parser.add_argument(f"--{name}", default="", help="only these results")
    asking = commands.add_parser("query", help="ask a hud, as agents do by its MCP server")
    questions = asking.add_subparsers(required=True, metavar="QUESTION")
    for question in Questions.all:
        about = (question.__doc__ or "").split(". ")[0]
        parser = _command(questions, question.__name__, partial(_query, question), about)
        parser.add_argument("--format", choices=("table", "json"), default="table")
        parser.add_argument("--offset", type=int, default=0, help="the first row")
        for name, parameter in list(inspect.signature(question, eval_str=True).parameters.items())[1:]:
            is_required = parameter.default is parameter.empty
            default = None if is_required else parameter.default
            kind, option = parameter.annotation, f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=kind, default=default, required=is_required, metavar="…")
    tables = commands.add_parser("choices", help="the proven choices of the autotuner")
    actions = tables.add_subparsers(required=True, metavar="ACTION")
    exporting = _command(actions, "export", _export, "write them as JSON")
    exporting.add_argument("--arch", required=True, help="such as h200")
    for name in _OF_LEDGER[1:]:
        exporting.add_argument(f"--{name}", default="", metavar="…")
    _command(commands, "mcp", _mcp, "serve agents over stdio, with the role of the key")
    return actions


def _command(
    commands: Any, name: str, run: Callable[[Hud, argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about)
    parser.add_argument("--hud", default=os.environ.get("HUD_URL"), help="address (HUD_URL)")
    parser.add_argument("--key", default=os.environ.get("HUD_KEY"), help="key (HUD_KEY)")
    parser.set_defaults(command=lambda options: _run(run, options))
    return parser


def _run(run: Callable[[Hud, argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Return the exit status of a command: 2 for wrong usage, 3 where the HUD does not answer."""
    try:
        return run(Hud(options.hud, options.key), options)
    except WrongUsage as error:
        print(error, file=sys.stderr)
        return _USAGE
    except HudError as error:
        print(error, file=sys.stderr)
        return _USAGE if isinstance(error, Refused) else STATUS["cannot tell"]
    except KeyboardInterrupt:
        return _CANCELLED


def _gate(hud: Hud, options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # CI ends a job so; its runs are cancelled
    knobs = dict(map(_option, options.opt))
    verdict = gate_refs(
        hud,
        options.base,
        options.head,
        budget_min=options.budget,
        cases=options.case,
        knobs=knobs,
        **_filters(options),
    )
    print(json.dumps(verdict.to_json()) if options.format == "json" else verdict.markdown())
    return verdict.status


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _filters(options: argparse.Namespace) -> dict[str, str]:
    return {name: value for name in FILTERS if (value := getattr(options, name))}


def _report(hud: Hud, options: argparse.Namespace) -> int:
    sides = {"base": side_of(options.base), "head": side_of(options.head), **_filters(options)}
    if options.format == "html":
        print(report(hud, **sides))
    else:
        print(hud.send("GET", with_query("/api/v1/compare", {**sides, "format": "md"})).decode())
    return 0


def _query(question: Callable[..., Answer], hud: Hud, options: argparse.Namespace) -> int:
    names = list(inspect.signature(question).parameters)[1:]
    answer = question(Questions(hud), **{name: getattr(options, name) for name in names})
    is_json = options.format == "json"
    print(json.dumps(answer.to_json(options.offset)) if is_json else answer.to_table(options.offset))
    return 0


def _export(hud: Hud, options: argparse.Namespace) -> int:
    wanted = {name: getattr(options, name) for name in _OF_LEDGER}
    answer = hud.get("choices", **wanted)
    if not answer["items"]:
        sys.stderr.write("no choice is proven of this arch, torch and Triton\n")
        return 1
    print(json.dumps(answer, indent=1))
    return 0


def _mcp(hud: Hud, _options: argparse.Namespace) -> int:
    try:
        from .mcp_server import server  # noqa: PLC0415 - the SDK is an extra
    except ImportError as error:
        raise WrongUsage(f"it needs the package mcp: pip install mcp ({error})") from error
    server(hud).run()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the wheel's own."""
    parser = argparse.ArgumentParser(prog="compiler-hud", description=__doc__)
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(arguments)
    status: int = options.command(options)
    return status
