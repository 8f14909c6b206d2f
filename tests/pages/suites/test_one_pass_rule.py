"""A case of which some processes failed does not pass, on no page, though its points keep a value."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from django.test import Client

from hud.models import Point, Run
from tests.support.factories import create_experiment, create_measurement, create_run

pytestmark = pytest.mark.django_db
_STATUSES = {"vgg16": "crashed", "resnet18": "oom", "mixnet_l": "timed_out"}


def _night(days: int) -> Run:
    """Store a night of four cases; of three a process of three failed."""
    run = create_run(
        commit=f"{days:012x}", branch="main", order_time=datetime.now(tz=timezone.utc) - timedelta(days=days)
    )
    for case, status in {**_STATUSES, "dlrm": "ok"}.items():
        experiment = create_experiment(suite="timm", case=case, knobs={}, backend="inductor")
        for number in range(3):
            is_bad = number == 2 and status != "ok"
            create_measurement(
                experiment,
                metric="speedup",
                value=None if is_bad else 1.5,
                status=status if is_bad else "ok",
                run=run,
                repeat=number,
                compilation=number,
            )
    return run


def test_every_page_counts_the_same_cases_as_passed(client: Client) -> None:
    base, head = _night(2), _night(1)
    assert not Point.objects.filter(value=None).exists()
    stream = f"stream={head.stream.name}"
    row = next(
        row for row in client.get(f"/compilers.json?{stream}").json()["items"] if row["column"] == "speedup"
    )
    totals = client.get(f"/compare.json?{stream}&base=run:{base.pk}&head=run:{head.pk}").json()["totals"]
    passed = client.get(f"/suites/timm/?{stream}").context["page"].totals.passed
    shown = client.get(f"/?{stream}").context["page"].comparison.table.entries["timm", "inductor"].passes
    counts = {
        "compilers": (row["passed"], row["expected"]),
        "overview": (shown.passed, shown.expected),
        "compare": (totals["head_passed"], totals["expected"]),
        "suite": (passed.passed, passed.expected),
    }
    assert counts == dict.fromkeys(counts, (1, 4))
    results = client.get(f"/runs/{head.pk}/").context["results"]
    assert results.counts["failed"].experiments == 3
    failed = {row["case"] for row in client.get(f"/runs/{head.pk}.json?show=failed").json()["items"]}
    assert failed == set(_STATUSES)


def test_of_a_repeated_case_the_point_that_counts_says_whether_it_passed(client: Client) -> None:
    first = _night(1)
    for case in _STATUSES:
        create_measurement(
            create_experiment(suite="timm", case=case, knobs={}, backend="inductor"),
            metric="speedup",
            value=1.5,
            run=create_run(
                commit=first.commit, branch="main", order_time=first.order_time + timedelta(hours=1)
            ),
        )
    rows = client.get(f"/compilers.json?stream={first.stream.name}").json()["items"]
    assert {row["passed"] for row in rows if row["column"] == "speedup"} == {4}
