"""The scopes of each role, the scope that each URL and method needs, and people with their roles.

`roles.toml` is the only place that says so. `hud.accounts.access` refuses what it does not permit, and a URL
that has no row in it; a test walks every URL, method and role.
"""

import secrets
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import tomllib
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import transaction

from hud.accounts.audit import note

Scopes: TypeAlias = frozenset[str]

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SCOPES: dict[str, str] = _DATA["scopes"]  # each with what it permits


class Role(StrEnum):
    """The roles, each with all that the one before it may do. A group of Django carries each."""

    VIEWER = "viewer"
    UPLOADER = "uploader"
    OPERATOR = "operator"
    ADMIN = "admin"


_READER: Scopes = frozenset({"read"})
_UPLOADER = _READER | {"upload"}
_OPERATOR = _UPLOADER | {"run", "accept", "rules", "hosts"}
ROLE_SCOPES: dict[Role, Scopes] = {
    Role.VIEWER: _READER,
    Role.UPLOADER: _UPLOADER,
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: _OPERATOR | {"admin", "code"},
}

# What a URL may need apart from a scope:
OPEN = "open"  # nothing
LOGIN = "login"  # a login with any role
STAFF = "staff"  # Django's staff; its pages check Django's permissions themselves
QUEUES = "django_rq.admin"  # Django's staff with this permission
# and `read`, which everybody has if HUD_PUBLIC_READ is set.

# What each method of a URL needs, by the URL's name
ROUTES: dict[str, dict[str, str]] = {
    name: route["needs"] for route in _DATA["route"] for name in route["names"].split()
}


def needs_of(url_name: str) -> dict[str, str] | None:
    """Return what each method of a URL needs, None if the URL has no row."""
    return ROUTES.get(url_name) or ROUTES.get(f"{url_name.rpartition(':')[0]}:*")


def role_of(*, superuser: bool, groups: Iterable[str]) -> Role:
    """Return the highest role of these groups. A login without one is a viewer, a superuser an admin."""
    held = set(groups)
    known = [role for role in Role if role in held]
    return Role.ADMIN if superuser else known[-1] if known else Role.VIEWER


def role_of_user(user: User) -> Role:
    """Return a person's role; 1 query unless it is a superuser."""
    groups = [] if user.is_superuser else user.groups.values_list("name", flat=True)
    return role_of(superuser=user.is_superuser, groups=groups)


def scopes_of_user(user: User | AnonymousUser) -> Scopes:
    return ROLE_SCOPES[role_of_user(user)] if isinstance(user, User) and user.is_active else frozenset()


def create_user(*, name: str, role: Role, who: str, password: str = "") -> tuple[User, str]:
    """Return a new login and its password. Raise ValidationError for a name that is impossible or taken."""
    password = password or secrets.token_urlsafe(12)
    user = User(username=name)
    user.set_password(password)
    user.full_clean()
    with transaction.atomic():
        user.save()
        note(who=who, action="user.create", subject=name)
        set_role(user=user, role=role, who=who)
    return user, password


@transaction.atomic
def set_role(*, user: User, role: Role, who: str) -> None:
    """Make this the only role of a person. An admin is Django's superuser too, nobody else stays one."""
    before = role_of_user(user)
    user.groups.remove(*Group.objects.filter(name__in=list(Role)))
    user.groups.add(Group.objects.get_or_create(name=role.value)[0])
    is_admin = role is Role.ADMIN
    if user.is_superuser != is_admin or (is_admin and not user.is_staff):
        user.is_superuser = user.is_staff = is_admin
        user.save(update_fields=["is_superuser", "is_staff"])
    if role != before:
        note(who=who, action="user.role", subject=user.get_username(), detail={"from": before, "to": role})
