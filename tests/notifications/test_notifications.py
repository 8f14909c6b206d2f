"""Messages reach a webhook at least once, signed, one for each cause; nothing private is asked."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from hud.judging.backlog import overdue_suites
from hud.judging.regressions import events
from hud.judging.regressions.events import apply, record
from hud.models import Audit, Delivery, Follow, Metric, Notice, Regression, Run, SeriesState, Stream
from hud.notifications import follows, sending
from hud.notifications.follows import BACKOFF_S, deliver
from hud.notifications.messages import queue_overdue
from hud.notifications.sending import CannotSend
from hud.notifications.texts import EVENTS
from hud.runs.tasks import cancel
from hud.states.regressions import Event
from tests.support.claims import attach, claim, end, request
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_user,
    create_verdict,
)

pytestmark = pytest.mark.django_db


class Receiver:
    """A server that notes what it gets, and answers with `status`."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(b"thanks")

            def log_message(self, *_given: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def texts(self, name: str) -> list[str]:
        return [json.loads(body)[name] for _headers, body in self.got]


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.HUD_WEBHOOK_PRIVATE = True
    settings.HUD_PUBLIC_URL = "https://hud.example.org"
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


def webhook(receiver: Receiver, kind: str = "standard", **over: Any) -> Follow:
    made = Follow(**{"name": kind, "url": receiver.url, "channel": kind, "events": list(EVENTS), **over})
    follows.save(made, who="olga")
    return made


def regress(case: str = "layer_norm", **over: Any) -> Regression:
    """A regression that was just opened by the judge."""
    measurement = create_measurement(create_experiment(case=case), value=2000, **over)
    create_verdict(measurement, "regressed", level=2500, change=-0.2)
    found = create_regression(measurement, state="suspect", before=2500, change=-0.2)
    record(found, "")
    apply(found, Event.AGREED, run_id=measurement.run_id)
    return found


def test_a_message_is_signed_and_repeated_until_it_was_received(receiver: Receiver) -> None:
    made = webhook(receiver)
    regression = regress()
    receiver.status = 500
    assert deliver() == 1
    assert deliver() == 0, "the next attempt is not due"
    made.refresh_from_db()
    assert (made.last_ok, made.last_result) == (False, "500 thanks")
    Delivery.objects.update(due=timezone.now())
    receiver.status = 302
    assert deliver() == 1, "a redirect is not followed"
    Delivery.objects.update(due=timezone.now())
    receiver.status = 204
    call_command("tick", "--once")
    assert deliver() == 0
    assert len({headers["webhook-id"] for headers, _body in receiver.got}) == 1
    assert len(receiver.got) == 3
    headers, body = receiver.got[-1]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    said = json.loads(body)
    assert (said["type"], said["data"]["total"]) == ("regression.open", 1)
    (row,) = said["data"]["regressions"]
    assert (row["id"], row["after"], row["change"]) == (regression.pk, 2000, pytest.approx(-0.2))
    assert row["url"] == f"https://hud.example.org/regressions/?id={regression.pk}"
    receiver.status = 500
    regress("gemv")
    for _attempt in range(len(BACKOFF_S) + 3):
        Delivery.objects.update(due=timezone.now())
        deliver()
    assert len(receiver.got) == 3 + len(BACKOFF_S) + 1, "then it is given up"


def test_one_message_for_a_cause_and_each_change_of_state(receiver: Receiver) -> None:
    webhook(receiver, "slack")
    webhook(receiver, "github", secret="a token")
    run = Run.objects.create(state="succeeded", finished=timezone.now(), host_name="h200-a")
    found = [regress(f"case *{number}*", run=run) for number in range(25)]
    for one in found:
        SeriesState.objects.create(
            series=one.series,
            class_key=one.class_key,
            level={},
            run=run,
            environment=create_measurement(metric="speedup").environment,
            order_time=run.order_time,
            recent=[1.0],
        )
    assert deliver() == 2
    events.act(regression=found[0], event=Event.ACKNOWLEDGE, who="olga", note="mine @all")
    deliver()
    slack = [body for headers, body in receiver.got if "authorization" not in headers]
    github = [body for headers, body in receiver.got if headers.get("authorization") == "Bearer a token"]
    first, second = (json.loads(body)["text"] for body in slack)
    assert "25 experiments" in first
    assert f"<https://hud.example.org/regressions/?id={found[0].pk}|" in first
    assert "and 15 more" in first
    assert "olga" in second
    markdown = json.loads(github[-1])["body"]
    assert r"case \*0\*" in markdown
    assert "@all" not in markdown


@pytest.mark.parametrize("kind", ["slack", "github"])
def test_a_name_makes_no_line_mark_or_link_of_its_own(receiver: Receiver, kind: str) -> None:
    webhook(receiver, kind, secret="a token")
    for number in range(2):
        regress(f"x{number}\n*Regression resolved:\u2028 all fine*\r`code` https://evil.example/")
    deliver()
    for text in receiver.texts("text" if kind == "slack" else "body"):
        lines = text.splitlines()
        assert not any(
            line.lstrip("- ").startswith(("*Regression resolved", "\\*Regression")) for line in lines
        )
        assert "://evil.example" not in text
        assert text.count("*") - text.count("\\*") == (2 if kind == "slack" else 4)
        assert text.count("`") == text.count("\\`")


def test_what_a_host_moved_is_one_message_that_names_it(receiver: Receiver) -> None:
    webhook(receiver, "slack")
    cause = "Host h200-a: copy −4.0% without a compiler"
    for number in range(2):  # in two runs: only the canaries tie them together
        one = regress(f"case {number}", run=create_run(host_name="h200-a"))
        Regression.objects.filter(pk=one.pk).update(canaries="moved", cause=cause)
    Metric.objects.update(unit="<!channel>")  # as an upload may call it
    deliver()
    (text,) = receiver.texts("text")
    assert "2 experiments, probably the host" in text
    assert cause in text
    assert "<!channel>" not in text


def test_a_message_has_the_numbers_of_the_point_and_names_its_stream(receiver: Receiver) -> None:
    webhook(receiver)
    for name in ("nightly", "laptop"):  # the same experiment in two streams is two messages
        stream = Stream.objects.get_or_create(name=name)[0]
        moved = create_measurement(create_experiment(case="moved"), value=80.0, run=create_run(stream=stream))
        create_verdict(moved, "regressed", level=100.0, change=-0.2, factor=-9.0)
        one = create_regression(moved, state="suspect", before=1.0, after=2.0, change=1.0)
        apply(one, Event.AGREED, run_id=moved.run_id)
    deliver()
    messages: Any = receiver.texts("data")
    told = {data["stream"]: data["regressions"] for data in messages}
    assert told.keys() == {"nightly", "laptop"}
    for (row,) in told.values():
        numbers = [row[name] for name in ("before", "after", "change", "factor")]
        assert numbers == pytest.approx([100.0, 80.0, -0.2, -9.0])


def test_suspects_muted_ones_and_backfills_send_nothing(receiver: Receiver) -> None:
    webhook(receiver)
    suspect = create_regression(create_measurement(), state="suspect")
    record(suspect, "")
    apply(suspect, Event.DISAGREED)
    regress("old", at=timezone.now() - timedelta(days=3))
    assert not Notice.objects.exists()
    muted = regress("muted")
    events.mute(regression=muted, who="olga", until=timezone.now() + timedelta(days=1))
    apply(muted, Event.RECOVERED, run_id=muted.latest_run_id)
    assert Notice.objects.count() == 1
    assert deliver() == 0
    assert not receiver.got


def test_a_webhook_hears_what_it_asked_for_and_nothing_while_it_is_paused(receiver: Receiver) -> None:
    made = webhook(receiver)
    Follow.objects.update(events=["confirmed"])
    one = regress()
    events.decide_by_pairs(regression=one, confirmed=True, run_id=one.latest_run_id or 0)
    deliver()
    assert receiver.texts("type") == ["regression.confirmed"]
    follows.set_active(made, active=False, who="olga")
    Follow.objects.update(events=list(EVENTS))
    regress("gemv")
    assert deliver() == 0
    follows.set_active(made, active=True, who="olga")
    assert deliver() == 0
    receiver.status = 410
    regress("mlp")
    deliver()
    made.refresh_from_db()
    assert not made.active, "the receiver is gone"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost:9/",
        "https://[::1]/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:192.168.1.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::1]/",
        "http://[::127.0.0.1]/",
        "http://[3fff::1]/",
        "http://[5f00::1]/",
        "http://[2002:7f00:1::]/",
        "http://192.88.99.1/",
        "http://192.0.0.8/",
        "http://[fe80::1]/",
        "http://[fec0::1]/",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
        "http://2130706433/",
        "https://user:word@example.org/",
        "ftp://example.org/",
    ],
)
def test_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        follows.save(Follow(url=url, events=["open"]), who="olga")
    with pytest.raises(CannotSend):
        sending.post(url, b"", {}, private=False, begin=list)


