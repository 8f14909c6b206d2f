"""`manage.py ingest` and `runner upload` end alike: 0 all stored, 1 refused or not corrected, 2 usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from hud.accounts.keys import create_key
from hud.ingest import ingest
from hud.models import Measurement, Run
from runner.__main__ import main
from runner.client.connection import Refused
from runner.formats import reasons
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db
HARNESS = "dev,name,batch_size,speedup,abs_latency,compilation_latency\n"
GOOD = HARNESS + "cuda,resnet18,16,1.500000,2.000000,9.000000\n"
FAILED = GOOD + "cuda,dlrm,0,0.000000,0.000000,0\n"


class Local:
    """The HUD of a test, asked over HTTP without a server."""

    url = ""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._key = create_key(name="t", scopes=["upload"], who="t")[1]

    def upload(self, filename: str, body: bytes, given: Mapping[str, str]) -> dict[str, Any]:
        response = self._client.post(
            "/api/v1/results",
            body,
            "application/octet-stream",
            query_params={"filename": filename, **given},
            headers={"authorization": f"Bearer {self._key}"},
        )
        answer: dict[str, Any] = response.json()
        if response.status_code >= 400:
            raise Refused(response.status_code, answer["detail"], answer)
        return answer


@pytest.fixture(params=["ingest", "upload"])
def send(request: pytest.FixtureRequest, client: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sends a file by one of the commands, and returns its exit status."""
    local = Local(client)
    monkeypatch.setattr("runner.__main__.Hud", lambda _address, _key: local)

    def run(path: Path, *options: str) -> int:
        if request.param == "upload":
            return main(["upload", str(path), *options])
        try:
            call_command("ingest", str(path), *options)
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    return run


def test_a_model_s_own_failure_is_a_result(send: Any, tmp_path: Path) -> None:
    path = tmp_path / "speedup_inductor.csv"
    path.write_text(FAILED)
    assert send(path) == 0
    assert send(path) == 0, "all of it is stored already"
    assert Measurement.objects.filter(series__experiment__case="dlrm").exists()


def test_an_entry_that_holds_nothing_is_not_refused(send: Any, tmp_path: Path) -> None:
    empty = v3_record()
    del empty["metric"]
    path = tmp_path / "r.json"
    path.write_bytes(as_lines(v3_record(), empty))
    assert send(path) == 0


def test_a_correction_that_is_not_stored_is_an_error(send: Any, tmp_path: Path) -> None:
    path = tmp_path / "speedup_inductor.csv"
    path.write_text(GOOD)
    assert send(path, "--run-id", "night") == 0
    path.write_text(GOOD.replace("1.500000", "1.700000"))
    assert send(path, "--run_id", "night") == 1
    assert send(path, "--run-id", "night") == 1, "nor is it the second time"


def test_a_correction_of_no_stored_run_is_stored_as_a_first_value(send: Any, tmp_path: Path) -> None:
    path = tmp_path / "speedup_inductor.csv"
    path.write_text(GOOD)
    assert send(path, "--run-id", "night", "--replace", "1") == 0
    assert send(path, "--run-id", "night", "--replace", "1") == 0, "it says what is stored"
    path.write_text(GOOD.replace("1.500000", "1.700000"))
    assert send(path, "--run-id", "night", "--replace", "1") == 0
    assert Measurement.objects.get(series__metric__name="speedup").value == 1.7


def test_a_correction_of_a_run_that_takes_none_is_an_error(send: Any, tmp_path: Path) -> None:
    path = tmp_path / "speedup_inductor.csv"
    path.write_text(GOOD)
    assert send(path, "--run-id", "night") == 0
    Run.objects.update(upload=None)  # as of one of the dashboard's own hosts
    path.write_text(GOOD.replace("1.500000", "1.700000"))
    assert send(path, "--run-id", "night", "--replace", "1") == 1
    assert Measurement.objects.get(series__metric__name="speedup").value == 1.5


def test_what_is_refused_is_an_error(send: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(as_lines(v3_record(), v3_record(case="b", values=["fast"])))
    assert send(path) == 1
    assert send(path, "--partial", "1") == 1
    path.write_text("nonsense")
    assert send(path) == 1
    path.write_bytes(as_lines({"benchmark": {"name": "x"}, "model": {"name": "y"}}))
    assert send(path, "--partial", "1") == 1, "nothing in it was recognised"
    assert send(tmp_path / "missing.json") == 2


def test_a_receipt_counts_the_kinds_of_all_that_was_skipped() -> None:
    """Also beyond those that it lists, and of the same upload again."""
    ingest(as_lines(v3_record(values=[1])), Parameters(run_id="n"))
    many = [v3_record(case=f"c{number}", values=["fast"]) for number in range(1001)]
    body = as_lines(*many, v3_record(values=[2]), v3_record("token_per_sec", [5]))
    for _again in range(2):
        receipt = ingest(body, Parameters(run_id="n", partial="1"))
        assert receipt.skipped_kinds == {"refused": 1001, "conflict": 1}
        assert receipt.skipped_total == 1002
        assert {entry["kind"] for entry in receipt.skipped} == {"refused"}


def test_every_reason_has_a_kind() -> None:
    kinds = {reason: reasons.kind_of(reason) for reason in reasons.REASONS}
    assert kinds[reasons.FILLED_UP] == "failure"
    assert {reason for reason, kind in kinds.items() if kind == "conflict"} == {
        reasons.OTHER_VALUE,
        reasons.STORED_VALUE,
    }
    assert reasons.kind_of("'fast' is not a number") == "refused"
