"""The scopes of each role, the scope that each URL and method needs, and people with their roles.

`ROUTES` is the only place that says so. `hud.accounts.access` refuses what it does not permit, and a URL that
has no row in it; a test walks every URL, method and role.
"""

import secrets
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import transaction

from hud.accounts.audit import note

Scopes: TypeAlias = frozenset[str]

SCOPES = {
    "read": "read pages, series and exports where reading is not public",
    "upload": "upload results",
    "run": "request and cancel runs",
    "accept": "accept, dismiss and mute regressions",
    "rules": "change rules, targets and streams",
    "hosts": "attach and control hosts, change schedules",
    "host": "claim and deliver tasks; for an attached host",
    "admin": "everything but the tasks of a host",
}


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
    Role.ADMIN: _OPERATOR | {"admin"},
}

# What a URL may need apart from a scope:
OPEN = "open"  # nothing
LOGIN = "login"  # a login with any role
STAFF = "staff"  # Django's staff; its pages check Django's permissions themselves
QUEUES = "django_rq.admin"  # Django's staff with this permission
# and `read`, which everybody has if HUD_PUBLIC_READ is set.

# What each method needs, and the names of the URLs that need it. HEAD is as GET; other methods are refused.
# `namespace:*` holds for the rest of it. An API path of several methods has the name of its first operation.
_ROUTES: tuple[tuple[dict[str, str], str], ...] = (
    (
        {"GET": "read"},
        """
        overview overview_data compilers suites suite experiment code limits compare search funnel metrics
        runs run run_live run_log run_artifact regressions rules hosts hosts_live streams
        api:get_import api:get_log api:get_artifacts api:get_artifact api:get_experiments api:get_export
        api:get_result api:get_series api:get_attribution api:get_compare api:get_variant api:get_regressions
        api:get_causes api:get_bisect api:get_hosts api:get_queue api:get_streams
        """,
    ),
    ({"POST": "upload"}, "api:post_results"),
    # what one uploaded within a day; all with `run`
    ({"GET": "upload", "POST": "upload"}, "run_delete upload_delete"),
    ({"GET": "read", "DELETE": "upload"}, "api:get_run"),
    ({"DELETE": "upload"}, "api:delete_upload"),
    ({"POST": "run"}, "suite_rerun rerun note_add note_delete run_cancel run_explain regression_bisect"),
    ({"POST": "run"}, "api:cancel_run api:post_bisect"),
    ({"GET": "read", "POST": "run"}, "api:get_runs api:get_annotations"),
    ({"DELETE": "run"}, "api:delete_annotation"),
    ({"POST": "accept"}, "known_failure_mark known_failure_forget regression_act regressions_act"),
    ({"GET": "read", "POST": "accept"}, "api:get_known_failures api:post_regression api:get_cause"),
    ({"DELETE": "accept"}, "api:delete_known_failure"),
    ({"GET": "rules"}, "notifications"),  # an address may be a secret
    ({"POST": "rules"}, "rule_save rule_delete webhook_create webhook_act alias_remove stream_act"),
    ({"GET": "rules", "POST": "rules"}, "rename"),  # texts that name no device; all with `admin`
    ({"GET": "read", "PUT": "rules"}, "api:get_rules"),
    ({"PUT": "rules"}, "api:put_stream"),
    ({"POST": "hosts"}, "host_token host_act schedule_act schedule_delete"),
    ({"POST": "hosts"}, "api:post_token api:drain api:pause api:resume api:detach"),
    ({"GET": "read", "POST": "hosts"}, "api:get_schedules"),
    ({"PUT": "hosts", "DELETE": "hosts"}, "api:put_schedule"),
    ({"GET": "admin"}, "audit api:get_audit"),
    ({"POST": "host"}, "host_api:beat host_api:claim host_api:progress host_api:finish"),
    ({"PUT": "host"}, "host_api:results host_api:log host_api:artifact"),
    ({"GET": LOGIN}, "keys"),
    # a key has scopes of its owner's role; one revokes one's own, all with `admin`
    ({"POST": LOGIN}, "key_create key_revoke logout"),
    ({"GET": OPEN}, "sign_on sign_on_callback healthz readyz"),
    ({"GET": OPEN}, "api:api-root api:openapi-json api:openapi-view"),
    ({"GET": OPEN}, "host_api:openapi-json host_api:openapi-view"),
    ({"GET": OPEN, "POST": OPEN}, "login admin:login"),
    ({"POST": OPEN}, "host_api:register"),  # by a registration token
    ({"GET": STAFF, "POST": STAFF}, "admin:*"),
    ({"GET": QUEUES, "POST": QUEUES}, "django_rq:*"),
)
ROUTES = {name: needs for needs, names in _ROUTES for name in names.split()}


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
