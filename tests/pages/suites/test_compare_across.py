"""Sides of other cards, backends, versions and hosts are matched by the rest."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.judging.compare.query import Filters, read
from hud.models import Experiment, Run, Stream
from hud.points.facts import changes
from tests.pages.suites.test_compare import NOW, measured, model
from tests.support.factories import (
    create_environment,
    create_run,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cards() -> list[Run]:
    """A night on two hosts with cards of two kinds, and an older one; `both` has two backends."""
    runs = []
    for day, factor in ((1, 9.0), (0, 1.0)):
        for host, arch in (("h200-a", "h200"), ("b200-a", "b200")):
            at, torch = NOW - timedelta(days=day), f"2.1{3 - day}.0+cu130"
            run = create_run(order_time=at, branch="main", commit=f"c{day}ffffff", host_name=host)
            environment = create_environment(gpu=arch, gpu_uuid=f"GPU-{arch}", cpu=f"cpu-{host}", torch=torch)
            for case, backend, value in (
                ("both", "inductor", 1.0),
                ("both", "eager", 2.0),
                ("slow", "inductor", 3.0),
            ):
                change = {"both": 1.3, "slow": 0.8}[case] if arch == "b200" else 1.0
                experiment = model(case, backend=backend, arch=arch)
                measured(run, experiment, value * change * factor, environment=environment)
            runs.append(run)
    measured(runs[-1], model("only", arch="b200"), 1.0)
    return runs


def across(client: Client, base: str, head: str, **query: str) -> dict[str, Any]:
    answer = client.get("/compare.json", {"base": base, "head": head, **query})
    assert answer.status_code == 200, answer.content
    return answer.json()  # type: ignore[no-any-return]


def outcomes(found: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    return sorted((row["case"], row["backend"], row["verdict"], row.get("change")) for row in found["items"])


def test_two_cards_are_matched_by_all_but_the_arch(client: Client, cards: list[Run]) -> None:
    found = across(client, "arch:h200", "arch:b200")
    assert found["across"] == ["arch"]
    assert [one["runs"] for one in (found["base"], found["head"])] == [[cards[2].pk], [cards[3].pk]]
    assert outcomes(found) == [
        ("both", "eager", "improved", pytest.approx(0.3)),
        ("both", "inductor", "improved", pytest.approx(0.3)),
        ("only", "inductor", "new", None),
        ("slow", "inductor", "regressed", pytest.approx(-0.2)),
    ]
    (row,) = (row for row in found["items"] if row["case"] == "slow")
    assert (row["arch"], Experiment.objects.get(pk=row["head_id"]).arch) == ("h200", "b200")
    assert {group["arch"] for group in found["aggregates"]} == {"h200 → b200"}
    page = client.get("/compare/", {"base": "arch:h200", "head": "arch:b200"}).content.decode()
    heading = re.findall(r"<h1>(.*?)</h1>", page, re.DOTALL)[0]
    assert "regressed" not in heading
    assert "CPU cpu-h200-a → cpu-b200-a" in page
    _key, secret = create_key(name="reader", scopes=["read"], who="t")
    text = client.get(
        "/api/v1/compare",
        {"base": "arch:h200", "head": "arch:b200", "format": "md"},
        headers={"authorization": f"Bearer {secret}"},
    ).content.decode()
    assert "CPU cpu" in text
    assert "regressed" not in text


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ("host:h200-a", "host:b200-a", (["arch", "host"], [-0.2, 0.3, 0.3])),
        ("backend:eager,arch:h200", "backend:inductor,arch:h200", (["backend"], [-0.5])),
        ("torch:2.12,arch:h200", "torch:2.13,arch:h200", ([], [-8 / 9] * 3)),
        ("night:1,arch:h200", "night:0,arch:h200", ([], [-8 / 9] * 3)),
        ("night:1,arch:h200", "night:0,arch:b200", (["arch"], [0.8 / 9 - 1, 1.3 / 9 - 1, 1.3 / 9 - 1])),
        ("commit:c0ff,arch:h200", "run:3,arch:b200", (["arch"], [-0.2, 0.3, 0.3])),
    ],
)
def test_sides_are_results_of_the_newest_or_the_named_night(
    client: Client, cards: list[Run], base: str, head: str, expected: tuple[list[str], list[float]]
) -> None:
    def named(text: str) -> str:
        for day in (1, 0):
            text = text.replace(f"night:{day}", f"night:{(NOW - timedelta(days=day)).date()}")
        return text.replace("run:3", f"run:{cards[3].pk}")

    found = across(client, named(base), named(head))
    known = sorted(row["change"] for row in found["items"] if row.get("change") is not None)
    assert (found["across"], known) == (expected[0], [pytest.approx(change) for change in expected[1]])


def test_a_side_names_each_kind_once_and_what_there_is(client: Client, cards: list[Run]) -> None:
    stream = cards[0].stream
    laptop = Stream.objects.create(name="laptop")
    own = create_run(stream=laptop, order_time=NOW, branch="main", host_name="mine")
    measured(own, model("slow", arch="h200"), 1.5)
    asked = {"stream": stream.name}
    found = across(client, "arch:h200", "stream:laptop", **asked)
    assert (found["across"], found["head"]["stream"], found["head"]["runs"]) == ([], "laptop", [own.pk])
    for text, status in (
        ("arch:h200,arch:b200", 400),
        ("run:1,night:2026-11-20", 400),
        ("arch:h200,", 404),
        ("arch:a100", 404),
        ("torch:2.1", 404),  # no beginning of 2.13
        ("stream:nobody", 404),
    ):
        answer = client.get("/compare.json", {"base": text, "head": "arch:h200", **asked})
        assert answer.status_code == status, text


def test_cards_are_compared_in_one_click_and_in_two(client: Client, cards: list[Run]) -> None:
    stream = cards[0].stream.name
    for page in ("/", "/compilers/"):
        text = client.get(page, {"stream": stream, "arch": "b200"}).content.decode()
        (query,) = re.findall(r'"/compare/\?([^"]*head=arch%3Ah200[^"]*)"', text)
        found = client.get(f"/compare.json?{html.unescape(query)}").json()
        assert (found["across"], found["base"]["side"]) == (["arch"], "arch:b200")
        assert len(found["items"]) == 4
    chooser = client.get("/compare/", {"stream": stream, "mode": "inference"}).content.decode()
    for side in ("arch:h200", "backend:eager", "host:b200-a", "torch:2.13.0+cu130"):
        assert chooser.count(f'value="{side}"') == 2
    assert 'name="mode" value="inference"' in chooser


def test_a_day_is_the_night_that_measured_the_subject(client: Client) -> None:
    runs = []
    for hour, arch in enumerate(("h200", "b200")):
        at = NOW.replace(hour=hour, minute=0)
        runs.append(create_run(order_time=at, branch="main", commit=f"c{hour}"))
        measured(runs[-1], model("m", arch=arch), 1.0)
    for run, arch in zip(runs, ("h200", "b200"), strict=True):
        asked = {"base": f"run:{run.pk}", "head": str(NOW.date()), "arch": arch, "stream": run.stream.name}
        assert client.get("/compare.json", asked).json()["head"]["runs"] == [run.pk]


def test_facts_have_the_same_names_as_on_what_changed() -> None:
    about = {"gpu_uuid": "GPU-2", "cpu_count": 16, "torch_git": "b", "packages": {"a_b": "2"}}
    sides = [create_environment(gpu_uuid="GPU-1", cpu_count=8, torch_git="a"), create_environment(**about)]
    runs: list[Run] = []
    for environment in sides:
        runs.append(create_run(order_time=NOW - timedelta(days=2 - len(runs))))
        measured(runs[-1], model("m"), 1.0, environment=environment)
    page = read(f"run:{runs[0].pk}", [f"run:{runs[1].pk}"], Filters(), runs[0].stream)
    names = {fact.title for fact in page.different}
    assert names == {"card", "processors", "torch commit", "a_b"}
    said = changes(*sides)
    assert all(any(text.startswith(f"{name} ") for text in said) for name in names)
