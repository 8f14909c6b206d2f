"""Badge, sentence, lists, Regressions and Compare of the same nights and subject say one number."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from hud.accounts.roles import Role
from hud.judging.regressions.groups import make_causes
from hud.models import Experiment, Regression, Run, State, Stream
from hud.states.regressions import ACTIVE
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_user,
)

pytestmark = pytest.mark.django_db
BEGIN = timezone.now().replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=31)
STEP = 3  # days, as each state costs some twenty pages
DECISIONS = ("accept", "acknowledge", "dismiss", "mute", "confirm", "mine")


def cases(arch: str, dtype: str) -> list[Experiment]:
    return [
        create_experiment(suite=suite, case=case, knobs={}, backend=backend, arch=arch, dtype=dtype)
        for suite, case in (("timm", "moco"), ("timm", "beit"), ("torchbench", "yolov3"), ("micro", "gemv"))
        for backend in ("inductor", "aot_eager")
    ]


class Month:
    """A stream that grows task by task, and what happens to its regressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stream = Stream.objects.get_or_create(name="nightly")[0]
        self.laptop = Stream.objects.get_or_create(name="laptop")[0]
        self.subjects = [cases("h200", "bfloat16"), cases("h200", "float32"), cases("b200", "bfloat16")]
        self.client = Client()
        self.client.force_login(create_user(role=Role.OPERATOR))

    def run(self, at: datetime, commit: str, state: str, **fields: Any) -> Run:
        about = {"stream": self.stream, "branch": "main", "commit": commit, "order_time": at}
        return create_run(state, **{**about, **fields})

    def measure(self, run: Run, experiments: list[Experiment], *, moved: float) -> None:
        for experiment in experiments:
            metrics = ["speedup", "accuracy"] if experiment.suite != "micro" else ["device_bandwidth_gbps"]
            for metric in metrics:
                point = create_measurement(experiment, metric=metric, value=1.5, run=run)
                active = Regression.objects.filter(series=point.series, state__in=ACTIVE).exists()
                if self.random.random() < moved and not active and not run.rerun:
                    state = self.random.choice(["suspect", "open", "open", "confirmed"])
                    failure = {"kind": "failure", "change": None} if metric == "accuracy" else {}
                    create_regression(point, **{"state": state, "change": -0.1, **failure})

    def decide(self) -> None:
        """Let a person decide on a row of the list, and let some series come back to their levels."""
        active = list(Regression.objects.filter(state__in=ACTIVE).order_by("pk"))
        for one in self.random.sample(active, min(2, len(active))):
            event = {"event": self.random.choice(DECISIONS), "days": 1}
            self.client.post(f"/regressions/{one.pk}/act", event)
        for one in self.random.sample(active, min(2, len(active))):
            state = {"suspect": "open"}.get(one.state, "resolved")
            Regression.objects.filter(pk=one.pk, state=one.state).update(state=state)

    def night(self, day: int) -> None:
        at = BEGIN + timedelta(days=day)
        commit = f"{self.random.randrange(day // 2 + 1):040x}"  # often one that was measured before
        own = self.random.sample(self.subjects, self.random.choice([1, 2, 3]))
        for number, experiments in enumerate(own):
            time = at if day % 6 else at + timedelta(hours=number)
            run = self.run(time, commit if day % 4 else "", State.RUNNING)
            half = len(experiments) // 2
            self.measure(run, experiments[:half], moved=0.0)
            if number == 0 and day % 3 == 0:
                self.check()
            Run.objects.filter(pk=run.pk).update(
                state=self.random.choice(["succeeded", "failed"]), finished=timezone.now()
            )
            run.refresh_from_db()
            self.measure(run, experiments[half:], moved=0.3)
            if self.random.random() < 0.5:
                make_causes()
        if day % 9 == 6:
            self.measure(
                self.run(at + timedelta(hours=5), commit, "succeeded", retry_of=run), own[0], moved=0.5
            )
            self.run(at + timedelta(hours=6), commit, "succeeded", base_interpreter="old", interpreter="new")
            foreign = self.run(at, commit, "succeeded", stream=self.laptop)
            self.measure(foreign, own[0], moved=0.5)
            self.check()
        make_causes()
        self.decide()
        self.check()

    def check(self) -> None:
        """Compare the numbers of the default nights, and of others that an address names."""
        self.check_one({})
        days = sorted({self.random.randrange(0, 31, STEP) for _side in range(2)})
        named = {str((BEGIN + timedelta(days=day)).date()) for day in days}
        arch = self.random.choice(["h200", "b200"])
        self.check_one(dict(zip(("base", "head"), sorted(named), strict=False)) | {"arch": arch})

    def check_one(self, asked: dict[str, str]) -> None:
        asked = {"stream": "nightly", **asked}
        answer = self.client.get("/overview.json", asked)
        if answer.status_code == 400:  # a day without a night
            return
        shown = answer.json()
        expected = shown["counts"]
        page = self.client.get("/", asked)
        rows = [look for look in page.context["page"].looks if look.cause]
        assert len(rows) == expected["causes"], "of the overview's list"
        assert {line.series_id for look in rows for line in look.cause.lines}.__len__() == (
            expected["series"]
        )
        of_stream = self.client.get("/regressions.json?stream=nightly").json()["counts"]["causes"]
        assert numbers(page.text) == [of_stream, *[expected["causes"]] * 2], "badge, sentence, list"
        names = ("stream", "arch", "mode", "dtype", "base", "head")
        same = {name: shown[name] for name in names if shown[name]}
        linked = page.context["comparison"].of_sides
        for query in (same, linked):
            address = query if isinstance(query, str) else "&".join(f"{k}={v}" for k, v in query.items())
            data = self.client.get(f"/regressions.json?{address}").json()
            assert data["counts"] == expected, address
            assert len({row["group"] for row in data["items"]}) == expected["causes"], address
            listed = self.client.get(f"/regressions/?{address}")
            assert numbers(listed.text) == [of_stream, expected["causes"]]
            if "base" in same and "head" in same:
                found = self.client.get(f"/compare.json?{address}").json()["counts"]
                assert {name: found[name] for name in expected} == expected, address
                compared = self.client.get(f"/compare/?{address}")
                assert numbers(compared.text) == [of_stream, expected["causes"]]
        assert numbers(self.client.get("/compilers/", same).text)[:1] == [of_stream]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'data-count="causes"[^>]*>(\d+)<', text)]


