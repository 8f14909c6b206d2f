"""`python -m runner attach`: make this machine a host of a HUD and work for it until stopped."""

import argparse
import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from runner.host.agent import Agent, Attachment
from runner.host.client import Hud, HudError, KeyRefused, with_retries
from runner.host.spool import write_json
from runner.system.accelerators import NoSuchDevice, accelerators
from runner.system.interpreters import Interpreter, interpreter_of

_PATIENCE_S = 24 * 3600.0  # an agent may be started before its hud
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class CannotAttach(RuntimeError):
    """This machine cannot be attached. The text is one line that says what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the whole command line of `python -m runner attach`."""
    parser.add_argument("--hud", default=os.environ.get("HUD_URL", ""), help="address, http://… (or HUD_URL)")
    parser.add_argument("--token", default="", help="one-time token that an operator made")
    parser.add_argument("--key", default=os.environ.get("HUD_KEY", ""), help="a host's key (or HUD_KEY)")
    parser.add_argument("--name", default="", help="of this host; default: the machine's")
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="folder for its key, what waits for delivery, and readings; ~/.local/share/compiler-hud",
    )
    parser.add_argument("--stay", action="store_true", help="once detached, wait for a signal")
    parser.add_argument("--devices", default="", help="0,1 or cpu; default: all GPUs, or else the CPU")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH[,ENV=VALUE…]",
        help="an interpreter with torch that runs may ask for; default=PATH replaces this one",
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="for choosing hosts"
    )


def main(options: argparse.Namespace) -> int:
    """Register if needed, then work. Return 0 after a signal, 1 if the HUD detached this host, 2 for a wrong
    command line."""
    base = os.environ.get("XDG_DATA_HOME")
    default = (Path(base) if base else Path.home() / ".local" / "share") / "compiler-hud"
    data = (options.data or default).expanduser().resolve()
    try:
        pythons, labels = pythons_of(options.python), labels_of(options.label)  # before a token is spent
        with _locked(data):
            attachment = attachment_of(options, data)
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            devices = accelerators([name for name in options.devices.split(",") if name])
            agent = Agent(attachment, data, devices, pythons=pythons, labels=labels)
            return agent.run(stay=options.stay)
    except (CannotAttach, NoSuchDevice) as error:
        _say(str(error))
        return 2


def _locked(data: Path) -> TextIO:
    """Return the lock file of a data folder, created if missing, which holds the folder while it is open.
    Raise CannotAttach if another agent holds it."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (data / "agent.lock").open("a")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotAttach(f"another agent uses {data}; give this one its own --data") from None
    except OSError as error:
        raise CannotAttach(f"{data} cannot be written: {error.strerror}") from error
    return file


def attachment_of(options: argparse.Namespace, data: Path) -> Attachment:
    """Return the attachment from an earlier registration or a key, else spend the token. Raise CannotAttach.

    A spent token is not sent again, so that the same command line works after a restart.
    """
    path = data / "registration.json"
    known, spent = None, ""
    if path.exists():
        stored = json.loads(path.read_text())
        spent = stored.pop("token_sha256", "")
        known = Attachment(**stored)
    address = (options.hud or (known.hud if known else "")).rstrip("/")
    if not address:
        raise CannotAttach("say --hud http://… of the hud to attach to")
    name = options.name or _UNSAFE.sub("-", platform.node()).strip("-._") or "host"
    if options.key:
        attachment = Attachment(address, name, options.key)
    elif known and known.hud == address and _digest(options.token) in {"", spent}:
        return known
    elif options.token:
        attachment = _register(address, options.token, name)
    else:
        raise CannotAttach(f"say --token, which an operator makes on {address}/hosts/, or --key")
    write_json(path, {**dataclasses.asdict(attachment), "token_sha256": _digest(options.token)})
    return attachment


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest() if token else ""


def _register(address: str, token: str, name: str) -> Attachment:
    try:
        hud = Hud(address)
        _say(f"waiting for {address} to answer, to register {name} there")
        answer = with_retries(lambda: hud.register(token, name), patience_s=_PATIENCE_S)
    except KeyRefused as error:
        raise CannotAttach(f"the token is refused: {error}") from error
    except (HudError, ValueError) as error:
        raise CannotAttach(str(error)) from error
    return Attachment(address, str(answer["name"]), str(answer["key"]))


def _say(text: str) -> None:
    sys.stderr.write(f"attach: {text}\n")
    sys.stderr.flush()


def pythons_of(given: Sequence[str]) -> dict[str, Interpreter]:
    """Return interpreters by name; this one is the default unless another is. Raise CannotAttach."""
    found = {"default": Interpreter(sys.executable)}
    try:
        return found | dict(map(interpreter_of, given))
    except ValueError as error:
        raise CannotAttach(f"--python {error}") from error


def labels_of(given: Sequence[str]) -> dict[str, str]:
    """Return labels by key. Raise CannotAttach."""
    pairs = [text.partition("=") for text in given]
    if not all(key and equals for key, equals, _value in pairs):
        raise CannotAttach("--label is KEY=VALUE")
    return {key: value for key, _equals, value in pairs}
