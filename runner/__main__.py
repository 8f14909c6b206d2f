"""`python -m runner`: the runner for people without the web application."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runner import attach, doctor, locks, request, terminal
from runner.catalog import SUITES, BadRequest, Knob, TaskSpec
from runner.launch import Event
from runner.output import FORMATS, Output, table
from runner.upload import PARAMETERS, check, connect, upload_file

_CANCELLED = 130  # as a shell says it for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all well, 1 something failed or was refused, 2 usage, 130 cancelled."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (BadRequest, locks.Busy) as error:
        print(f"runner: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadRequest) else 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runner", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="what can run: suites, cases, knobs")
    listing.set_defaults(command=_list)
    _add_run(commands.add_parser("run", help="run suites on this machine"))
    checkup = commands.add_parser("doctor", help="can this machine run them?")
    checkup.set_defaults(command=_doctor)
    sending = commands.add_parser("upload", help="post result files to a hud")
    sending.add_argument("files", nargs="+", type=Path, metavar="FILE")
    sending.add_argument("--hud", default=os.environ.get("HUD_URL"), help="address (HUD_URL)")
    sending.add_argument("--key", default=os.environ.get("HUD_KEY"), help="key with scope upload (HUD_KEY)")
    for name in PARAMETERS:
        sending.add_argument(f"--{name.replace('_', '-')}", dest=f"given_{name}", default="", metavar="…")
    sending.set_defaults(command=_upload)
    attaching = commands.add_parser("attach", help="make this machine a host of a hud, until stopped")
    attach.add_arguments(attaching)
    attaching.set_defaults(command=attach.main)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("suites", nargs="+", metavar="SUITE", help=", ".join(SUITES))
    add(
        "--case",
        action="append",
        default=[],
        metavar="NAME[KNOB=VALUE,…]",
        help="several integers: 1024+4096",
    )
    add("--filter", default="", metavar="RE", help="only cases whose name it matches")
    add("--device", default="", help="cpu, cuda or cuda:N; the first GPU where there is one")
    add("--backend", nargs="+", default=[])
    add("--mode", nargs="+", default=[])
    add("--dtype", nargs="+", default=[])
    add("--repeat", type=int, metavar="N", help="samples of call time, at least")
    add("--opt", nargs="+", default=[], metavar="KNOB=VALUE", help="a knob for every case")
    add("--dry-run", action="store_true", help="print the tasks as commands and stop")
    add("--output", type=Path, metavar="FILE")
    add("--format", choices=FORMATS, default="ours")
    add("--resume", action="store_true", help="skip tasks that succeeded in --output before")
    parser.set_defaults(command=_run)


def _list(_options: argparse.Namespace) -> int:
    for suite in SUITES.values():
        print(f"{suite.name}: {suite.title}")
        print(
            f"  devices {', '.join(suite.devices)}; modes {', '.join(suite.modes)}; "
            f"backends {', '.join(suite.backends)}"
        )
        for case in suite.cases:
            print(f"  {case.name}  [{', '.join(case.dtypes)}]  {case.title}")
        for knob in suite.knobs:
            print(f"  knob {knob.name}: {_knob_bounds(knob)}; {knob.help}")
    return 0


def _knob_bounds(knob: Knob) -> str:
    if knob.kind == "choice":
        return "one of " + ", ".join(knob.choices)
    if knob.kind == "bool":
        return "true or false"
    return f"{knob.low} to {knob.high}" + (", several joined by +" if knob.kind == "ints" else "")


def _run(options: argparse.Namespace) -> int:
    chosen = terminal.accelerator(options.device)
    tasks = request.tasks(
        request.Request(
            suites=options.suites,
            device=chosen.device,
            cases=options.case,
            filter=options.filter,
            modes=options.mode,
            dtypes=options.dtype,
            backends=options.backend,
            repeat=options.repeat,
            options=options.opt,
        )
    )
    if options.dry_run:
        for task in tasks:
            print(task.command())
        return 0
    output = _output(options)
    done = output.done() if output and options.resume else set()
    waiting = [task for task in tasks if task.fingerprint() not in done]
    print(
        f"{len(waiting)} tasks on {chosen.device_name}; {len(tasks) - len(waiting)} done before",
        file=sys.stderr,
    )
    finished = terminal.run_tasks(
        waiting, chosen, on_event=_say, on_finished=output.add if output else lambda _finished: None
    )
    if finished:
        print(table(finished))
    for item in finished:
        if item.outcome.status != "ok":
            print(
                f"{item.task.case}: {item.outcome.status} {item.outcome.reason}\n  log: {item.folder / 'log'}"
            )
    statuses = {item.outcome.status for item in finished}
    if "cancelled" in statuses:
        return _CANCELLED
    return 0 if statuses <= {"ok"} else 1


def _output(options: argparse.Namespace) -> Output | None:
    if options.output is None:
        if options.resume or options.format != "ours":
            raise BadRequest("--resume and --format need --output FILE")
        return None
    return Output(options.output, options.format, suites=options.suites, resume=options.resume)


def _say(task: TaskSpec, event: Event) -> None:
    progress = f"{event['done']}/{event['total']}" if event.get("total") else ""
    words = [task.suite, task.case, task.dtype, progress, str(event.get("phase")), str(event.get("label"))]
    print(" ".join(word for word in words if word), file=sys.stderr)


def _doctor(_options: argparse.Namespace) -> int:
    findings = doctor.examine()
    for finding in findings:
        print(f"{'ok ' if finding.well else 'BAD'}  {finding.what:<18} {finding.text}")
    return 0 if all(finding.well for finding in findings) else 1


def _upload(options: argparse.Namespace) -> int:
    hud = connect(options.hud, options.key)
    for path in options.files:
        check(path)  # nothing is sent where one is unfit
    values = {name: getattr(options, f"given_{name}") for name in PARAMETERS}
    given = {name: value for name, value in values.items() if value}
    accepted = True
    for path in options.files:
        answer = upload_file(path, hud, given)
        accepted = accepted and answer.accepted
        for line in answer.lines:
            print(f"{path}: {line}")
    return 0 if accepted else 1


if __name__ == "__main__":
    sys.exit(main())
