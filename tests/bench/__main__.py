"""Runs the chosen parts, prints a table and writes `HUD_DATA/bench.json`. Where `HUD_URL` and `HUD_KEY` name
a HUD, the figures go there, into the stream `hud-bench`, and the gate compares them with those of before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import runner.client as compiler_hud
from tests.bench.application import running
from tests.bench.figures import Figure
from tests.bench.parts.imports import imports
from tests.bench.parts.ingest import ingest, kernels
from tests.bench.parts.judge import judge
from tests.bench.parts.judgement import judgement
from tests.bench.parts.night import night
from tests.bench.parts.pages import pages
from tests.bench.parts.peers import peers
from tests.bench.parts.start import start
from tests.support.servers import ROOT

OUTPUT = Path(os.environ.get("HUD_DATA") or ROOT / "var") / "bench.json"
STREAM = "hud-bench"
PARTS: dict[str, Callable[[Any], Iterator[Figure]]] = {
    "start": start,
    "ingest": ingest,
    "kernels": kernels,
    "import": imports,
    "judge": judge,
    "pages": pages,
    "judgement": lambda application: chain(judgement(), night(application)),
    "peers": peers,
}


def main(chosen: str) -> int:
    parts = [name for name in chosen.split(",") if name] or list(PARTS)
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        sys.stderr.write(f"make bench: no part is called {unknown[0]!r}; there are: {', '.join(PARTS)}\n")
        return 2
    figures: list[Figure] = []
    with running() as application:
        for part in parts:
            for found in PARTS[part](application):
                figures.append(replace(found, load=round(os.getloadavg()[0], 2)))
                print(figures[-1].line(), flush=True)
    print("load of the machine, last minute: {:.2f} to {:.2f}".format(*_range_of_load(figures)))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    print(f"written to {OUTPUT}")
    return _gate(figures) if os.environ.get("HUD_URL") else 0


def _gate(figures: list[Figure]) -> int:
    """Upload figures, and print how they compare with those of the run before; return the gate's status."""
    hud = compiler_hud.Hud()
    streams = [stream["name"] for stream in hud.get("streams")["items"]]
    before = hud.get("runs", stream=STREAM, limit=1)["items"] if STREAM in streams else []
    for figure in figures:
        case = figure.what.partition(" (")[0]  # without what counts statements and bytes
        values = list(figure.samples) or figure.value
        compiler_hud.log(case, figure.part, values, unit=figure.unit, direction="down", suite=STREAM)
    names = {"commit": "%H", "commit_date": "%cI"}
    about = {name: _git("log", "-1", f"--format={form}") for name, form in names.items()}
    branch = _git("rev-parse", "--abbrev-ref", "HEAD")
    receipt = compiler_hud.flush(hud, stream=STREAM, branch=branch, **about)
    if not before:
        print("the first of its stream: nothing to compare with")
        return 0
    sides = f"run:{before[0]['id']}", f"run:{receipt['run_ids'][0]}"
    statuses = []
    for part in dict.fromkeys(figure.part for figure in figures):
        verdict = compiler_hud.gate(*sides, hud=hud, stream=STREAM, metric=part)
        print(verdict.markdown())
        statuses.append(verdict.status)
    return max(statuses)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _range_of_load(figures: list[Figure]) -> tuple[float, float]:
    loads = [figure.load or 0.0 for figure in figures]
    return min(loads), max(loads)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
