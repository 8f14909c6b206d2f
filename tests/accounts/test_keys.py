"""Keys: made once, kept as a digest, refused when revoked, expired or of the wrong scope."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from hud.accounts.keys import UnknownScope, create_key, find_key, revoke_key
from hud.models import ApiKey, Audit

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
    with pytest.raises(UnknownScope):
        create_key(name="ci", scopes=["everything"], who="me")
    with pytest.raises(UnknownScope):
        create_key(name="ci", scopes=["register"], who="me")
    with pytest.raises(CommandError):
        call_command("create_key", "x", "--scopes", "nothing")


def test_the_command_prints_the_secret_as_its_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_key", "me", "--scopes", "upload,read")
    secret = capsys.readouterr().out.split()[-1]
    key = find_key(secret)
    assert key
    assert key.scopes == ["read", "upload"]
