"""The scopes of each role, and the scope that each URL and method needs.

`ROUTES` is the only place that says so. `hud.accounts.access` refuses what it does not permit, and a URL that
has no row in it; a test walks every URL, method and role.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from django.contrib.auth.models import AnonymousUser, User

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

# URL name → method → need. HEAD is as GET; other methods are refused. `namespace:*` holds for the rest of it.
# An API path with several methods has the name of its first operation.
ROUTES: dict[str, dict[str, str]] = {
    "overview": {"GET": "read"},
    "overview_data": {"GET": "read"},  # `/.json`
    "compilers": {"GET": "read"},
    "suites": {"GET": "read"},
    "suite": {"GET": "read"},
    "suite_rerun": {"POST": "run"},
    "experiment": {"GET": "read"},
    "rerun": {"POST": "run"},
    "note_add": {"POST": "run"},
    "note_delete": {"POST": "run"},
    "known_failure_mark": {"POST": "accept"},
    "known_failure_forget": {"POST": "accept"},
    "code": {"GET": "read"},
    "limits": {"GET": "read"},
    "compare": {"GET": "read"},
    "search": {"GET": "read"},
    "runs": {"GET": "read"},
    "run": {"GET": "read"},
    "run_live": {"GET": "read"},
    "run_log": {"GET": "read"},
    "run_artifact": {"GET": "read"},
    "run_cancel": {"POST": "run"},
    "run_explain": {"POST": "run"},
    "run_delete": {"GET": "upload", "POST": "upload"},  # what one uploaded within a day; all with `run`
    "upload_delete": {"GET": "upload", "POST": "upload"},  # likewise
    "regressions": {"GET": "read"},
    "regression_act": {"POST": "accept"},
    "regressions_act": {"POST": "accept"},  # of several
    "regression_bisect": {"POST": "run"},
    "rules": {"GET": "read"},
    "rule_save": {"POST": "rules"},
    "rule_delete": {"POST": "rules"},
    "funnel": {"GET": "read"},
    "notifications": {"GET": "rules"},  # an address may be a secret
    "webhook_create": {"POST": "rules"},
    "webhook_act": {"POST": "rules"},
    "rename": {"GET": "rules", "POST": "rules"},  # texts that name no device; all with `admin`
    "alias_remove": {"POST": "rules"},
    "hosts": {"GET": "read"},
    "hosts_live": {"GET": "read"},
    "host_token": {"POST": "hosts"},
    "host_act": {"POST": "hosts"},
    "schedule_act": {"POST": "hosts"},
    "schedule_delete": {"POST": "hosts"},
    "streams": {"GET": "read"},
    "stream_act": {"POST": "rules"},
    "keys": {"GET": LOGIN},
    "key_create": {"POST": LOGIN},  # with scopes of the owner's role
    "key_revoke": {"POST": LOGIN},  # one's own; all with the scope admin
    "audit": {"GET": "admin"},
    "login": {"GET": OPEN, "POST": OPEN},
    "sign_on": {"GET": OPEN},
    "sign_on_callback": {"GET": OPEN},
    "logout": {"POST": LOGIN},
    "healthz": {"GET": OPEN},
    "readyz": {"GET": OPEN},
    "metrics": {"GET": "read"},
    "api:api-root": {"GET": OPEN},
    "api:openapi-json": {"GET": OPEN},
    "api:openapi-view": {"GET": OPEN},
    "api:post_results": {"POST": "upload"},
    "api:get_import": {"GET": "read"},
    "api:post_run": {"POST": "run"},
    "api:get_run": {"GET": "read", "DELETE": "upload"},  # as run_delete
    "api:delete_upload": {"DELETE": "upload"},
    "api:cancel_run": {"POST": "run"},
    "api:get_log": {"GET": "read"},
    "api:get_artifacts": {"GET": "read"},
    "api:get_artifact": {"GET": "read"},
    "api:get_experiments": {"GET": "read"},
    "api:get_export": {"GET": "read"},
    "api:get_series": {"GET": "read"},
    "api:get_attribution": {"GET": "read"},
    "api:get_compare": {"GET": "read"},
    "api:get_variant": {"GET": "read"},
    "api:get_annotations": {"GET": "read", "POST": "run"},
    "api:delete_annotation": {"DELETE": "run"},
    "api:get_known_failures": {"GET": "read", "POST": "accept"},
    "api:delete_known_failure": {"DELETE": "accept"},
    "api:get_regressions": {"GET": "read"},
    "api:post_regression": {"POST": "accept", "GET": "read"},
    "api:get_causes": {"GET": "read"},
    "api:get_cause": {"GET": "read", "POST": "accept"},
    "api:post_bisect": {"POST": "run"},
    "api:get_bisect": {"GET": "read"},
    "api:get_rules": {"GET": "read", "PUT": "rules"},
    "api:get_hosts": {"GET": "read"},
    "api:get_queue": {"GET": "read"},
    "api:post_token": {"POST": "hosts"},
    "api:drain": {"POST": "hosts"},
    "api:pause": {"POST": "hosts"},
    "api:resume": {"POST": "hosts"},
    "api:detach": {"POST": "hosts"},
    "api:get_schedules": {"GET": "read", "POST": "hosts"},
    "api:put_schedule": {"PUT": "hosts", "DELETE": "hosts"},
    "api:get_streams": {"GET": "read"},
    "api:put_stream": {"PUT": "rules"},
    "api:get_audit": {"GET": "admin"},
    "api:register": {"POST": OPEN},  # by a registration token
    "api:beat": {"POST": "host"},
    "api:claim": {"POST": "host"},
    "api:progress": {"POST": "host"},
    "api:results": {"PUT": "host"},
    "api:log": {"PUT": "host"},
    "api:artifact": {"PUT": "host"},
    "api:finish": {"POST": "host"},
    "admin:login": {"GET": OPEN, "POST": OPEN},
    "admin:*": {"GET": STAFF, "POST": STAFF},
    "django_rq:*": {"GET": QUEUES, "POST": QUEUES},
}


def needs_of(url_name: str) -> dict[str, str] | None:
    """Return what each method of a URL needs, None if the URL has no row."""
    return ROUTES.get(url_name) or ROUTES.get(f"{url_name.rpartition(':')[0]}:*")


def role_of(*, superuser: bool, groups: Iterable[str]) -> Role:
    """Return the highest role of these groups. A login without one is a viewer, a superuser an admin."""
    known = [role for role in Role if role in set(groups)]
    return Role.ADMIN if superuser else known[-1] if known else Role.VIEWER


def role_of_user(user: User) -> Role:
    """Return a person's role; 1 query unless it is a superuser."""
    groups = [] if user.is_superuser else user.groups.values_list("name", flat=True)
    return role_of(superuser=user.is_superuser, groups=groups)


def scopes_of_user(user: User | AnonymousUser) -> Scopes:
    return ROLE_SCOPES[role_of_user(user)] if isinstance(user, User) and user.is_active else frozenset()


def scopes_of_key(scopes: Iterable[str], owner: Role | None) -> Scopes:
    """Return what a key may do now: its scopes, as far as its owner's role still has them."""
    held = frozenset(scopes)
    if "admin" in held:
        held |= frozenset(SCOPES) - {"host"}
    return held if owner is None else held & ROLE_SCOPES[owner]
