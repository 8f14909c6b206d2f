"""Single sign-on against a provider that runs beside the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import oidc_provider_mock
import pytest
import requests
from django.contrib.auth.models import User
from django.test import Client

from hud.accounts.roles import Role, role_of_user
from hud.models import Audit, SignOn
from hud.settings import roles_by_group
from tests.support.factories import create_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Any) -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread() as server:
        settings.HUD_OIDC_ISSUER = f"http://localhost:{server.server_port}"
        settings.OIDC_RP_CLIENT_ID, settings.OIDC_RP_CLIENT_SECRET = "hud", "secret"
        settings.AUTHENTICATION_BACKENDS = [
            *settings.AUTHENTICATION_BACKENDS,
            "hud.accounts.sign_on.SignOnBackend",
        ]
        settings.OIDC_VERIFY_KID = False  # this provider has one key, without a name
        settings.HUD_OIDC_ROLES = {"compiler": "operator", "leads": "admin"}
        yield settings.HUD_OIDC_ISSUER


def sign_on(client: Client, provider: str, subject: str, **claims: Any) -> Any:
    """Log in at the provider as a person with these claims; return the answer to coming back."""
    requests.put(f"{provider}/users/{subject}", json=claims, timeout=10).raise_for_status()
    away = client.get("/login/sso/?next=/hosts/")
    assert away["Location"].startswith(f"{provider}/oauth2/authorize?")
    back = requests.post(away["Location"], data={"sub": subject}, allow_redirects=False, timeout=10)
    address = urlsplit(back.headers["Location"])
    assert address.path == "/login/sso/callback/"
    return client.get(f"{address.path}?{address.query}")


def test_a_person_gets_a_login_whose_role_follows_the_groups(client: Client, provider: str) -> None:
    for groups, role in (
        (["compiler", "other"], Role.OPERATOR),
        (["compiler", "leads"], Role.ADMIN),
        ([], Role.VIEWER),
    ):
        answer = sign_on(client, provider, "42", preferred_username="eva luna", groups=groups)
        assert answer["Location"] == "/hosts/"
        user = User.objects.get()
        assert (user.username, role_of_user(user), user.has_usable_password()) == ("eva_luna", role, False)
        assert client.get("/audit/").status_code == (200 if role is Role.ADMIN else 403)
        client.post("/logout/")
    assert Audit.objects.filter(action="login", who="eva_luna").count() == 3
    assert list(
        Audit.objects.filter(action="user.role").order_by("pk").values_list("detail__to", flat=True)
    ) == [
        "operator",
        "admin",
        "viewer",
    ]


def test_nobody_gets_the_login_of_another_with_the_same_name(client: Client, provider: str) -> None:
    local = create_user("eva", Role.ADMIN)
    User.objects.update(email="eva@example.org")
    sign_on(client, provider, "42", preferred_username="eva", email="eva@example.org")
    sign_on(Client(), provider, "43", preferred_username="eva", email="eva@example.org")
    names = dict(SignOn.objects.values_list("subject", "user__username"))
    assert names == {"42": "eva-2", "43": "eva-3"}
    assert role_of_user(User.objects.get(username="eva-2")) is Role.VIEWER
    assert role_of_user(User.objects.get(pk=local.pk)) is Role.ADMIN


def test_without_a_map_of_groups_a_role_given_here_stays(
    client: Client, provider: str, settings: Any
) -> None:
    settings.HUD_OIDC_ROLES = {}
    sign_on(client, provider, "42", email="eva@example.org", groups=["leads"])
    user = User.objects.get(username="eva@example.org")
    assert role_of_user(user) is Role.VIEWER
    user.groups.clear()
    User.objects.update(is_superuser=True, is_active=True)
    sign_on(client, provider, "42", email="eva@example.org")
    assert role_of_user(User.objects.get()) is Role.ADMIN
    User.objects.update(is_active=False)
    assert "Log out" not in client.get("/").content.decode(), "a session ends with its login"
    answer = sign_on(Client(), provider, "42", email="eva@example.org")
    assert answer["Location"] == "/login/?sign_on=failed"


def test_what_the_provider_did_not_send_lets_nobody_in(client: Client, provider: str, settings: Any) -> None:
    away = client.get("/login/sso/")
    answers = [
        client.get("/login/sso/callback/?error=access_denied"),
        client.get("/login/sso/callback/?code=1&state=2"),
        Client().get("/login/sso/callback/?code=1&state=2"),
    ]
    back = requests.post(away["Location"], data={"sub": "42"}, allow_redirects=False, timeout=10)
    address = urlsplit(back.headers["Location"])
    answers.append(Client().get(f"{address.path}?{address.query}"))  # another browser
    settings.OIDC_RP_CLIENT_ID = "other"  # so the token is for somebody else
    answers.append(client.get(f"{address.path}?{address.query}"))
    settings.HUD_OIDC_ISSUER = "http://localhost:9"  # nobody answers there
    answers.append(client.get("/login/sso/"))
    assert [answer["Location"] for answer in answers] == ["/login/?sign_on=failed"] * 6
    assert not User.objects.exists()
    assert 'role="alert"' in client.get("/login/?sign_on=failed").content.decode()


def test_it_is_off_by_default_and_its_setting_is_checked(client: Client) -> None:
    assert client.get("/login/sso/").status_code == 404
    assert client.get("/login/sso/callback/").status_code == 404
    assert "/login/sso/" not in client.get("/login/").content.decode()
    assert roles_by_group("admin=leads operator=a,b") == {"leads": "admin", "a": "operator", "b": "operator"}
    for wrong in ("owner=a", "admin", "admin="):
        with pytest.raises(ValueError, match="HUD_OIDC_ROLES"):
            roles_by_group(wrong)
