"""Create, find and revoke the API keys of programs. Only a key's SHA-256 is stored."""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from hud.accounts.audit import note
from hud.accounts.roles import ROLE_SCOPES, SCOPES, Scopes, role_of, role_of_user
from hud.models import ApiKey, Host, IdempotencyKey, Stream
from hud.problems import Problem
from hud.sql import fetch_models

_LONGEST_TEXT = 200  # of an Idempotency-Key
_LAST_USE_PRECISION = timedelta(minutes=1)


def create_key(
    *,
    name: str,
    scopes: list[str],
    who: str,
    host: Host | None = None,
    owner: User | None = None,
    expires: datetime | None = None,
    stream: Stream | None = None,
) -> tuple[ApiKey, str]:
    """Return a new key and its secret, which is not stored. Raise Problem 422. A key without owner belongs
    to a host, or was made on the server's command line."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise Problem(422, f"scopes are {', '.join(SCOPES)}; not {', '.join(unknown) or 'none'}")
    if owner is not None and (above := set(scopes) - ROLE_SCOPES[role_of_user(owner)]):
        raise Problem(422, f"your role has not the scope {', '.join(sorted(above))}")
    secret = "hud_" + secrets.token_urlsafe(32)
    key = ApiKey(
        name=name[:100],
        prefix=secret[:10],
        digest=digest(secret),
        scopes=sorted(set(scopes)),
        host=host,
        owner=owner,
        expires=expires,
        stream=stream,
    )
    with transaction.atomic():
        key.save()
        note(who=who, action="key.create", subject=str(key), detail={"scopes": key.scopes})
    return key, secret


def find_key(secret: str) -> ApiKey | None:
    """Return the valid key of this secret, or None if it is unknown, revoked or expired. 1 query."""
    is_valid = """own.digest = %(digest)s AND own.revoked IS NULL AND coalesce(owner.is_active, true)
        AND coalesce(own.expires > statement_timestamp(), true)"""
    key = next(iter(with_owners(is_valid, digest=digest(secret))), None)
    now = timezone.now()
    if key and (key.last_used is None or now - key.last_used > _LAST_USE_PRECISION):
        ApiKey.objects.filter(pk=key.pk).update(last_used=now)
    return key


def with_owners(condition: str, **params: Any) -> list[ApiKey]:
    """Return the keys `one` that a condition chooses and orders, each with its host, its stream, its owner
    and, for `effective_scopes`, the owner's groups. 1 query."""
    groups = """ARRAY(SELECT g.name FROM auth_user_groups u JOIN auth_group g ON g.id = u.group_id
        WHERE u.user_id = own.owner_id)"""
    return fetch_models(
        ApiKey,
        f"""LEFT JOIN hud_host host ON host.id = own.host_id
        LEFT JOIN auth_user owner ON owner.id = own.owner_id
        LEFT JOIN hud_stream stream ON stream.id = own.stream_id WHERE {condition}""",
        params,
        computed={"owner_groups": groups},
        host=Host,
        owner=User,
        stream=Stream,
    )


def effective_scopes(key: ApiKey) -> Scopes:
    """Return what a key of `with_owners` may do now. It shrinks with its owner's role."""
    scopes = frozenset(key.scopes)
    if "admin" in scopes:
        scopes |= frozenset(SCOPES) - {"host"}
    if key.owner is None:
        return scopes
    groups: list[str] = key.owner_groups  # type: ignore[attr-defined]  # annotated
    return scopes & ROLE_SCOPES[role_of(superuser=key.owner.is_superuser, groups=groups)]


def name_of(key: ApiKey) -> str:
    """Return what pages and the audit call the caller that has this key."""
    return f"{key.owner.get_username()}, key {key.prefix}" if key.owner else f"key {key.prefix}"


def request_of(key: ApiKey, text: str, content_key: str) -> tuple[IdempotencyKey, bool]:
    """Return the row of an `Idempotency-Key` of an API key, whose receipt is {} until the caller fills it in,
    and whether it is new. A concurrent request with it waits until this transaction ends. Raise Problem 422
    for a text that none can be, or that was another request's."""
    if len(text) > _LONGEST_TEXT or "\0" in text:
        raise Problem(422, f"an Idempotency-Key is a text of at most {_LONGEST_TEXT} characters")
    new = {"content_key": content_key, "receipt": {}}
    row, is_new = IdempotencyKey.objects.get_or_create(key=key, text=text, defaults=new)
    if row.content_key != content_key:
        raise Problem(422, "this Idempotency-Key was used for another request")
    return row, is_new


def revoke_key(*, key: ApiKey, who: str) -> None:
    with transaction.atomic():
        if ApiKey.objects.filter(pk=key.pk, revoked__isnull=True).update(revoked=Now()):
            note(who=who, action="key.revoke", subject=str(key))


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
