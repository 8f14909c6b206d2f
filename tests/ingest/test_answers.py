"""Answers that a CI can trust: what stored nothing is no success, and what is wrong costs what it must."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import zstandard
from django.core.management import call_command

from hud.ingest import BadUpload, inflate, ingest
from hud.models import Measurement, Upload
from runner.formats.errors import MalformedUpload, UploadTooLarge
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db
KERNELS = {"kernels": {f"{number}_matmul.py": {"ours": 1.5} for number in range(250)}}


@pytest.mark.parametrize("body", [b"{}", b"[]", json.dumps(KERNELS).encode(), as_list({"metric": None})])
def test_what_stores_nothing_is_refused_and_leaves_nothing(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadUpload) as refused:
        ingest(body, Parameters())
    if b"kernels" in body:
        assert "keys seen: kernels" in refused.value.detail
    file = tmp_path / "foreign.json"
    file.write_bytes(body)
    for options in ([], ["--partial", "1"]):
        with pytest.raises(SystemExit) as ended:
            call_command("ingest", str(file), *options)
        assert ended.value.code == 1
    assert Upload.objects.filter(parameters__partial="").count() == 0
    assert ingest(body, Parameters(partial="1")).stored == 0


def test_a_duplicate_is_a_success() -> None:
    ingest(as_list(v3_record()), Parameters())
    assert ingest(as_list(v3_record()), Parameters()).duplicates == 1


@pytest.mark.parametrize("write", [as_list, as_lines])
@pytest.mark.parametrize("word", [float("nan"), float("inf"), float("-inf")])
def test_nan_costs_one_record(write: object, word: float) -> None:
    assert callable(write)
    records = [v3_record(case=name) for name in "abc"]
    records[1]["metric"]["benchmark_values"] = [1.0, word]
    records[0]["metric"]["extra_info"] = {"reason": "NaN, Infinity and \\"}
    body = write(*records)
    with pytest.raises(MalformedUpload) as refused:
        ingest(body, Parameters())
    (fault,) = refused.value.faults
    assert fault.pointer.endswith("/metric/benchmark_values/1")
    assert "NaN and Infinity" in fault.detail
    receipt = ingest(body, Parameters(partial="1"))
    assert (receipt.stored, receipt.skipped_total) == (2, 1)
    assert Measurement.objects.filter(note="NaN, Infinity and \\").count() == 1


def test_compressed_bodies_of_several_parts_are_read() -> None:
    first, second = (bytes(random.Random(seed).choices(b"0123456789,\n", k=70_000)) for seed in (1, 2))
    assert inflate(gzip.compress(first) + gzip.compress(second)) == first + second
    packed = zstandard.compress(first) + zstandard.compress(second)
    assert inflate(packed) == first + second
    for body in (packed[:-1], gzip.compress(second)[:-4], packed + b"x", gzip.compress(second) + b"more"):
        with pytest.raises(MalformedUpload):
            inflate(body)
    for bomb in (zstandard.compress(bytes(10**8)), gzip.compress(bytes(10**8))):
        with pytest.raises(UploadTooLarge):
            inflate(bomb)
    with pytest.raises(UploadTooLarge):
        inflate(zstandard.compress(b"") * 10_001)  # each needs an inflater of its own


def test_utf_16_is_read() -> None:
    text = as_list(v3_record()).decode()
    for body in (text.encode("utf-16"), b"\xfe\xff" + text.encode("utf-16-be")):
        assert ingest(body, Parameters()).duplicates + Measurement.objects.count() >= 1
    assert Measurement.objects.count() == 1
    with pytest.raises(MalformedUpload):
        ingest(b"\xff\xfe\x00", Parameters())


def test_a_number_beyond_the_limit_is_called_so() -> None:
    with pytest.raises(BadUpload) as refused:
        ingest(as_list(v3_record(values=[1e308])), Parameters())
    assert "beyond" in refused.value.faults[0].detail
