"""The times and names that an upload may have, and the runs that its records make."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from hud.ingest import BadUpload, ingest
from hud.ingest.export import inert
from hud.models import Measurement, Run
from hud.pages.data import to_csv
from runner.formats.parameters import Parameters
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


def test_times_of_records_make_no_runs_but_place_theirs() -> None:
    records = [v3_record(case=f"case-{number}", timestamp=1.7e9 + 60 * number) for number in range(20)]
    (run,) = ingest(as_list(v3_record(), *reversed(records)), Parameters()).run_ids
    found = Run.objects.get(pk=run)
    assert (found.order_time.timestamp(), found.order_time_source) == (1.7e9, "run")
    measured = Measurement.objects.order_by("order_time").values_list("order_time", "repeat")
    assert [(time.timestamp() - 1.7e9, repeat) for time, repeat in measured] == [
        (0, 0),  # the record without a time
        *((60 * number, 0) for number in range(20)),
    ]


def test_several_commits_or_hosts_make_a_run_each() -> None:
    records = [v3_record(head_sha=sha, timestamp=1.7e9 + place) for place, sha in enumerate(("a", "b", "a"))]
    records += [v3_record(runners=[{"name": name}]) for name in ("h1", "h2")]
    assert len(ingest(as_list(*records), Parameters()).run_ids) == 4


@pytest.mark.parametrize("moment", [1.0, 1.2e9, -5.0, 4102444800, 4102444800000, 1e300, 7e9])
def test_a_record_of_an_impossible_time_is_refused(moment: float) -> None:
    body = as_list(v3_record(), v3_record(case="gemv", timestamp=moment))
    with pytest.raises(BadUpload) as caught:
        ingest(body, Parameters())
    assert [fault.pointer for fault in caught.value.faults] == ["/1/timestamp"]
    receipt = ingest(body, Parameters(partial="1"))
    assert (receipt.stored, [item["pointer"] for item in receipt.skipped]) == (1, ["/1/timestamp"])


@pytest.mark.parametrize("name", ["commit_date", "run_time"])
@pytest.mark.parametrize("hours", [25, 24 * 365, -24 * 365 * 20])
def test_a_parameter_with_an_impossible_time_is_refused(name: str, hours: int) -> None:
    def parse(moment: datetime) -> Parameters:
        return Parameters.parse({name: moment.isoformat()})

    assert parse(timezone.now() + timedelta(hours=23))
    with pytest.raises(BadUpload) as caught:
        parse(timezone.now() + timedelta(hours=hours))
    assert [fault.pointer for fault in caught.value.faults] == [f"?{name}"]


@pytest.mark.parametrize("character", "\u200b\u200d\u202e\u2066\ufeff")
def test_a_name_with_an_invisible_character_is_refused(character: str) -> None:
    bad = f"layer{character}_norm"
    good = v3_record()
    benchmark = {**good["benchmark"], "extra_info": {**good["benchmark"]["extra_info"], "knobs": {"x": bad}}}
    for over in (
        {"case": bad},
        {"metric": bad},
        {"benchmark": {**good["benchmark"], "mode": bad}},
        {"benchmark": {**benchmark, "name": "Compiler HUD micro"}},
        {"head_branch": bad},
        {"repo": bad},
        {"runners": [{"name": bad}]},
        {"runners": [{"name": "h", "gpu_info": bad}]},
    ):
        with pytest.raises(BadUpload):
            ingest(as_list(v3_record(**over)), Parameters())
    for name in ("host", "branch", "source", "suite", "filename"):
        with pytest.raises(BadUpload):
            Parameters.parse({name: bad})
    good["metric"]["extra_info"] = {"warning": f"a{character}b"}
    ingest(as_list(good), Parameters())
    assert Measurement.objects.get().note == "ab"


@pytest.mark.parametrize(
    "text", ["=1+1", " =1+1", "\u00a0@x", "\uff1d1+1", " \uff0b1", "-x", "\u2212x", "\tx", "\rx"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_quoted(text: str) -> None:
    assert inert(text) == f"'{text}"
    assert to_csv([{"a": text}]).splitlines()[1].strip('"').startswith("'")
    assert inert(f"x{text}") == f"x{text}"
