"""`manage.py ingest PATH…`: store files and folders as `POST /api/v1/results` does.

A folder's `manifest.json` gives its files their upload parameters and says where they came from. The source
of kernels is read from the runner's artifacts: JSON files whose name begins with `kernel_code`.
"""

import fnmatch
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from hud.ingest import BadUpload, Receipt, inflate, ingest, is_compressed
from hud.ingest.deliveries import KERNEL_CODE, take_kernel_code_of_file
from hud.problems import Problem
from runner.formats import reasons
from runner.formats.bodies import CannotSplit, run_id_of, split
from runner.formats.parameters import DESCRIPTIONS, SWITCHES, Parameters, with_switch_values

MANIFEST = "manifest.json"
_SUFFIXES = {".json", ".jsonl", ".csv", ".gz", ".zst"}
_REFUSED, _USAGE = 1, 2


class Command(BaseCommand):
    help = "Store result files. Exit status: 0 all stored or there already, 1 something refused, 2 usage."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
        parser.add_argument("--json", action="store_true", help="print receipts as JSON")
        for name, text in DESCRIPTIONS.items():
            if name != "filename":
                spellings = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
                value: dict[str, Any] = {"nargs": "?", "const": "1"} if name in SWITCHES else {}
                parser.add_argument(*spellings, dest=f"given_{name}", default="", help=text, **value)

    def run_from_argv(self, argv: list[str]) -> None:
        super().run_from_argv(with_switch_values(argv))

    def handle(self, *args: Any, paths: list[Path], **options: Any) -> None:
        given = {name: options.get(f"given_{name}") or "" for name in DESCRIPTIONS}
        given = {name: value for name, value in given.items() if value}
        if missing := next((path for path in paths if not path.exists()), None):
            self.stderr.write(f"no such file or folder: {missing}")
            sys.exit(_USAGE)
        outcomes = [self._store(path, given) for path in _files(paths)]
        if not outcomes:
            self.stderr.write("no result files there (.json, .jsonl, .csv, .gz, .zst)")
            sys.exit(_USAGE)
        for line in [json.dumps(outcomes)] if options["json"] else map(_line, outcomes):
            self.stdout.write(line)
        receipts = [outcome for outcome in outcomes if "kernels" not in outcome]
        if not all("error" not in receipt and reasons.is_all_stored(receipt) for receipt in receipts):
            sys.exit(_REFUSED)

    def _store(self, path: Path, given: dict[str, str]) -> dict[str, Any]:
        try:
            if path.name.startswith(KERNEL_CODE) and ".json" in path.suffixes:
                is_dry_run = Parameters.parse(given).is_dry_run
                kernels = 0 if is_dry_run else take_kernel_code_of_file(path.read_bytes())
                return {"file": _shown(path), "kernels": kernels}
            parameters = Parameters.parse(
                {**_manifest_parameters(path), **given, "filename": _shown("/".join(path.parts[-3:]))}
            )
            is_small = {".gz", ".zst"} & {path.suffix}  # tenfold inflated
            limit = settings.HUD_MAX_BODY_BYTES // (10 if is_small else 1)
            if path.stat().st_size > limit:
                receipt = self._in_pieces(path, parameters)
            else:
                body = path.read_bytes()
                if is_compressed(body):
                    body = inflate(body)
                receipt = ingest(body, parameters)
        except BadUpload as error:
            faults = [fault.to_json() for fault in error.faults]
            return {"file": _shown(path), "error": error.detail, "errors": faults}
        except (CannotSplit, OSError, Problem, UnicodeDecodeError) as error:
            return {"file": _shown(path), "error": str(error), "errors": []}
        return {"file": _shown(path), **receipt.to_json()}

    def _in_pieces(self, path: Path, parameters: Parameters) -> Receipt:
        """Store a file that is over the limit of a body in pieces, as one run in one transaction."""
        parameters = replace(parameters, run_id=parameters.run_id or run_id_of(path))
        total, done = path.stat().st_size, 0
        receipt = Receipt()
        with transaction.atomic():
            for body in split(path, settings.HUD_MAX_BODY_BYTES):
                receipt.add(ingest(body, parameters, is_piece=True))
                done += len(body)
                if self.stderr.isatty():
                    self.stderr.write(f"\r{_shown(path.name)}: {min(done / total, 1):.0%}", ending="")
        if not (receipt.stored or receipt.duplicates):
            raise BadUpload("nothing was stored: there is no measurement in it")
        return receipt


def _shown(path: Path | str) -> str:
    """Return a name that can be printed and stored, with question marks for what is not UTF-8."""
    return str(path).encode(errors="replace").decode()


def _files(paths: list[Path]) -> list[Path]:
    return [
        item
        for path in paths
        for item in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if item.is_file() and item.name != MANIFEST and (item == path or item.suffix in _SUFFIXES)
    ]


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Upload parameters of a folder, and of its files by patterns of their names."""

    provenance: str = ""
    parameters: dict[str, str | int | bool] = {}
    files: dict[str, dict[str, str | int | bool]] = {}


def _manifest_parameters(path: Path) -> dict[str, str]:
    """Return the parameters of the folder's manifest for this file; the file's own win."""
    source = path.parent / MANIFEST
    if not source.exists():
        return {}
    try:
        manifest = msgspec.json.decode(source.read_bytes(), type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadUpload(f"{source}: {error}") from error
    parameters = dict(manifest.parameters)
    if manifest.provenance:
        parameters["provenance"] = manifest.provenance
    for pattern, own in manifest.files.items():
        if fnmatch.fnmatchcase(path.name, pattern):
            parameters.update(own)
    return {name: str(value) for name, value in parameters.items()}


def _line(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        faults = [f"{reasons.place_of(fault)}: {fault['detail']}" for fault in outcome["errors"][:5]]
        return f"{outcome['file']}: refused: {'; '.join([outcome['error'], *faults])}"
    if "kernels" in outcome:
        return f"{outcome['file']}: source of {outcome['kernels']} kernels"
    return f"{outcome['file']}: {chr(10).join(reasons.receipt_lines(outcome))}"
