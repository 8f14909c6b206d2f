"""Who follows something hears of each of its changes exactly once, by the channel and at the hour of their
choice, and of nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from hud.accounts.roles import Role
from hud.corrections.renaming import rename
from hud.judging.regressions import events
from hud.models import Audit, Delivery, Follow, Regression
from hud.notifications import follows, sending
from hud.notifications.follows import deliver, matched, preview
from hud.states.regressions import Event
from tests.notifications.test_notifications import Receiver, receiver, regress  # noqa: F401 - a fixture
from tests.support.factories import create_user

pytestmark = pytest.mark.django_db
MANY = ["open", "confirmed", "acknowledged", "assigned"]


@pytest.fixture(autouse=True)
def _server(settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"


def person(name: str = "vera", role: Role = Role.VIEWER) -> Any:
    user = create_user(name, role)
    user.email = f"{name}@example.org"
    user.save()
    return user


def follow(user: Any, channel: str = "mail", **over: Any) -> Follow:
    made = Follow(**{"user": user, "channel": channel, "events": MANY, **over})
    follows.save(made, who=str(user))
    return made


@pytest.mark.parametrize(
    ("wanted", "hears"),
    [
        ({"suite": "micro"}, True),
        ({"suite": "timm"}, False),
        ({"suite": "micro", "arch": "h200", "case": "layer_norm"}, True),
        ({"suite": "micro", "arch": "b200"}, False),
        ({"case": "gemv"}, False),
        ({}, True),
    ],
)
def test_what_meets_all_conditions_is_sent_and_nothing_else(wanted: dict[str, str], hears: bool) -> None:
    made = follow(person(), **wanted)
    regress()
    assert deliver() == int(hears)
    assert len(mail.outbox) == int(hears)
    now = matched(made)
    assert set(now.values()) == {int(hears)}
    assert [text for text, _url in preview(made)[1]] == [message.subject for message in mail.outbox]


def test_a_name_of_several_lines_is_sent_and_no_address_has_any(client: Client) -> None:
    follow(person())
    regress("a\nBcc: b@example.org")
    assert deliver() == 1
    assert "a Bcc: b@example.org" in mail.outbox[0].subject
    with pytest.raises(ValidationError):
        follow(person("olga", Role.OPERATOR), url="a@example.org\nBcc: b@example.org")


def test_a_suite_that_no_address_has_is_listed(client: Client) -> None:
    vera = person()
    follow(vera, suite="a/b")
    client.force_login(vera)
    assert "a/b" in client.get("/follow/").text


def test_an_owner_and_one_regression_with_its_cause_are_followed() -> None:
    vera, olga = person(), person("olga", Role.OPERATOR)
    mine, other = regress(), regress("gemv")
    deliver()
    follow(vera, owner=olga)
    follow(vera, regression=other)
    events.assign(regression=mine, owner=olga, who="olga")
    assert deliver() == 1, "it became olga's"
    events.assign(regression=mine, owner=None, who="olga")
    events.act(regression=mine, event=Event.ACKNOWLEDGE, who="olga")
    assert deliver() == 0, "it is nobody's"
    events.act(regression=other, event=Event.ACKNOWLEDGE, who="olga")
    assert deliver() == 1
    assert [message.to for message in mail.outbox] == [["vera@example.org"]] * 2
    assert "gemv" in mail.outbox[1].subject


def test_a_change_that_several_follows_match_is_one_message() -> None:
    vera = person()
    follow(vera, suite="micro")
    follow(vera, arch="h200")
    follow(vera, hour=8)
    follow(person("olga"), suite="micro")
    regress()
    assert deliver() == 2
    assert sorted(message.to[0] for message in mail.outbox) == ["olga@example.org", "vera@example.org"]
    assert not Delivery.objects.filter(delivered=None).exists(), "told at once, it is not in the digest too"


def test_a_digest_comes_at_its_hour_and_has_everything_since(monkeypatch: pytest.MonkeyPatch) -> None:
    vera = person()
    follow(vera, hour=8, suite="micro")
    follow(vera, hour=8, case="gemv")
    one, _other = regress(), regress("gemv")
    events.act(regression=one, event=Event.ACKNOWLEDGE, who="olga")
    assert deliver() == 0, "until its hour"
    assert {delivery.due.hour for delivery in Delivery.objects.all()} == {8}
    assert Delivery.objects.count() == 3
    Delivery.objects.update(due=timezone.now())
    assert deliver() == 1
    assert deliver() == 0
    (message,) = mail.outbox
    assert message.body.count("layer_norm") == 2
    assert message.body.count("gemv") >= 1


def test_the_hour_of_a_digest_is_the_next_one() -> None:
    for now, hour, wanted in ((7, 8, "21 08"), (8, 8, "22 08"), (9, 8, "22 08"), (23, 0, "22 00")):
        at = datetime.fromisoformat(f"2026-11-21T{now:02}:00:00+00:00")
        assert f"{Follow(hour=hour).next_due(at):%d %H}" == wanted


def test_a_kill_between_sending_and_noting_sends_no_mail_twice(
    receiver: Receiver,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vera = person("olga", Role.OPERATOR)
    follow(vera)
    follow(vera, "slack", url=receiver.url)
    follow(vera, "standard", url=receiver.url)
    regress()
    monkeypatch.setattr(follows, "WebhookAnswer", _killed)
    monkeypatch.setattr(follows, "post", _killed_after(sending.post))
    for _channel in range(3):
        with pytest.raises(KeyboardInterrupt):
            deliver()
    assert (len(mail.outbox), len(receiver.got)) == (1, 2), "all were sent, and none noted"
    monkeypatch.undo()
    Delivery.objects.update(due=timezone.now())
    deliver()
    assert len(mail.outbox) == 1
    assert [headers.get("webhook-id") for headers, _body in receiver.got].count(None) == 1, "Slack, once"
    assert len({headers["webhook-id"] for headers, _body in receiver.got if "webhook-id" in headers}) == 1
    assert Delivery.objects.filter(given_up__isnull=False, began__isnull=False).count() == 2


def _killed(*_given: Any) -> None:
    raise KeyboardInterrupt


def _killed_after(post: Any) -> Any:
    def sends(*given: Any, **more: Any) -> None:
        post(*given, **more)
        raise KeyboardInterrupt

    return sends


def test_a_mail_that_could_not_begin_is_sent_later(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    follow(person())
    regress()
    settings.EMAIL_HOST = ""
    deliver()
    settings.EMAIL_HOST = "mail.example.org"
    Delivery.objects.update(due=timezone.now())
    deliver()
    assert len(mail.outbox) == 1


def test_a_feed_is_read_with_its_token_alone(client: Client, settings: Any) -> None:
    settings.HUD_PUBLIC_READ = False
    vera = person()
    client.force_login(vera)
    client.post("/follow/create?suite=micro", {"channel": "rss", "events": ["open"]})
    made = Follow.objects.get(suite="micro")
    regress('a\x01<b> "c"')
    deliver()
    shown = client.get("/follow/").content.decode()
    assert f"/follow/feed/{made.secret}.xml" in shown
    assert made.secret not in client.get("/follow.json").content.decode()
    client.logout()
    answer = client.get(f"/follow/feed/{made.secret}.xml")
    (item,) = ET.fromstring(answer.content).iter("item")
    assert "<b>" in (item.findtext("title") or "")
    assert urlsplit(item.findtext("link") or "").path == "/regressions/"
    assert client.get("/follow/feed/another.xml").status_code == 404
    vera.is_active = False
    vera.save()
    assert client.get(f"/follow/feed/{made.secret}.xml").status_code == 404


def test_a_person_sees_and_deletes_own_follows_and_an_admin_all(client: Client) -> None:
    vera, olga = person(), person("olga", Role.OPERATOR)
    mine, others = follow(vera, suite="micro"), follow(olga, suite="timm")
    client.force_login(vera)
    assert [row["id"] for row in client.get("/follow.json").json()["items"]] == [mine.pk]
    assert client.post(f"/follow/{others.pk}/delete").status_code == 404
    team = {"channel": "slack", "url": "https://example.org/x", "events": ["open"], "team": "on"}
    client.post("/follow/create", team)
    assert not Follow.objects.filter(user=None).exists(), "the team's are for operators"
    client.force_login(create_user("ada", Role.ADMIN))
    client.post(f"/follow/{mine.pk}/delete")
    assert not Follow.objects.filter(pk=mine.pk).exists()
    assert Audit.objects.filter(who="ada", action="follow.delete", subject="follow suite micro").exists()


def test_the_form_counts_what_would_match(client: Client) -> None:
    client.force_login(person())
    one = regress()
    regress("gemv")
    for query, series, regressions in (("", 2, 2), ("?case=gemv", 1, 1), (f"?regression={one.pk}", 1, 1)):
        shown = client.get(f"/follow/{query}").content.decode()
        assert f'<b data-count="series">{series}</b>' in shown
        assert f'<b data-count="open">{regressions}</b>' in shown


def test_only_addresses_of_operators_may_be_private(receiver: Receiver) -> None:  # noqa: F811
    vera = person()
    with pytest.raises(ValidationError):
        follow(vera, "slack", url=receiver.url)
    made = follow(person("olga", Role.OPERATOR), "slack", url=receiver.url)
    Follow.objects.filter(pk=made.pk).update(user=vera)
    regress()
    assert deliver() == 1
    assert not receiver.got


def test_mail_goes_to_the_address_of_the_login_unless_an_operator_says_another() -> None:
    assert follow(person(), url="other@example.org").receiver[1] == "vera@example.org"
    assert follow(person("olga", Role.OPERATOR), url="list@example.org").receiver[1] == "list@example.org"
    with pytest.raises(ValidationError):
        follow(create_user("nomail", Role.VIEWER))


def test_who_may_log_in_no_more_hears_nothing() -> None:
    vera = person()
    follow(vera)
    regress()
    vera.is_active = False
    vera.save()
    assert deliver() == 0


def test_a_follow_keeps_up_with_new_names() -> None:
    made = follow(person(), suite="micro", case="layer_norm")
    regress()
    rename(kind="case", old="layer_norm", new="norm", who="olga")
    made.refresh_from_db()
    assert made.case == "norm"
    assert matched(made)["open"] == 1
    assert Regression.objects.get().since > timezone.now() - timedelta(days=1)