@pytest.mark.parametrize("seed", [1])
def test_one_number_in_every_state_of_a_month(seed: int) -> None:
    cache.clear()
    month = Month(seed)
    for day in range(0, 30, STEP):
        month.night(day)
    assert Regression.objects.exclude(cause_row=None).exists()


SIDES = ("2026-11-20", "night:2026-11-20", "latest:main", "latest:")


def a_day_of_two_commits(dtype: str) -> tuple[Run, Run]:
    """Ten nights of models; on the last day another commit follows, with one record of an unknown tool.
    Return the runs of that day, of which each opened a regression."""
    stream = Stream.objects.get_or_create(name="nightly")[0]
    for day in range(11, 21):
        at = datetime.fromisoformat(f"2026-11-{day}T02:00+00:00")
        models = create_run(stream=stream, branch="main", commit=f"{day}" * 20, order_time=at)
        for case in ("a", "b"):
            experiment = create_experiment(suite="huggingface", case=case, knobs={})
            point = create_measurement(experiment, metric="device_speedup", value=1.5, run=models)
    create_regression(point, change=-0.1)
    at += timedelta(hours=3)
    other = create_run(stream=stream, branch="main", commit="f" * 40, order_time=at)
    experiment = create_experiment(suite="other bench", case="c", knobs={}, dtype=dtype)
    create_regression(create_measurement(experiment, metric="latency_ms", value=6, run=other), change=1.0)
    make_causes()
    return models, other


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("dtype", "causes"), [("bfloat16", 2), ("float32", 1)])
def test_one_address_means_one_night_on_all_pages(client: Client, side: str, dtype: str, causes: int) -> None:
    cache.clear()
    models, other = a_day_of_two_commits(dtype)
    expected = other if dtype == "bfloat16" else models  # the newest night of the subject
    address = f"stream=nightly&base=2026-11-19&head={side}"
    overview = client.get(f"/?{address}").context["comparison"]
    assert overview.head.runs == (expected.pk,)
    assert client.get(f"/compilers/?{address}").context["page"].head == overview.head
    for query in (address, overview.of_sides):
        for page in ("overview", "compilers", "regressions", "compare"):
            answer = client.get(f"/{page}.json?{query}").json()
            assert answer["counts"]["causes"] == causes, (page, query)
        assert answer["head"]["commit"] == expected.commit


def test_a_night_without_models_is_one_and_links_carry_the_night_that_is_shown(client: Client) -> None:
    cache.clear()
    models, other = a_day_of_two_commits("bfloat16")
    page = client.get("/?stream=nightly").context["comparison"]
    assert page.head.runs == (other.pk,)
    assert page.counts.causes == 2
    assert [night.runs for night in page.nights[:-3:-1]] == [(other.pk,), (models.pk,)]
    for night in page.nights[:-3:-1]:
        chosen = client.get("/", {"stream": "nightly", "head": night.side}).context["comparison"]
        assert chosen.head == night
        compared = client.get(f"/compare.json?{chosen.of_sides}").json()
        assert compared["head"]["runs"] == list(night.runs)
        assert compared["counts"]["causes"] == chosen.counts.causes
