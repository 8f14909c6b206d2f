"""Real files of other projects, which are not part of this repository.

`foreign_files.csv` says where each comes from, and what it holds: how many values, and case, metric and value
of its last entry, all found without the readers; or, without a format, a word of its refusal. FOREIGN_FILES
names a folder that has each file as OWNER+REPOSITORY/PATH, from `git show COMMIT:PATH` of a clone.
"""

from __future__ import annotations

import csv
import hashlib
import os
import random
from pathlib import Path

import pytest

from runner.formats import format_of
from runner.formats.errors import BadUpload
from tests.support.observed import deciding_values, observe

_FOLDER = Path(os.environ.get("FOREIGN_FILES") or "/nowhere")
_TABLE = Path(__file__).with_name("foreign_files.csv")
_FILES = list(csv.DictReader(_TABLE.read_text().splitlines()))
_READ, _REFUSED = (
    [pytest.param(row, id=f"{row['repo']}/{row['path']}") for row in _FILES if bool(row["format"]) is is_read]
    for is_read in (True, False)
)
in_folder = pytest.mark.skipif(not _FOLDER.is_dir(), reason="FOREIGN_FILES names no folder")


def _body(row: dict[str, str]) -> bytes:
    body = (_FOLDER / row["repo"].replace("/", "+") / row["path"]).read_bytes()
    assert hashlib.sha256(body).hexdigest() == row["sha256"]
    return body


def test_the_table_names_sixty_files_of_many_projects() -> None:
    assert len({(row["repo"], row["path"]) for row in _FILES}) == len(_FILES) >= 60
    assert len({row["repo"] for row in _FILES}) >= 15
    assert all(len(row["sha256"]) == 64 and len(row["commit"]) == 40 for row in _FILES)


@in_folder
@pytest.mark.soak
@pytest.mark.parametrize("row", _READ)
def test_a_foreign_file_is_read_right(row: dict[str, str]) -> None:
    body = _body(row)
    assert format_of("", body).name == row["format"]
    parser = observe(body, row["path"])
    assert not parser.faults
    items = [*parser.measurements, *(item for item, _margin in parser.expected)]
    assert not row["values"] or len(items) == int(row["values"])
    if row["value"]:
        last = [one for one in items if row["case"] in {"", one.case} and row["metric"] in {"", one.metric}]
        samples = [sample for item in last for sample in item.samples]
        assert any(sample == pytest.approx(float(row["value"])) for sample in samples)


@in_folder
@pytest.mark.soak
@pytest.mark.parametrize("row", _REFUSED)
def test_a_foreign_file_that_is_no_result_is_refused(row: dict[str, str]) -> None:
    body = _body(row)
    if not row["refused"]:  # its records are
        parser = observe(body, row["path"])
        assert parser.faults or not (parser.measurements or parser.expected)
        return
    with pytest.raises(BadUpload) as refused:
        observe(body, row["path"])
    assert row["refused"] in refused.value.detail
    assert refused.value.faults[0].detail


@in_folder
@pytest.mark.soak
@pytest.mark.parametrize("row", _READ)
def test_a_foreign_file_that_is_cut_anywhere_has_no_other_value_that_decides(row: dict[str, str]) -> None:
    body = _body(row)
    whole = deciding_values(body, row["path"]) or set()
    inside = [place for place in range(1, len(body)) if body[place - 1] != ord("\n")]  # of a line
    for cut in random.Random(row["path"]).sample(inside, k=20):
        assert (deciding_values(body[:cut], row["path"]) or set()) <= whole, cut
