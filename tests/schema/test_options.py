"""docs/upstream_options.md: what it says to use here is there, and each row says one thing."""

from __future__ import annotations

import argparse
import re

import pytest

from runner.cli import run as run_command
from runner.suites import SUITES
from tests.support.servers import ROOT

SECTIONS = (ROOT / "docs" / "upstream_options.md").read_text().split("\n## ")[1:]
_ROW = re.compile(r"^\| (.+?) \| (?:`([^`]+)` )?\| (?:(.+) )?\|$", re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_what_to_use_instead_of_an_upstream_option_is_there(section: str) -> None:
    about, _, table = section.partition("|---|---|---|\n")
    suite = next(SUITES[name] for name in re.findall(r"`(\w+)`", about) if name in SUITES)
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    there = {name for action in parser._actions for name in action.option_strings}
    there |= {option.name for option in suite.options}
    rows = _ROW.findall(table)
    assert len(rows) == len(table.strip().splitlines())
    assert len({upstream for upstream, _ours, _reason in rows}) == len(rows)
    assert {ours for _upstream, ours, _reason in rows if ours} <= there
    assert all(bool(ours) != bool(reason) for _upstream, ours, reason in rows)