def test_a_name_that_leads_to_a_private_address_later_is_not_asked(
    receiver: Receiver, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = webhook(receiver)
    settings.HUD_WEBHOOK_PRIVATE = False
    regress()
    assert deliver() == 1
    assert not receiver.got
    made.refresh_from_db()
    assert "not public" in made.last_result


def test_a_receiver_that_does_not_end_is_left(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 0.3)
    left = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for _ in range(1000):
                try:
                    self.wfile.write(b"H")  # a byte at a time, and never a whole line
                except OSError:
                    break
                if left.wait(0.05):
                    break

        def log_message(self, *_given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(CannotSend):
        sending.post(f"http://127.0.0.1:{server.server_port}/", b"{}", {}, private=True, begin=list)
    left.set()
    server.shutdown()
    server.server_close()


def test_an_operator_makes_tests_and_deletes_a_teams_webhook(client: Client, receiver: Receiver) -> None:
    client.force_login(create_user())
    given = {"name": "team", "url": receiver.url, "channel": "standard", "events": ["open", "overdue"]}
    given["team"] = "on"
    shown = client.post("/follow/create", given)
    made = Follow.objects.get()
    assert made.user is None
    assert made.secret.encode() in shown.content, "shown once"
    assert made.secret.encode() not in client.get(f"/follow/?edit={made.pk}").content
    (row,) = client.get("/follow.json").json()["items"]
    assert made.secret not in str(row)
    assert "hook" not in str(row), "a path may be a secret"
    client.post(f"/follow/{made.pk}/test")
    assert receiver.texts("type") == ["test"]
    assert client.post(f"/follow/{made.pk}/change", {**given, "events": ["no"]}).status_code == 422
    client.post(f"/follow/{made.pk}/change", {**given, "events": ["open"]})
    assert Follow.objects.get().secret == made.secret
    for address in ("https://api.github.invalid/comments", receiver.url, "http://["):
        other = client.post(f"/follow/{made.pk}/change", {**given, "channel": "github", "url": address})
        assert other.status_code == 422, "its secret does not go to another receiver"
    client.post(f"/follow/{made.pk}/delete")
    assert not Follow.objects.exists()
    actions = list(
        Audit.objects.filter(action__startswith="follow").order_by("pk").values_list("action", flat=True)
    )
    assert actions == ["follow.create", "follow.test", "follow.change", "follow.delete"]
    assert client.get("/notifications/").url == "/follow/"  # type: ignore[attr-defined]


def test_what_had_results_and_has_none_for_36_hours_is_overdue_once(receiver: Receiver) -> None:
    now = timezone.now()
    webhook(receiver)
    twice = [1.0, 1.0]
    stored = ((37, "micro", twice), (35, "on time", twice), (15 * 24, "given up", twice), (40, "once", [1.0]))
    for hours, suite, values in stored:
        at = now - timedelta(hours=hours)
        experiment = create_experiment(suite=suite)
        for _value in values:
            measurement = create_measurement(experiment, at=at)
            Run.objects.filter(pk=measurement.run_id).update(finished=at, created=at)
        SeriesState.objects.create(
            series=measurement.series,
            class_key="",
            level={},
            run=measurement.run,
            environment=measurement.environment,
            order_time=at,
            recent=values,
        )
    assert [(one.suite, one.branch, one.arch) for one in overdue_suites(now)] == [("micro", "main", "h200")]
    laptop = create_measurement(
        create_experiment(suite="micro"), run=create_run(stream=Stream.objects.create(name="laptop"))
    )
    SeriesState.objects.create(
        series=laptop.series,
        class_key="",
        level={},
        run=laptop.run,
        environment=laptop.environment,
        order_time=now,
        recent=[1.0, 1.0],
    )
    (late,) = overdue_suites(now)
    assert (late.stream, late.suite) == ("import", "micro"), "another stream's results say nothing of it"
    assert not overdue_suites(now, laptop.run.stream)
    assert (queue_overdue(now), queue_overdue(now)) == (1, 0)
    deliver()
    assert receiver.texts("type") == ["overdue"]


def test_a_webhook_is_told_of_a_runs_end_once(receiver: Receiver) -> None:
    webhook(receiver)
    host = attach("plain")
    run = request(commit="abc1234", pull_request=7)
    task = claim(host)
    assert deliver() == 0, "it runs"
    create_verdict(create_measurement(run=run), "regressed", level=2500, change=-0.2)
    end(task, host, "crashed", reason="out of registers")
    end(task, host, "crashed", reason="out of registers")
    assert deliver() == 1
    assert deliver() == 0
    (_headers, body), run = receiver.got[0], Run.objects.get(pk=run.pk)
    said = json.loads(body)
    assert said["type"] == "run.ended"
    known = {"id": run.pk, "state": run.state, "verdict": "regressed", "commit": "abc1234", "pull_request": 7}
    known |= {"url": f"https://hud.example.org/runs/{run.pk}/", "branch": "pull/7", "requested_by": "me"}
    assert known.items() <= said["data"].items()
    assert "out of registers" in said["data"]["reason"]
    cancel(run=request(), who="olga")
    deliver()
    assert [one["state"] for one in receiver.texts("data")[1:]] == ["cancelled"]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["slack", "github"])
def test_the_text_of_a_runs_end_makes_no_line_of_its_own(receiver: Receiver, kind: str) -> None:
    webhook(receiver, kind, secret="token" if kind == "github" else "")
    attach("plain")
    cancel(run=request(branch="a\n@team *bold*"), who="olga")
    deliver()
    (text,) = receiver.texts("text" if kind == "slack" else "body")
    assert "cancelled" in text
    assert "*bold*" not in text
    assert not [line for line in text.splitlines() if line.startswith("@team")]
    assert kind == "slack" or "@team" not in text


def test_a_webhook_that_did_not_ask_hears_of_no_run(receiver: Receiver) -> None:
    webhook(receiver)
    Follow.objects.update(events=["open"])
    attach("plain")
    cancel(run=request(), who="olga")
    assert deliver() == 0
    Follow.objects.update(events=list(EVENTS))
    assert deliver() == 0, "what ended before is old news"
