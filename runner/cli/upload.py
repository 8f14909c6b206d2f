"""Post result files to a HUD."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from runner.cli import terminal
from runner.client.connection import HudError, Refused
from runner.client.hud import Hud
from runner.formats import reasons
from runner.formats.bodies import CannotSplit, run_id_of, split
from runner.formats.parameters import Parameters
from runner.schema.suite import BadRequest
from runner.schema.variables import env_integer

_MAX_BODY_BYTES = 32 * 2**20  # what a hud takes unless its operator said otherwise


@dataclass(frozen=True)
class Answer:
    """The reply for one file. `accepted`: every result is stored; `delivered`: the HUD has answered."""

    accepted: bool
    lines: list[str]
    delivered: bool = True


PARAMETERS = tuple(field.name for field in fields(Parameters) if field.name != "filename")


def check(path: Path) -> None:
    """Raise BadRequest if a file cannot be read, or is too large and cannot be split."""
    limit = _limit()
    terminal.regular_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(4096)
    if size > limit and start.lstrip()[:1] not in {b"[", b"{"} and path.suffix != ".gz":
        raise BadRequest(f"{path} has {size} bytes; a hud takes {limit} at once")


def upload_file(path: Path, hud: Hud, given: Mapping[str, str]) -> Answer:
    """Post a file; one over the body limit in pieces that join one run."""
    if path.stat().st_size <= _limit() and path.suffix != ".gz":
        return upload(path.name, path.read_bytes(), hud, given)
    given = {"run_id": run_id_of(path), **given}
    answer, lines = Answer(True, []), list[str]()
    try:
        for number, body in enumerate(split(path, _limit()), start=1):
            answer = upload(path.name, body, hud, given)
            lines += [f"piece {number}: {line}" for line in answer.lines]
            if not answer.accepted:
                break
    except (CannotSplit, OSError, EOFError, UnicodeDecodeError) as error:
        return Answer(False, [*lines, f"not sent whole: {error}"])
    return replace(answer, lines=lines)


def upload(filename: str, body: bytes, hud: Hud, given: Mapping[str, str]) -> Answer:
    """Post one body; try again, with growing random pauses, while the HUD cannot be reached."""
    try:
        receipt = hud.upload(filename, body, given)
    except Refused as error:
        errors = error.problem.get("errors", [])
        faults = [f"  {reasons.place_of(entry)}: {entry.get('detail', '')}" for entry in errors]
        return Answer(False, [f"refused, {error}", *faults])
    except HudError as error:
        return Answer(False, [f"not delivered: {error}"], delivered=False)
    links = [f"  {hud.url}{path}" for path in receipt.get("links", {}).values()]
    return Answer(reasons.is_all_stored(receipt), [*reasons.receipt_lines(receipt), *links])


def _limit() -> int:
    return env_integer("HUD_MAX_BODY_BYTES", _MAX_BODY_BYTES)
