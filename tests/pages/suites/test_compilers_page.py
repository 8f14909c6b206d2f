"""The table of suites and backends, and the cases of one of its cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import Client

from hud.judging.aggregates import compare_means
from hud.models import VERDICT_CODES, Experiment, KnownFailure, Point, Run
from tests.support.factories import create_experiment, create_measurement, create_run
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
# stream, subjects, branches, nights, experiments and levels of a cell, open regressions, streams, and 9 for
# the verdicts of the cell
STATEMENTS = 18
BACKEND = "inductor_cudagraphs"
NEWEST = datetime(2026, 11, 21, 3, tzinfo=timezone.utc)
_commits = itertools.count(10**11)


def night(
    days_ago: float,
    speedups: Mapping[str, float | None],
    *,
    backend: str = BACKEND,
    **fields: Any,
) -> Run:
    """A night of huggingface; a case without a speedup failed."""
    at = NEWEST - timedelta(days=days_ago)
    run = create_run(**{"branch": "main", "commit": f"{next(_commits):012x}", "order_time": at, **fields})
    for case, value in speedups.items():
        experiment = create_experiment(suite="huggingface", case=case, knobs={}, backend=backend)
        status = "ok" if value is not None else "crashed"
        create_measurement(experiment, metric="device_speedup", value=value, status=status, run=run)
        create_measurement(experiment, metric="cold_compile_s", value=10.0, run=run)
    return run


def rows(client: Client, query: str = "") -> dict[str, dict[str, Any]]:
    answer = client.get(f"/compilers.json?{query}")
    assert answer.status_code == 200, answer.content
    return {row["column"]: row for row in answer.json()["items"]}


def models(factor: float = 1.0) -> dict[str, float | None]:
    return {f"model_{number}": (1.5 + number / 10) * factor * (1 + number / 2000) for number in range(8)}


def test_means_are_over_the_cases_of_both_sides(client: Client) -> None:
    night(7, {"a": 2.0, "b": 1.0, "gone": 9.0})
    night(0, {"a": 1.0, "b": 1.0, "added": 9.0})
    row = rows(client)["speedup"]
    mean = compare_means({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    assert (row["base_value"], row["head_value"]) == (mean.base, mean.head)
    assert (row["matched"], row["only_base"], row["only_head"]) == (2, 1, 1)
    assert (row["base"], row["head"]) == ("2026-11-14", "2026-11-21")
    assert row["low"] == pytest.approx((mean.low or 0) - 1)


def test_passes_are_counted_over_the_expected_cases(client: Client) -> None:
    night(7, {"fails now": 1.0, "fails always": None, "fine": 1.0, "not run": 1.0})
    night(0, {"fails now": None, "fails always": None, "fine": 1.0})
    row = rows(client)["speedup"]
    assert (row["passed"], row["expected"], row["newly_failed"], row["not_run"]) == (1, 4, 1, 1)


def test_only_what_somebody_declared_is_a_known_failure(client: Client) -> None:
    failing = {"fails always": None, "fails first": None, "declared": None}
    night(7, {"fails always": None, "declared": 1.0, "fine": 1.0})
    last = night(0, {**failing, "fine": 1.0})

    def failures() -> tuple[int, ...]:
        row = rows(client)["speedup"]
        return tuple(row[name] for name in ("newly_failed", "failed_before", "known_failures"))

    assert failures() == (1, 1, 0)
    assert "known" not in page_of(client, "/compilers/").partition('id="cases"')[0]
    declared = Experiment.objects.get(case="declared")
    KnownFailure.objects.create(stream=last.stream, experiment=declared, reason="index out of range")
    assert failures() == (0, 1, 1)
    for page in ("/compilers/", "/"):
        table = page_of(client, page).partition('id="cases"')[0]
        assert "1 failed, 1 failed before, 1 known" in table, page
    night(-1, {**failing, "fine": None})
    answer = client.get("/compilers.json?cell=huggingface/inductor_cudagraphs").json()
    assert answer["cases"][0]["case"] == "fine", "the only news"
    assert "index out of range" in page_of(client, "/compilers/?cell=huggingface/inductor_cudagraphs")


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "regressed"), (1.1, "improved"), (1.002, "unchanged")])
def test_a_mean_is_coloured_beyond_the_noise_only(client: Client, factor: float, verdict: str) -> None:
    night(7, models())
    night(0, models(factor))
    found = rows(client)
    assert found["speedup"]["verdict"] == verdict
    assert found["cold_compile"]["verdict"] == "unchanged"


def test_a_mean_of_two_matched_cases_is_not_coloured(client: Client) -> None:
    for number, verdict in ((2, "unchanged"), (3, "regressed")):
        backend = f"backend_{number}"
        chosen = dict(itertools.islice(models().items(), number))
        lower = {case: (value or 0) * 0.7 for case, value in chosen.items()}
        night(7, chosen, backend=backend)
        night(0, lower, backend=backend)
        row = next(
            one
            for one in client.get("/compilers.json").json()["items"]
            if (one["backend"], one["column"]) == (backend, "speedup")
        )
        assert (row["matched"], row["verdict"]) == (number, verdict)
        text = page_of(client, "/compilers/")
        assert (">2 matched<" in text) == (number == 2)
    assert 'role="img" aria-label="change −30.0 %, 95 % interval' in text


def test_with_many_nights_the_noise_of_the_mean_decides(client: Client) -> None:
    for days_ago in range(14, 0, -1):
        night(days_ago, models(1 + days_ago % 3 / 2000))
    moved = {**models(), "model_3": 1.6}  # one case of eight: no interval over the cases excludes chance
    night(0, moved)
    found = rows(client)["speedup"]
    assert found["low"] < 0 < found["high"]
    assert found["verdict"] == "regressed"


def test_a_side_is_a_run_a_commit_a_branch_or_a_date(client: Client) -> None:
    first = night(7, {"a": 2.0})
    night(3, {"a": 3.0}, branch="slow")
    last = night(0, {"a": 1.0})
    expected = {
        f"base=run:{first.pk}&head=run:{last.pk}": (2.0, 1.0),
        f"base=commit:{last.commit[:12]}&head=commit:{first.commit}": (1.0, 2.0),
        "base=2026-11-14&head=latest:slow": (2.0, 3.0),
        "head=latest:": (2.0, 1.0),
    }
    for query, values in expected.items():
        row = rows(client, query)["speedup"]
        assert (row["base_value"], row["head_value"]) == pytest.approx(values), query
    assert client.get("/compilers/?base=run:0&head=commit:").status_code == 200
    both = last.commit[:10]  # two commits begin so, which are no side
    for side in (
        "run:0",
        "run:x",
        "commit:",
        "commit:0",
        f"commit:{both}",
        "commit:0badbad",
        "latest:none",
        "nothing",
        "2026-01-01",
    ):
        assert client.get(f"/compilers.json?head={side}").status_code == 400, side


def test_what_is_no_night_is_no_side(client: Client) -> None:
    measured = night(1, models())
    slow = create_experiment(suite="huggingface", case="model_1", knobs={}, backend="inductor_cudagraphs")
    night(0.3, models(0.5), branch="slow")
    night(0.2, models(0.5), base_interpreter="old", interpreter="new")
    night(0.1, models(0.5), experiment=slow)
    night(0, models(0.5), retry_of=measured)
    row = rows(client)["speedup"]
    assert (row["head"], row["base"]) == ("2026-11-20", None)
    assert row["expected"] == 8


@pytest.mark.parametrize("page", ["compilers", "overview"])
def test_nights_of_a_benchmark_without_models_are_sides_too(client: Client, page: str) -> None:
    experiment = create_experiment(suite="my benchmark", case="my case", knobs={})
    for days_ago in range(10, -1, -1):
        at = NEWEST - timedelta(days=days_ago)
        run = create_run(branch="main", commit=f"{next(_commits):012x}", order_time=at)
        create_measurement(experiment, metric="latency_ms", value=1.25, run=run)
    usual = client.get(f"/{page}.json").json()
    assert (usual["base"], usual["head"]) == ("2026-11-14", "2026-11-21")
    chosen = client.get(f"/{page}.json?base=2026-11-13&head=2026-11-18")
    assert chosen.status_code == 200, chosen.content
    assert (chosen.json()["base"], chosen.json()["head"]) == ("2026-11-13", "2026-11-18")
    assert "2026-11-16" in page_of(client, "/compilers/" if page == "compilers" else "/")
    assert client.get(f"/{page}.json?head=2026-01-01").status_code == 400


def test_runs_of_one_commit_within_a_day_are_one_night(client: Client) -> None:
    night(7, {"a": 2.0, "b": 2.0})
    night(0.5, {"a": 1.0}, commit="c0ffee")
    night(0, {"b": 4.0}, commit="c0ffee")
    assert rows(client)["speedup"]["matched"] == 2


def test_a_cell_lists_its_cases_the_most_certain_first(client: Client) -> None:
    steady = {f"model_{number}": 2.0 for number in range(6)}
    for days_ago in (9, 8, 7):
        night(days_ago, steady)
    night(0, {**steady, "model_2": 1.0, "model_4": None})
    answer = client.get("/compilers.json?cell=huggingface/inductor_cudagraphs").json()
    assert answer["cases"][0]["case"] == "model_4"
    verdicts = {case["case"]: case["verdict"] for case in answer["cases"]}
    assert verdicts["model_4"] == "failed"
    assert verdicts["model_1"] == "unchanged"
    assert answer["cases"][0]["nights"] == ["unjudged", "same", "same", "failed"]
    failed = client.get("/compilers.json?cell=huggingface/inductor_cudagraphs&show=failed").json()
    assert [case["case"] for case in failed["cases"]] == ["model_4"]
    page = client.get("/compilers/?cell=huggingface/inductor_cudagraphs&sort=name").content.decode()
    assert page.index("model_0") < page.index("model_4")
    assert client.get("/compilers.json?cell=huggingface/none").status_code == 400


def test_the_nights_of_a_case_have_the_verdicts_of_their_own_points(client: Client) -> None:
    verdicts: list[tuple[str, dict[str, Any]]] = [
        ("new", {}),
        ("unchanged", {"level": 2.0, "noise": 0.01}),
        ("inconclusive", {"change": -0.04, "verdict_reason": "suspect"}),
        ("regressed", {"change": -0.5}),
        ("inconclusive", {"verdict_reason": "other_card"}),
        ("unchanged", {"level": 1.0, "noise": 0.01}),  # somebody accepted the level
    ]
    for number, (verdict, of_judge) in enumerate(verdicts):
        run = night(len(verdicts) - number, {"a": 2.0 if number < 3 else 1.0})
        point = Point.objects.filter(run=run, series__metric__name="device_speedup")
        point.update(verdict_code=VERDICT_CODES[verdict], **of_judge)
    night(0, {"a": 1.0})  # not judged yet
    Point.objects.filter(run=Run.objects.latest("pk")).update(verdict_code=None)
    (case,) = client.get(f"/compilers.json?cell=huggingface/{BACKEND}").json()["cases"]
    marks = ["unjudged", "same", "worse", "worse-certain", "undecided", "same", "unjudged"]
    assert case["nights"] == marks


def test_of_several_points_in_a_night_the_one_that_is_shown_says_its_verdict(client: Client) -> None:
    night(7, {"a": 2.0})
    for value, verdict, hours in ((1.0, "unchanged", 2), (2.0, "regressed", 1)):
        run = night(hours / 24, {"a": value}, commit="c0ffee")
        point = Point.objects.filter(run=run, series__metric__name="device_speedup")
        point.update(verdict_code=VERDICT_CODES[verdict])
    (case,) = client.get(f"/compilers.json?cell=huggingface/{BACKEND}").json()["cases"]
    assert (case["head_value"], case["nights"][-1]) == (2.0, "worse-certain")


def test_the_formulas_of_pytorchs_hud_take_each_sides_own_rows(client: Client) -> None:
    night(7, {"a": 2.0, "gone": 8.0})
    night(0, {"a": 1.0, "fails": None})
    row = rows(client, "formulas=hud")["speedup"]
    assert (row["base_value"], row["head_value"]) == (4.0, 1.0)
    assert (row["passed"], row["expected"]) == (1, 2)
    assert row["low"] is None
    assert rows(client)["speedup"]["matched"] == 1, "the other table is not changed"


def test_csv_has_the_rows_of_the_json(client: Client) -> None:
    night(7, {"a": 2.0})
    night(0, {"a": 1.0})
    query = "window=28&arch=h200"
    lines = client.get(f"/compilers.csv?{query}").content.decode().splitlines()
    assert len(lines) - 1 == len(client.get(f"/compilers.json?{query}").json()["items"]) == 3
    assert len(client.get(f"/overview.json?{query}").json()["table"]) == 3


def test_it_takes_a_fixed_number_of_statements(client: Client, django_assert_num_queries: Any) -> None:
    for days_ago in range(6, -1, -1):
        night(days_ago, models())
    with django_assert_num_queries(STATEMENTS + 3):  # nights that nobody has read
        client.get("/compilers/?stream=import")
    with django_assert_num_queries(STATEMENTS):
        client.get("/compilers/?stream=import")
