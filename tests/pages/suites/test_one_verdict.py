"""One metric has one verdict for the same two nights on Overview, Compilers, Regressions and Compare."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from hud.judging.regressions.groups import make_causes
from hud.models import VERDICT_CODES, Measurement, Point, Run, SeriesState, Stream
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_verdict,
)

pytestmark = pytest.mark.django_db
CELL = "huggingface/inductor"
LEVEL, NEW_LEVEL = 2.15, 2.32
SUSPECT = {"verdict": "inconclusive", "verdict_reason": "suspect"}
# of each case the base and the head: value, verdict, factor and level; and what all pages say
CASES: dict[str, tuple[tuple[float, str, float, float], tuple[float, str, float, float], str]] = {
    "regressed": ((2.13, "unchanged", 1.0, LEVEL), (2.0, "regressed", 6.5, LEVEL), "regressed"),
    "suspect": ((2.145, "unchanged", 0.3, LEVEL), (2.089, "suspect", 3.5, LEVEL), "inconclusive"),
    "improved": ((2.17, "unchanged", 1.0, LEVEL), (2.30, "improved", 7.0, LEVEL), "improved"),
    "better by now": ((2.17, "unchanged", 1.0, LEVEL), (2.30, "unchanged", 0.5, NEW_LEVEL), "improved"),
    "came back": ((2.0, "regressed", 6.5, LEVEL), (2.15, "unchanged", 0.1, LEVEL), "improved"),
    "quiet": ((2.12, "unchanged", 1.7, LEVEL), (2.18, "unchanged", 1.7, LEVEL), "unchanged"),
    "second opinion": ((2.145, "unchanged", 0.3, LEVEL), (2.089, "suspect", 3.5, LEVEL), "regressed"),
}


def measured(run: Run, case: str, metric: str, end: tuple[float, str, float, float]) -> Measurement:
    value, word, factor, level = end
    experiment = create_experiment(suite="huggingface", case=case, knobs={}, backend="inductor")
    point = create_measurement(experiment, metric=metric, value=value, run=run)
    of_judge: dict[str, Any] = {"factor": factor, "level": level, "level_points": 30, "noise": 0.009}
    of_judge["change"] = value / level - 1
    if level == NEW_LEVEL:
        of_judge |= {"level_points": 4, "noise": 0.05}  # the prior: that of the level before is known better
    create_verdict(point, **{"verdict": word, **of_judge, **(SUSPECT if word == "suspect" else {})})
    return point


@pytest.fixture
def address() -> str:
    """Two nights, and what of them names their pages."""
    cache.clear()
    stream = Stream.objects.get_or_create(name="nightly")[0]
    now = timezone.now().replace(hour=3)
    runs = [
        create_run(stream=stream, branch="main", commit=str(days) * 40, order_time=now - timedelta(days=days))
        for days in (8, 1)
    ]
    for case, (before, after, _word) in CASES.items():
        measured(runs[0], case, "device_speedup", before)
        point = measured(runs[1], case, "device_speedup", after)
        state = {"environment": point.environment, "order_time": point.order_time, "recent": [after[0]]}
        move = {"move": {"run_id": runs[1].pk, "time": str(point.order_time)}} if case == "improved" else {}
        SeriesState.objects.create(
            series=point.series, run=runs[1], headline=True, class_key="x", level=move, **state
        )
        if case in {"regressed", "second opinion"}:
            create_regression(point, change=-0.07)
        # of one experiment one metric improved, and another one regressed
        end = (12.0, "regressed", 9.0, 10.0) if case == "improved" else (10.0, "unchanged", 0.1, 10.0)
        measured(runs[0], case, "cold_compile_s", (10.0, "unchanged", 0.1, 10.0))
        slower = measured(runs[1], case, "cold_compile_s", end)
        if case == "improved":
            create_regression(slower, change=0.2)
    make_causes()
    base, head = (f"{now - timedelta(days=days):%Y-%m-%d}" for days in (8, 1))
    return f"stream=nightly&arch=h200&base={base}&head={head}"


def test_one_metric_has_one_verdict_on_all_pages(client: Client, address: str) -> None:
    expected = {case: word for case, (_base, _head, word) in CASES.items()}
    cases = client.get(f"/compilers.json?{address}&cell={CELL}").json()["cases"]
    assert {case["case"]: case["verdict"] for case in cases} == expected
    compared = client.get(f"/compare.json?{address}&metric=device_speedup").json()
    assert {row["case"]: row["verdict"] for row in compared["items"]} == expected
    factors = {row["case"]: row["factor"] for row in compared["items"]}
    assert factors == {case["case"]: case["factor"] for case in cases}
    assert factors["regressed"] == pytest.approx(6.5)
    assert factors["better by now"] > 3
    assert [row["noise"] for row in compared["items"]] == pytest.approx([0.009] * len(CASES))
    better = sum(word == "improved" for word in expected.values())
    overview = client.get(f"/overview.json?{address}").json()
    assert overview["results"]["improved"] == better
    assert client.get(f"/compare.json?{address}").json()["counts"]["improved"] == better
    worse = {row["case"] for row in client.get(f"/regressions.json?{address}").json()["items"]}
    assert worse == {case for case, word in expected.items() if word == "regressed"} | {"improved"}


def test_what_only_another_arch_shows_stands_in_the_sentence(client: Client, address: str) -> None:
    own = client.get(f"/?{address}").context["page"]
    assert own.elsewhere == []
    run = Run.objects.latest("order_time")
    for suite, case in (("huggingface", "regressed"), ("torchbench", "nanogpt")):  # one has its own cause
        experiment = create_experiment(suite=suite, case=case, knobs={}, backend="inductor", arch="b200")
        point = create_measurement(experiment, metric="device_speedup", value=1.0, run=run)
        create_regression(point, change=-0.15)
    make_causes()
    page = client.get(f"/?{address}")
    assert page.context["page"].elsewhere == [("b200", 1)]
    assert f"{address.partition('&')[0]}&amp;arch=b200" in page.text


def test_the_list_of_a_cell_counts_what_regressed_in_compile_time(client: Client, address: str) -> None:
    cases = client.get(f"/compilers.json?{address}&cell={CELL}&show=regressed").json()["cases"]
    assert {case["case"] for case in cases} == {"regressed", "second opinion", "improved"}
    verdicts = {case["case"]: case["compile_verdict"] for case in cases}
    assert verdicts == {"regressed": "unchanged", "second opinion": "unchanged", "improved": "regressed"}


def test_each_row_of_a_cell_says_what_it_counts_as(client: Client, address: str) -> None:
    compiled = {"series__experiment__case": "suspect", "series__metric__name": "cold_compile_s"}
    slower = Point.objects.filter(**compiled, run=Run.objects.latest("order_time"))
    slower.update(verdict_code=VERDICT_CODES["regressed"], value=12.0, change=0.2, factor=9.0)
    text = client.get(f"/compilers/?{address}&cell={CELL}&show=regressed").text
    rows = re.findall(r'<tr><th scope="row"><a href="/experiments.*?</td>', text)
    assert len(rows) == 4
    assert all("regressed</span>" in row for row in rows)


def test_an_improvement_is_new_in_the_night_that_it_began(client: Client, address: str) -> None:
    rows = client.get(f"/?{address}").context["page"].looks
    better = {row.point.experiment.case: row for row in rows if row.kind == "improved"}
    assert {case: row.is_new for case, row in better.items()} == {
        "improved": True,
        "better by now": False,
        "came back": False,
    }
