"""Which stream and subject a page shows, and that other streams and subjects change nothing of it."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import Client

from hud.models import Run, SeriesState, Stream
from hud.points import streams
from tests.support.factories import create_experiment, create_measurement, create_run, create_task
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
NEWEST = datetime(2026, 11, 21, 3, tzinfo=timezone.utc)
PAGES = ("/", "/compilers/", "/overview.json", "/overview.csv", "/compilers.json", "/compilers.csv")


def test_what_measured_nothing_is_in_no_picker_and_no_news(client: Client) -> None:
    run = night("nightly", 1)
    failed = create_run("failed", stream=stream_of("nightly"), retry_of=run)
    elsewhere = create_experiment(suite="torchbench", case="nanogpt", arch="cpu-x86_64", device="cpu")
    create_measurement(elsewhere, metric="speedup", value=None, status="unsupported", run=failed)
    comparison = client.get("/?stream=nightly").context["comparison"]
    assert comparison.choices["arch"] == ["h200"]
    assert comparison.other_arches == []
    (listed,) = streams.listed()
    assert listed.newest == run.created
    suites = {
        row["name"]: row["experiments"] for row in client.get("/suites.json?stream=nightly").json()["items"]
    }
    assert suites["torchbench"] == 0


def stream_of(name: str) -> Stream:
    return Stream.objects.get_or_create(name=name)[0]


def night(
    stream: str,
    days_ago: float,
    *,
    arch: str = "h200",
    mode: str = "inference",
    dtype: str = "bfloat16",
    value: float = 2.0,
    cases: int = 4,
    suite: str = "huggingface",
    metric: str = "",
    headline: bool = True,
    state: str = "succeeded",
    **fields: Any,
) -> Run:
    """A night of a suite; its points are the newest of their series."""
    at = NEWEST - timedelta(days=days_ago)
    run = create_run(
        state,
        stream=stream_of(stream),
        order_time=at,
        **{"commit": f"{round(at.timestamp()):x}{arch}", **fields},
    )
    for number in range(cases):
        experiment = create_experiment(
            suite=suite, case=f"model_{number}", knobs={}, arch=arch, mode=mode, dtype=dtype
        )
        metric = metric or ("device_speedup" if suite == "huggingface" else "device_bandwidth_gbps")
        one = create_measurement(experiment, metric=metric, value=value + number, run=run)
        if headline:
            SeriesState.objects.update_or_create(
                series=one.series,
                class_key="x",
                defaults={
                    "headline": True,
                    "level": {},
                    "run": run,
                    "environment": one.environment,
                    "order_time": at,
                    "recent": [value],
                },
            )
    return run


def subject(client: Client, query: str = "") -> tuple[str, ...]:
    answer = client.get(f"/compilers.json?{query}").json()
    return tuple(answer[name] for name in ("stream", "arch", "mode", "dtype"))


def test_the_front_stream_is_the_chosen_one_else_nightly_with_three_complete_nights_else_samples() -> None:
    assert streams.front().name == "samples"
    night("laptop", 9, headline=False)
    assert streams.front().name == "laptop", "while samples is empty, the first with results"
    night("samples", 9)
    assert streams.front().name == "samples"
    night("nightly", 3)
    night("nightly", 2)
    night("nightly", 1, state="running")
    create_measurement(
        create_experiment(suite="ceilings", case="copy"),
        run=create_run(stream=stream_of("nightly"), commit="ceilings", order_time=NEWEST),
    )
    create_run("cancelled", stream=stream_of("nightly"), commit="cancelled", order_time=NEWEST)
    streams.note_nights()
    assert streams.front().name == "samples", "two complete nights, one that grows, and two without results"
    Run.objects.filter(state="running").update(state="failed", finished=NEWEST)
    streams.note_nights()
    assert Stream.objects.get(name="nightly").has_nights
    assert streams.front().name == "nightly"
    Stream.objects.filter(name="laptop").update(is_front=True)
    assert streams.front().name == "laptop"


def test_the_last_choice_holds_on_the_first_page_only(client: Client) -> None:
    night("samples", 1)
    night("laptop", 1, arch="b200")
    assert subject(client)[0] == "samples"
    client.get("/?stream=laptop")
    assert client.get("/").context["stream"].name == "laptop"
    assert subject(client)[0] == "samples"
    assert client.get("/?stream=none").status_code == 404
    client.cookies["stream"] = "gone"
    assert client.get("/").context["stream"].name == "samples"


def test_the_default_subject_has_most_headline_points_of_the_newest_night(client: Client) -> None:
    night("nightly", 5, arch="a100", cases=9)
    night("nightly", 1, arch="h200", cases=3)
    night("nightly", 1, arch="b200", cases=4, commit=Run.objects.latest("pk").commit)
    night("nightly", 0.9, arch="mi300x", cases=9, headline=False)
    assert subject(client, "stream=nightly") == ("nightly", "b200", "inference", "bfloat16")
    assert subject(client, "stream=nightly&arch=a100")[1] == "a100"


def test_what_is_not_named_is_never_the_default_and_every_picker_has_what_is_shown(client: Client) -> None:
    night("nightly", 1, arch="", cases=9)
    night("nightly", 1, dtype="", cases=9)
    assert not any(subject(client, "stream=nightly")[1:])
    night("nightly", 2, arch="b200", mode="training", dtype="float16")
    for address in ("/", "/compilers/"):
        text = page_of(client, f"{address}?stream=nightly")
        for value in ("b200", "training", "float16"):
            assert f'<option value="{value}" selected>{value}</option>' in text
        assert '<option value=""></option>' not in text
        assert re.search(r"<table", text)
    unknown = page_of(client, "/compilers/?stream=nightly&arch=x9")
    assert '<option value="x9" selected>x9</option>' in unknown
    assert "arch=b200" in unknown, "offers what has results"


@pytest.mark.parametrize("seed", range(5))
def test_pickers_say_what_the_json_filters_by_and_a_table_is_shown_where_any_subject_has_results(
    client: Client, seed: int
) -> None:
    chance = random.Random(seed)
    named = False
    for _night in range(chance.randint(1, 6)):
        parts: dict[str, Any] = {
            "arch": chance.choice(["h200", "b200", ""]),
            "mode": chance.choice(["inference", "training", ""]),
            "dtype": chance.choice(["bfloat16", "amp", ""]),
        }
        suite = chance.choice(["huggingface", "huggingface", "micro"])
        night(
            "nightly",
            chance.randint(0, 40),
            suite=suite,
            cases=chance.randint(1, 5),
            headline=chance.random() < 0.5,
            commit=f"{chance.random()}",
            **parts,
        )
        named = named or (suite == "huggingface" and all(parts.values()))
    for address in ("/", "/compilers/"):
        text = page_of(client, f"{address}?stream=nightly")
        shown = dict(re.findall(r'<select name="(arch|mode|dtype)">.*?<option[^>]* selected>([^<]+)', text))
        answer = client.get("/compilers.json?stream=nightly").json()
        assert shown == {name: answer[name] or "none" for name in ("arch", "mode", "dtype")}
        assert ('class="m first' in text) == bool(answer["items"])
    assert bool(answer["items"]) == named


@pytest.mark.parametrize(
    ("suite", "metric", "dtype"),
    [
        ("timm", "device_speedup", ""),
        ("timm", "accuracy", "amp"),
        ("huggingface", "latency_ms", "amp"),
        ("micro", "latency_ms", "amp"),
    ],
)
def test_without_a_speedup_of_a_subject_a_table_lists_the_suites_and_no_empty_name_is_printed(
    client: Client, suite: str, metric: str, dtype: str
) -> None:
    for days_ago, cases in ((1, 3), (0, 2)):
        night("ci", days_ago, suite=suite, metric=metric, mode="training", dtype=dtype, cases=cases)
    for address in ("/", "/compilers/"):
        text = page_of(client, f"{address}?stream=ci")
        table = re.search(r"<table.*?</table>", text, re.DOTALL)
        assert table, address
        assert f'href="/suites/{suite}/?stream=ci"' in table[0]
        assert '<td class="num">2</td>' in table[0], "of its newest night"
        assert not re.search(r", ,|, \)|no model was measured|Nothing was measured", text), address
    assert ", ," not in client.get("/overview.json?stream=ci").json()["unjudged"]


def saved(client: Client) -> list[Any]:
    queries = (
        "head=2026-11-21",
        "head=latest:&base=2026-11-14",
        "window=28",
        "head=night:2026-11-20&window=1",
    )
    return [
        client.get(f"/compilers.json?stream=nightly&arch=h200&mode=inference&dtype=bfloat16&{query}").json()
        for query in queries
    ]


def test_saved_links_do_not_change_by_other_streams_and_subjects(client: Client) -> None:
    for days_ago in (7, 5, 1, 0):
        night("nightly", days_ago, value=2 + days_ago)
    before = saved(client)
    assert [answer["head"] for answer in before] == [
        "2026-11-21",
        "2026-11-21",
        "2026-11-21",
        "night:2026-11-20",
    ]
    night("laptop", -0.1, value=99)
    night("nightly", 0.02, value=99, arch="b200")
    night("nightly", -0.02, value=99, dtype="float16", cases=9)
    for hours in range(60):
        create_run(
            stream=stream_of("nightly"), order_time=NEWEST + timedelta(hours=hours), commit=f"{hours:09}"
        )
    rerun = night("nightly", 0, value=99, retry_of=Run.objects.first())
    assert rerun.rerun
    assert saved(client) == before


def without_ages(response: Any) -> str:
    text = response.content.decode()
    text = re.sub(r'<nav class="streams".*?</nav>', "", text, flags=re.DOTALL)
    return re.sub(r"<time.*?</time>|csrfmiddlewaretoken.*?>", "", text)


def test_other_streams_change_nothing(client: Client) -> None:
    for days_ago in (7, 5, 1, 0):
        night("nightly", days_ago, value=2 + days_ago)
    before = [without_ages(client.get(f"{page}?stream=nightly")) for page in PAGES]
    night("laptop", 0, value=0.1)
    night("laptop", -1, arch="b200", cases=30)
    night("laptop", -2, arch="", cases=30)
    create_run("cancelled", stream=stream_of("laptop"), order_time=NEWEST + timedelta(days=3))
    assert [without_ages(client.get(f"{page}?stream=nightly")) for page in PAGES] == before


def test_a_night_that_grows_is_named_and_not_the_default(client: Client) -> None:
    now = datetime.now(timezone.utc)
    ago = (NEWEST - now).total_seconds() / 86400
    night("nightly", ago + 1.1, commit="before")
    growing = night("nightly", ago + 0.1, state="running", commit="tonight", cases=1)
    create_task(growing, state="done")
    create_task(growing)
    answer = client.get("/overview.json?stream=nightly").json()
    assert answer["so_far"] == {"night": str(growing.order_time.date()), "ended": 1, "planned": 2}
    assert answer["head"] == str((now - timedelta(days=1.1)).date())
    Run.objects.filter(pk=growing.pk).update(order_time=now - timedelta(hours=37))
    Run.objects.filter(commit="before").update(order_time=now - timedelta(days=3))
    late = client.get("/overview.json?stream=nightly").json()
    assert late["head"] == str((now - timedelta(hours=37)).date())


@pytest.mark.parametrize("address", ["/overview.json", "/compilers.csv", "/experiments/1.json"])
def test_data_of_an_unknown_stream_are_a_problem_that_names_it(client: Client, address: str) -> None:
    answer = client.get(address, {"stream": "nosuch"})
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert "nosuch" in answer.json()["detail"]
    assert client.get("/", {"stream": "nosuch"})["Content-Type"].startswith("text/html")


def test_the_head_lists_streams_and_each_link_of_a_page_names_its_stream(client: Client) -> None:
    night("nightly", 1)
    for number in range(9):
        night(f"person-{number}", 1 + number, cases=1)
    text = page_of(client, "/compilers/?stream=nightly")
    head = re.search(r'<nav class="streams".*?</nav>', text, re.DOTALL)
    assert head
    names = re.findall(r"/compilers/\?stream=([a-z0-9-]+)", head[0])
    assert names[0] == "nightly"
    assert len(names) == 8
    main = text[text.index("<main") :]
    for link in re.findall(r'href="([^"#]+)"', main):
        assert "stream=nightly" in link or link.startswith(("/runs/", "/hosts/", "/glossary/")), link
    assert 'href="/funnel/?stream=nightly"' in text
