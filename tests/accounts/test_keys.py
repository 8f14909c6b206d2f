"""Keys: made once, kept as a digest, refused when revoked, expired or of the wrong scope."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key, effective_scopes, find_key, revoke_key
from hud.accounts.roles import Role, set_role
from hud.models import ApiKey, Audit
from hud.problems import Problem
from tests.support.factories import create_user

pytestmark = pytest.mark.django_db


def test_the_secret_is_not_kept_and_finds_its_key() -> None:
    key, secret = create_key(name="ci", scopes=["upload"], who="me")
    assert find_key(secret) == key
    assert find_key(secret + "x") is None
    assert secret not in str(ApiKey.objects.filter(pk=key.pk).values())
    assert secret.startswith(key.prefix)
    assert Audit.objects.filter(action="key.create", who="me").exists()


def test_a_revoked_or_expired_key_opens_nothing() -> None:
    key, secret = create_key(name="ci", scopes=["read"], who="me")
    revoke_key(key=key, who="me")
    assert find_key(secret) is None
    _key, old = create_key(
        name="old", scopes=["read"], who="me", expires=timezone.now() - timedelta(seconds=1)
    )
    assert find_key(old) is None


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(Problem):
        create_key(name="ci", scopes=["everything"], who="me")
    with pytest.raises(Problem):
        create_key(name="ci", scopes=["register"], who="me")
    with pytest.raises(CommandError):
        call_command("create_key", "x", "--scopes", "nothing")


def test_the_command_prints_the_secret_as_its_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_key", "me", "--scopes", "upload,read")
    secret = capsys.readouterr().out.split()[-1]
    key = find_key(secret)
    assert key
    assert key.scopes == ["read", "upload"]


def test_the_command_creates_a_login_and_prints_its_password_once(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("create_user", "ada", "--role", "uploader")
    out = capsys.readouterr()
    password = out.out.split()[-1]
    assert (out.out + out.err).count(password) == 1
    assert client.login(username="ada", password=password)
    assert [group.name for group in User.objects.get(username="ada").groups.all()] == ["uploader"]
    assert not Audit.objects.filter(detail__icontains=password).exists()
    for name, role in (("ada", "viewer"), ("a b", "viewer"), ("bob", "owner")):
        with pytest.raises(CommandError):
            call_command("create_user", name, "--role", role)
    assert User.objects.count() == 1


def test_a_key_never_has_more_scopes_than_its_owner_has_now(client: Client) -> None:
    owner = create_user(role=Role.ADMIN)
    secret = create_key(name="all", scopes=["admin"], who="olga", owner=owner)[1]
    narrow = create_key(name="some", scopes=["upload", "run"], who="olga", owner=owner)[1]
    expected = {
        Role.ADMIN: (
            {"read", "upload", "run", "accept", "rules", "hosts", "admin", "code"},
            {"upload", "run"},
        ),
        Role.OPERATOR: ({"read", "upload", "run", "accept", "rules", "hosts"}, {"upload", "run"}),
        Role.UPLOADER: ({"read", "upload"}, {"upload"}),
        Role.VIEWER: ({"read"}, set()),
    }
    for role, (of_all, of_narrow) in expected.items():
        set_role(user=owner, role=role, who="t")
        for one, scopes in ((secret, of_all), (narrow, of_narrow)):
            key = find_key(one)
            assert key
            assert effective_scopes(key) == scopes, role
        answer = client.post("/api/v1/results", headers={"authorization": f"Bearer {secret}"})
        assert (answer.status_code == 403) == (role is Role.VIEWER)
        with pytest.raises(Problem):
            create_key(name="more", scopes=[*scopes, "host"], who="olga", owner=owner)
    User.objects.update(is_active=False)
    assert find_key(secret) is None
    owner.delete()
    assert not ApiKey.objects.exists(), "a key without its owner would have no limit"


def test_a_key_is_made_on_the_page_shown_once_and_revoked(client: Client) -> None:
    client.force_login(create_user(role=Role.UPLOADER))
    form = {"name": "ci", "scopes": ["upload"], "days": "30"}
    answer = client.post("/keys/create", form)
    (secret,) = re.findall(r"hud_[\w-]{40,}", answer.content.decode())
    assert "no-store" in answer["Cache-Control"]
    key = find_key(secret)
    assert key
    assert (key.owner and key.owner.username, key.scopes) == ("olga", ["upload"])
    assert key.expires
    assert timedelta(days=29) < key.expires - timezone.now() < timedelta(days=31)
    assert secret not in client.get("/keys/").content.decode()
    wrongs: list[dict[str, object]] = [
        {"scopes": ["run"]},
        {"scopes": ["host"]},
        {"scopes": []},
        {"days": "5"},
        {"name": ""},
    ]
    for wrong in wrongs:
        assert client.post("/keys/create", form | wrong).status_code == 422
    client.post(f"/keys/{key.pk}/revoke")
    assert find_key(secret) is None
    actions = (
        Audit.objects.filter(who="olga", action__startswith="key.")
        .order_by("pk")
        .values_list("action", flat=True)
    )
    assert list(actions) == ["key.create", "key.revoke"]


def test_everybody_sees_the_own_keys_and_an_admin_all(client: Client) -> None:
    owners = {name: create_user(name, role) for name, role in (("eva", Role.VIEWER), ("ada", Role.ADMIN))}
    for name, owner in owners.items():
        create_key(name=f"key of {name}", scopes=["read"], who=name, owner=owner)
    create_key(name="key of nobody", scopes=["read"], who="t")
    seen = {"eva": {"key of eva"}, "ada": {"key of eva", "key of ada", "key of nobody"}}
    for name, names in seen.items():
        client.force_login(owners[name])
        assert {row["name"] for row in client.get("/keys.json").json()["items"]} == names
        page = client.get("/keys/").content.decode()
        assert set(re.findall(r"key of \w+(?=</th>)", page)) == names
        for key in ApiKey.objects.all():
            status = client.post(f"/keys/{key.pk}/revoke").status_code
            assert status == (302 if key.name in names else 404)
    assert not ApiKey.objects.filter(revoked=None).exists()
