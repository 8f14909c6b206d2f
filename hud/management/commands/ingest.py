"""`manage.py ingest PATH…`: files and folders through the same door as `POST /api/v1/results`.

A folder's `manifest.json` gives its files their upload parameters and says where they came from.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from hud.ingest import BadUpload, Receipt, inflate, ingest
from hud.ingest.parameters import Parameters

MANIFEST = "manifest.json"
_SUFFIXES = {".json", ".jsonl", ".csv", ".gz"}
_REFUSED, _USAGE = 1, 2


class Command(BaseCommand):
    help = "Stores result files. Exit status: 0 all stored or there already, 1 something refused, 2 usage."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
        parser.add_argument("--dry-run", action="store_true", help="say what would happen; store nothing")
        parser.add_argument("--json", action="store_true", help="print receipts as JSON")
        for field in fields(Parameters):
            if field.name not in {"filename", "dry_run"}:
                parser.add_argument(
                    f"--{field.name.replace('_', '-')}", dest=f"given_{field.name}", default=""
                )

    def handle(self, *args: Any, paths: list[Path], **options: Any) -> None:
        given = {
            name.removeprefix("given_"): value
            for name, value in options.items()
            if name.startswith("given_") and value
        }
        if options["dry_run"]:
            given["dry_run"] = "1"
        missing = [path for path in paths if not path.exists()]
        if missing:
            self.stderr.write(f"no such file or folder: {missing[0]}")
            sys.exit(_USAGE)
        outcomes = [self._one(path, given) for path in _files(paths)]
        if not outcomes:
            self.stderr.write("no result files there (.json, .jsonl, .csv, .gz)")
            sys.exit(_USAGE)
        if options["json"]:
            self.stdout.write(json.dumps([outcome for outcome, _good in outcomes]))
        else:
            for outcome, _good in outcomes:
                self.stdout.write(_line(outcome))
        if not all(good for _outcome, good in outcomes):
            sys.exit(_REFUSED)

    def _one(self, path: Path, given: dict[str, str]) -> tuple[dict[str, Any], bool]:
        try:
            body = path.read_bytes()
            if path.suffix == ".gz":
                body = inflate(body)
            parameters = Parameters.parse({**_manifest_parameters(path), **given, "filename": path.name})
            receipt: Receipt = ingest(body, parameters)
        except BadUpload as error:
            faults = [fault.to_json() for fault in error.faults]
            return {"file": str(path), "error": error.detail, "errors": faults}, False
        except OSError as error:
            return {"file": str(path), "error": str(error), "errors": []}, False
        return {"file": str(path), **receipt.to_json()}, True


def _files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [
            item
            for item in inside
            if item.is_file() and item.name != MANIFEST and (item == path or item.suffix in _SUFFIXES)
        ]
    return found


def _manifest_parameters(path: Path) -> dict[str, str]:
    """What the folder's manifest says of this file: the folder's parameters, then the file's own."""
    manifest = path.parent / MANIFEST
    if not manifest.exists():
        return {}
    try:
        said = json.loads(manifest.read_text())
    except ValueError as error:
        raise BadUpload(f"{manifest} is not JSON: {error}") from error
    parameters = dict(said.get("parameters", {}))
    for pattern, own in said.get("files", {}).items():
        if fnmatch.fnmatchcase(path.name, pattern):
            parameters.update(own)
    if "provenance" in said:
        parameters["provenance"] = said["provenance"]
    return {name: str(value) for name, value in parameters.items()}


def _line(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        places = "; ".join(
            f"line {fault.get('line', '?')} {fault['pointer']}: {fault['detail']}"
            for fault in outcome["errors"][:5]
        )
        return f"{outcome['file']}: refused: {outcome['error']}{'; ' + places if places else ''}"
    counts = (
        f"{outcome['stored']} stored, {outcome['duplicates']} duplicates, {len(outcome['skipped'])} skipped"
    )
    return f"{outcome['file']}: {counts}"
