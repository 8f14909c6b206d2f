"""`python -m runner attach`: make this machine a host of a HUD and work for it until stopped."""

import argparse
import dataclasses
import fcntl
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from runner.client.connection import HudError, KeyRefused, with_retries
from runner.host.agent import Agent, Attachment
from runner.schema.protocol import OVERLAYS_ALLOWED, digest_of
from runner.schema.suite import BadRequest
from runner.system import account, sandbox
from runner.system.accelerators import accelerators
from runner.system.interpreters import DEFAULT, Interpreter, interpreter_of
from runner.system.task_files import write_json

_PATIENCE_S = 24 * 3600.0  # an agent may be started before its hud
logger = logging.getLogger(__name__)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--hud", default=os.environ.get("HUD_URL", ""), help="address, http://… (or HUD_URL)")
    add("--token", default="", help="one-time token that an operator made")
    add("--key", default=os.environ.get("HUD_KEY", ""), help="a host's key (or HUD_KEY)")
    add("--ca", type=Path, help="the authority of its certificate, PEM; default: this machine's")
    add("--move", default="", metavar="URL", help="the new address of the hud where this host is registered")
    add("--name", default="", help="of this host; default: the machine's")
    data = "folder for its key, what waits for delivery, and readings; ~/.local/share/compiler-hud"
    add("--data", type=Path, help=data)
    sandbox_help = "tasks see the machine read-only, no network and no key (bubblewrap)"
    add("--sandbox", action="store_true", help=sandbox_help)
    overlays_help = "runs may bring Python files of torch from a mirror of the hud; needs --sandbox"
    add("--allow-overlays", action="store_true", help=overlays_help)
    add("--stay", action="store_true", help="once detached, wait for a signal")
    add("--devices", default="", help="0,1 or cpu; default: all GPUs, or else the CPU")
    python = "an interpreter with torch that runs may ask for; default=PATH replaces this one"
    add("--python", action="append", default=[], metavar="NAME=PATH[,ENV=VALUE…]", help=python)
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="for choosing hosts")


def main(options: argparse.Namespace) -> int:
    """Register if needed, then work. Return 0 after a signal, 1 if the HUD detached this host. Raise
    BadRequest if this machine cannot be attached."""
    data = data_folder(options.data)
    pythons = pythons_of([*built_pythons(data), *options.python])  # before a token is spent
    labels = labels_of(options.label)
    if options.allow_overlays:
        labels.update(OVERLAYS_ALLOWED)
        if not options.sandbox:
            raise BadRequest("--allow-overlays starts code of others: only with --sandbox")
    os.environ[sandbox.OVERLAYS] = str(int(options.allow_overlays))
    with _locked(data):
        attachment = attachment_of(options, data)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        names = [name for name in options.devices.split(",") if name]
        devices = {device.name: device for device in accelerators(names)}
        paths = {python.path for python in pythons.values()}
        problem = account.prepare(data, paths, len(devices))
        if os.geteuid() == 0 and problem and not options.sandbox:
            logger.warning("benchmarks run as root, and can read this host's key: %s", problem)
        elif os.geteuid() == 0 and options.key and not os.environ.get("HUD_KEY"):
            logger.warning("every user, benchmarks too, can read --key in the list of processes: use HUD_KEY")
        if options.sandbox and (problem := sandbox.prepare(data, paths)):
            raise BadRequest(f"--sandbox: {problem}")
        account.end_leftovers()
        return Agent(attachment, data, devices, pythons, labels).run(stay=options.stay)


def data_folder(asked: Path | None) -> Path:
    """Return the data folder that was asked for, or the user's own."""
    base = os.environ.get("XDG_DATA_HOME")
    default = (Path(base) if base else Path.home() / ".local" / "share") / "compiler-hud"
    return (asked or default).expanduser().resolve()


def built_folder(data: Path) -> Path:
    """Return the folder of the interpreters that `python -m runner env` built."""
    return data / "interpreters"


def built_pythons(data: Path) -> list[str]:
    """Return them as NAME=PATH."""
    return [f"{python.parts[-3]}={python}" for python in sorted(built_folder(data).glob("*/bin/python"))]


def _locked(data: Path) -> TextIO:
    """Return the lock file of a data folder, created if missing, which holds the folder while it is open.
    Raise BadRequest if another agent holds it."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (data / "agent.lock").open("a")
        os.fchmod(file.fileno(), 0o600)  # whoever can read it can lock it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRequest(f"another agent uses {data}; give this one its own --data") from None
    except OSError as error:
        raise BadRequest(f"{data} cannot be written: {error.strerror}") from error
    return file


def attachment_of(options: argparse.Namespace, data: Path) -> Attachment:
    """Return the attachment from an earlier registration or a key, else spend the token. Raise BadRequest.

    A spent token is not sent again, so that the same command line works after a restart.
    """
    path = data / "registration.json"
    known, spent = None, ""
    if path.exists():
        stored = json.loads(path.read_text())
        spent = stored.pop("token_sha256", "")
        known = Attachment(**stored)
    if options.move and not known:
        raise BadRequest(f"{path} has no registration to move; say --hud and --token")
    address = (options.move or options.hud or (known.hud if known else "")).rstrip("/")
    if not address:
        raise BadRequest("say --hud http://… of the hud to attach to")
    ca = str(options.ca.expanduser().absolute()) if options.ca else known.ca if known else ""
    name = options.name or _UNSAFE.sub("-", platform.node()).strip("-._") or "host"
    if options.key:
        attachment = Attachment(address, name, options.key, ca)
    elif known and (options.move or address == known.hud) and _digest(options.token) in {"", spent}:
        attachment = dataclasses.replace(known, hud=address, ca=ca)
    elif options.token:
        attachment = _register(Attachment(address, name, "", ca), options.token)
    else:
        moved = f"; or --move {address}, if {known.hud} is there now" if known else ""
        raise BadRequest(f"say --token, which an operator makes on {address}/hosts/, or --key{moved}")
    attachment.connect()  # what can be no address or authority raises WrongUsage
    digest = _digest(options.token) or spent
    write_json(path, {**dataclasses.asdict(attachment), "token_sha256": digest})
    return attachment


def _digest(token: str) -> str:
    return digest_of(token) if token else ""


def _register(attachment: Attachment, token: str) -> Attachment:
    hud = attachment.connect()
    sys.stderr.write(f"attach: waiting for {hud.url} to answer, to register {attachment.name} there\n")
    sys.stderr.flush()
    try:
        answer = with_retries(lambda: hud.register(token, attachment.name), patience_s=_PATIENCE_S)
    except HudError as error:
        refused = "the token is refused: " if isinstance(error, KeyRefused) else ""
        raise BadRequest(f"{refused}{error}") from error
    return dataclasses.replace(attachment, name=str(answer["name"]), key=str(answer["key"]))


def pythons_of(given: Sequence[str]) -> dict[str, Interpreter]:
    """Return interpreters by name; this one is the default unless another is. Raise BadRequest."""
    return {DEFAULT: Interpreter(sys.executable), **dict(map(interpreter_of, given))}


def labels_of(given: Sequence[str]) -> dict[str, str]:
    """Return labels by key. Raise BadRequest."""
    pairs = [text.partition("=") for text in given]
    if not all(key and equals for key, equals, _value in pairs):
        raise BadRequest("--label is KEY=VALUE")
    return {key: value for key, _equals, value in pairs}
