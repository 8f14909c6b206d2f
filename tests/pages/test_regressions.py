"""The page and the API of regressions: what waits, one row for each cause, decisions by role."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.judging.regressions import events
from hud.models import Audit, Commit, Regression, Stream
from hud.tables.formatting import signed_percent
from tests.judging.regressions.test_regressions import nights, quiet
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_verdict,
    point_of,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    """A browser in which an operator is logged in."""
    user = User.objects.create_user("mara")
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def regression() -> Regression:
    nights(*quiet(12), 2000, 2000)
    return Regression.objects.get()


def test_the_page_shows_what_waits_and_its_history(client: Client, regression: Regression) -> None:
    page = client.get("/regressions/", {"id": regression.pk})
    assert page.status_code == 200
    assert "layer_norm" in page.text
    rows = client.get("/regressions.json").json()["items"]
    assert [(row["id"], row["state"], row["points"]) for row in rows] == [(regression.pk, "open", 2)]
    assert rows[0]["change"] == pytest.approx(-0.2, abs=0.01)
    assert client.get("/regressions.csv").text.count("layer_norm") == 1
    opened = client.get("/regressions/", {"open": regression.pk}).context["markdown"]
    assert "layer\\_norm" in opened, "as a comment on GitHub writes it"
    assert client.get("/regressions/", {"tab": "accepted"}).status_code == 200
    assert client.get("/regressions/", {"open": regression.pk + 1}).context["complaints"], "it is gone"
    assert client.get("/regressions.json", {"tab": "nonsense"}).status_code == 400


def test_what_was_opened_lately_began_lately_and_was_more_than_a_suspect(client: Client) -> None:
    now = timezone.now()
    for number, (state, days) in enumerate((("open", 3), ("open", 45), ("suspect", 3))):
        run = create_run(order_time=now - timedelta(days=days))
        point = create_measurement(create_experiment(case=f"case {number}"), run=run)
        events.record(create_regression(point, state=state, change=-0.1), "")
    page = client.get("/regressions/?stream=import").context["page"]
    assert page.opened["opened"] == 1, "neither what was backfilled nor a suspect"


def two_runs(metric: str, **fields: Any) -> Regression:
    """A regression between two runs whose kernels and phases are known, three commits apart."""
    now, experiment = timezone.now(), create_experiment(suite="huggingface")
    shas = [f"{number}" * 40 for number in range(4)]
    for parent, sha in pairwise(shas):
        about = {"title": "Change code", "author": "a", "date": now, "touched": ["torch/_dynamo/utils.py"]}
        Commit.objects.create(repo="pytorch/pytorch", sha=sha, parent=parent, **about)
    runs = [create_run(commit=sha, order_time=now - timedelta(days=1)) for sha in (shas[0], shas[-1])]
    for run, phase_s in zip(runs, (10.0, 12.0), strict=True):
        point = create_measurement(experiment, metric=metric, value=phase_s, run=run)
        phases = replace(compiled(kernel("triton_poi_0")), phases_s={"bytecode_tracing": phase_s})
        store(phases, experiment=experiment, run=run)
    return create_regression(point, change=0.2, last_good_run=runs[0], **fields)


def test_compile_time_is_told_by_its_phases_and_not_by_kernels(client: Client) -> None:
    for metric, has_kernels in (("cold_compile_s", False), ("gpu_busy_ms", True)):
        page = client.get(f"/regressions/?stream=import&id={two_runs(metric).pk}")
        detail = page.context["page"].detail
        assert bool(detail.kernels) == has_kernels
        assert bool(detail.compiled) != has_kernels
        assert (page.text.count('id="kernels"'), page.text.count('id="phases"')) == (
            has_kernels,
            not has_kernels,
        )
        assert detail.commits
        Commit.objects.all().delete()


def test_kernels_of_an_experiment_explain_no_compile_time(client: Client) -> None:
    for metric, explains in (("cold_compile_s", False), ("gpu_busy_ms", True)):
        regression = two_runs(metric)
        experiment = regression.series.experiment
        for slower in (30.0, 40.0):
            run = create_run(commit="e" * 40)
            create_measurement(experiment, metric=metric, value=slower, run=run)
            store(compiled(kernel("triton_poi_0", slower)), experiment=experiment, run=run)
        page = client.get(f"/experiments/{experiment.pk}/?stream=import&metric={metric}").context["page"]
        moved = regression.last_good_run_id, regression.first_run_id
        assert page.compilations.table
        assert (tuple(page.compilations.runs) == moved) == explains
        Regression.objects.all().delete()
        Commit.objects.all().delete()


def test_no_commit_ranks_first_for_a_drift(client: Client) -> None:
    drift = two_runs("gpu_busy_ms", kind="drift")
    page = client.get(f"/regressions/?stream=import&id={drift.pk}")
    tile = re.findall(r'<p class="newest">(.*?)</p>', page.content.decode())[0]
    assert (
        f"drift {signed_percent(drift.change)}" in tile
    )  # and not what its newest point is against its level
    assert page.context["page"].detail.commits == []
    assert client.get(f"/regressions.json?stream=import&id={drift.pk}").json()["detail"]["commits"] == []


def test_ten_regressions_cost_as_many_statements_as_one(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    for case in "abcd":
        nights(*quiet(6), 1000, case=case)
    with django_assert_max_num_queries(14):
        assert client.get("/regressions/?stream=import").status_code == 200


def test_a_page_has_the_regressions_of_its_stream(client: Client, regression: Regression) -> None:
    foreign = create_run(stream=Stream.objects.create(name="laptop"))
    other = create_regression(create_measurement(regression.series.experiment, run=foreign))

    def ids(address: str) -> list[int]:
        return [row["id"] for row in client.get(address).json()["items"]]

    assert (ids("/regressions.json"), ids("/regressions.json?stream=laptop")) == ([regression.pk], [other.pk])
    assert ids(f"/regressions.json?open={other.pk}") == [other.pk], "an old link shows its stream"
    for stream in ("import", "laptop"):
        page = client.get(f"/regressions/?stream={stream}")
        assert page.context["page"].counts.causes == 1
        assert re.findall(r'data-count="causes"[^>]*>(\d+)', page.text) == ["1", "1"], "badge and head"
        of_streams = r'href="(/(?:(?:regressions|experiments|compilers|limits|code|suites)[^"]*|\?[^"]*)?)"'
        links = re.findall(of_streams, page.text)
        others = {
            f"/regressions/?stream={name}" for name in ("import", "laptop")
        }  # the head's list of streams
        assert not [link for link in links if f"stream={stream}" not in link and link not in others]
    _key, key = create_key(name="t", scopes=["read"], who="t")
    listed = client.get(
        "/api/v1/regressions?stream=laptop", headers={"Authorization": f"Bearer {key}"}
    ).json()
    assert [(row["id"], row["stream"]) for row in listed["items"]] == [(other.pk, "laptop")]


def test_a_decision_needs_the_role_and_leaves_a_line(
    regression: Regression, operator: Client, client: Client
) -> None:
    address = f"/regressions/{regression.pk}/act"
    assert client.post(address, {"event": "accept"}).status_code in {302, 403}
    assert Regression.objects.get().state == "open"
    operator.post(address, {"event": "mine"})
    operator.post(address, {"event": "acknowledge", "note": "known"})
    found = Regression.objects.get()
    assert (found.state, found.note) == ("acknowledged", "known")
    assert found.owner
    operator.post(address, {"event": "mute", "days": 3, "note": "until the fix"})
    assert operator.get("/regressions.json").json()["items"] == []
    assert Audit.objects.filter(action__startswith="regression.").count() == 3


@pytest.mark.parametrize("event", ["accept", "dismiss", "mute"])
def test_what_takes_a_cause_from_the_list_needs_a_reason(
    regression: Regression, operator: Client, event: str
) -> None:
    before = Regression.objects.values().get()
    for note in ("", "  \t "):
        answer = operator.post(
            f"/regressions/{regression.pk}/act", {"event": event, "note": note}, follow=True
        )
        assert "notice error" in answer.text
    assert Regression.objects.values().get() == before
    assert not Audit.objects.filter(action__startswith="regression.").exists()
    operator.post(f"/regressions/{regression.pk}/act", {"event": event, "note": "known"})
    assert operator.get("/regressions.json").json()["items"] == []


def test_what_another_has_decided_is_not_decided_again(regression: Regression, operator: Client) -> None:
    events.decide(regression, "accept", who="jon", note="needed")
    answer = operator.post(
        f"/regressions/{regression.pk}/act", {"event": "accept", "note": "mine"}, follow=True
    )
    assert "notice error" in answer.text
    assert "jon" in answer.text
    assert Regression.objects.get().note == "needed"


def test_pairs_that_cannot_tell_make_it_inconclusive(regression: Regression, client: Client) -> None:
    def verdicts() -> list[str]:
        return [row["verdict"] for row in client.get("/regressions.json").json()["items"]]

    assert verdicts() == ["regressed"]
    run = create_run()
    events.leave_undecided(regression=regression, note="", run_id=run.pk)
    assert verdicts() == ["inconclusive"]
    events.decide_by_pairs(regression=regression, confirmed=True, run_id=run.pk)
    assert verdicts() == ["regressed"]


def test_the_api_lists_and_decides(regression: Regression) -> None:
    _key, secret = create_key(name="t", scopes=["read", "accept"], who="t")
    api = Client(headers={"authorization": f"Bearer {secret}"})
    listed = api.get("/api/v1/regressions", {"state": "open"}).json()["items"]
    assert [row["id"] for row in listed] == [regression.pk]
    assert api.get("/api/v1/regressions", {"branch": "other"}).json()["items"] == []
    path = f"/api/v1/regressions/{regression.pk}"
    done = api.post(path, {"event": "accept", "note": "needed"}, content_type="application/json")
    assert (done.status_code, done.json()["state"]) == (200, "accepted")
    again = api.post(path, {"event": "dismiss"}, content_type="application/json")
    assert again.status_code == 409
    assert "by key hud_" in again.json()["detail"]
    assert api.post(path, {"event": "agreed"}, content_type="application/json").status_code == 422


def test_the_api_shows_one_with_its_history_and_refuses_what_does_not_fit(regression: Regression) -> None:
    _key, secret = create_key(name="t", scopes=["read", "accept"], who="t")
    api = Client(headers={"authorization": f"Bearer {secret}"})
    path = f"/api/v1/regressions/{regression.pk}"

    def post(**body: Any) -> int:
        return api.post(path, body, content_type="application/json").status_code

    assert post(event="acknowledge", untill="2027-01-01T00:00:00Z") == 422
    soon, past, far = (f"{timezone.now() + timedelta(days=days):%Y-%m-%dT%H:%M:%S}" for days in (3, -1, 400))
    assert post(event="mute", until=past) == 422
    assert post(event="mute", until=f"{far}Z") == 422
    assert Regression.objects.get().muted_until is None
    for event in ({"event": "mute", "until": soon}, {"event": "accept"}, {"event": "dismiss"}):
        assert post(**event) == 422, "without a reason"
    assert post(event="mute", until=soon, note="later") == 200
    assert post(event="accept", note="needed") == 200
    assert post(event="mute", until=soon, note="later") == 409
    history = api.get(path).json()["history"]
    assert [one["event"] for one in history][-2:] == ["mute", "accept"]
    assert history[-1]["who"].startswith("key ")
    assert api.get("/api/v1/regressions/999999").status_code == 404


def test_a_decision_in_the_detail_is_of_all_metrics_of_the_row(operator: Client) -> None:
    nights(*quiet(12), 2000, 2000, case="a")
    first = Regression.objects.get()
    create_regression(
        create_measurement(first.series.experiment, metric="call_bandwidth_gbps", run=first.first_run),
        change=-0.2,
        last_good_run=first.last_good_run,
    )
    operator.post(f"/regressions/{first.pk}/act", {"event": "accept", "note": "needed"})
    assert set(Regression.objects.values_list("state", flat=True)) == {"accepted"}
    detail = operator.get(f"/regressions/?open={first.pk}").context["page"].detail
    assert (len(detail.cause.lines), detail.waiting) == (2, 0), "whatever their state"
    decision = detail.decision
    assert (decision.event, decision.who, decision.note) == ("accept", "mara", "needed")


def test_a_selection_or_a_whole_group_is_decided_at_once(operator: Client, client: Client) -> None:
    for case in "abc":
        nights(*quiet(12), 2000, 2000, case=case)
    first, *others = Regression.objects.order_by("pk").values_list("pk", flat=True)
    rest = " ".join(map(str, others))
    assert client.post("/regressions/act", {"event": "accept", "ids": rest}).status_code == 302
    assert set(Regression.objects.values_list("state", flat=True)) == {"open"}
    back = "/regressions/?tab=inbox&owner=nobody"
    answer = operator.post("/regressions/act", {"event": "acknowledge", "ids": [first, rest], "back": back})
    assert answer["Location"] == back
    assert set(Regression.objects.values_list("state", flat=True)) == {"acknowledged"}
    operator.post(f"/regressions/{first}/act", {"event": "accept", "note": "needed"})
    assert Regression.objects.get(state="accepted").pk == first
    page = operator.post("/regressions/act", {"event": "mine", "ids": rest}, follow=True)
    assert page.status_code == 200
    answer = operator.post("/regressions/act", {"event": "dismiss", "ids": rest}, follow=True)
    assert "notice error" in answer.text  # neither state permits it
    for wrong in (
        {"ids": "1;2"},
        {"ids": ""},
        {"ids": "9" * 30},
        {"event": "no"},
        {"back": "https://x.org/"},
    ):
        answer = operator.post("/regressions/act", {"event": "accept", "ids": "", **wrong})
        assert (answer.status_code, answer["Location"]) == (302, "/regressions/"), wrong
    assert Regression.objects.filter(state="acknowledged").count() == 2


def test_a_muting_ends_within_a_year(regression: Regression, operator: Client) -> None:
    def mute(days: int) -> None:
        until = f"{timezone.now() + timedelta(days=days):%Y-%m-%d}"
        body = {"event": "mute", "until": until, "note": "later"}
        operator.post(f"/regressions/{regression.pk}/act", body)

    for days in (-1, 400):
        mute(days)
        assert Regression.objects.get().muted_until is None
    mute(30)
    until = Regression.objects.get().muted_until
    assert until
    assert until > timezone.now() + timedelta(days=29)


def test_the_list_is_filtered_by_owner_and_keeps_the_open_one_beside_it(
    regression: Regression, operator: Client
) -> None:
    operator.post(f"/regressions/{regression.pk}/act", {"event": "mine"})

    def ids(**query: Any) -> list[int]:
        return [row["id"] for row in operator.get("/regressions.json", query).json()["items"]]

    assert ids(owner="mara") == ids(tab="mine") == [regression.pk]
    assert ids(owner="nobody") == ids(owner="jon") == []
    detail = operator.get("/regressions.json", {"open": regression.pk}).json()["detail"]
    assert detail["id"] == regression.pk
    assert [one["event"] for one in detail["history"]][-1] == "assign"
    assert "aria-current" in operator.get("/regressions/", {"open": regression.pk}).text
    assert operator.get("/regressions/", {"open": 999999}).status_code == 200


def test_change_and_factor_are_one_number_in_data_and_in_the_point(client: Client) -> None:
    change = -0.39960039960039967
    measurement = create_measurement(create_experiment(), value=900)
    create_verdict(measurement, "regressed", change=change, factor=change * 100)
    create_regression(measurement, change=change, factor=change * 100)
    point = point_of(measurement)
    (row,) = client.get("/regressions.json").json()["items"]
    assert (row["change"], row["factor"]) == (point.change, point.factor)
