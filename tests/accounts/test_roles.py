"""Every URL, method and caller, compared with the table of `hud.accounts.roles`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client
from django.urls import URLResolver, get_resolver, path, resolve

from hud.accounts.keys import create_key
from hud.accounts.roles import LOGIN, OPEN, QUEUES, ROUTES, SCOPES, STAFF, Role, needs_of
from hud.models import Accelerator
from hud.urls import urlpatterns
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_run,
    create_task,
    create_user,
)
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OF_ROLE = {  # once more and by hand
    "viewer": {"read"},
    "uploader": {"read", "upload"},
    "operator": {"read", "upload", "run", "accept", "rules", "hosts"},
    "admin": {"read", "upload", "run", "accept", "rules", "hosts", "admin"},
}
VALUES = {"binary": "f" * 16, "uid": "6f1c9d4e-6a51-4d6e-9c1a-0123456789ab", "data_format": "json"}


@dataclass
class Caller:
    name: str
    scopes: set[str] = field(default_factory=set)
    user: User | None = None
    secret: str = ""

    def client(self) -> Client:
        """Return a client with the session or key, and with a valid CSRF token."""
        token = _get_new_csrf_string()
        headers = {"x-csrftoken": token}
        if self.secret:
            headers["authorization"] = f"Bearer {self.secret}"
        client = Client(enforce_csrf_checks=True, raise_request_exception=False, headers=headers)
        if self.user:
            client.force_login(self.user)
        client.cookies["csrftoken"] = token
        return client

    def may(self, need: str, method: str, *, api: bool, public: bool) -> bool:
        if need == OPEN or (need == "read" and public):
            return need == OPEN or not (api and self.name == "wrong key")
        if api:
            return need in self.scopes and (self.user is None or method == "GET")
        if self.user is None:
            return False
        if need in {STAFF, QUEUES}:
            return self.name == "admin" or (need == STAFF and self.user.is_staff)
        return need == LOGIN or need in self.scopes


def addresses() -> Iterator[str]:
    """Yield an address of every URL, with ids that nothing has."""

    def walk(resolver: URLResolver, before: str) -> Iterator[str]:
        for one in resolver.url_patterns:
            route = before + str(one.pattern)
            if isinstance(one, URLResolver):
                yield from walk(one, route)
            else:
                plain = re.sub(
                    r"\(\?P<(\w+)>.*\)|<(?:\w+:)?(\w+)>",
                    lambda found: VALUES.get(found[1] or found[2], "999999"),
                    route,
                )
                yield "/" + re.sub(r"[\^$?]", "", plain)

    yield from walk(get_resolver(), "")


def let_in(answer: Any) -> bool:
    to_login = answer.status_code == HTTPStatus.FOUND and answer["Location"].startswith("/login/")
    return not to_login and answer.status_code not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@pytest.fixture
def callers(accelerator: Accelerator) -> list[Caller]:
    plain, staff = User.objects.create_user("plain"), User.objects.create_user("staff", is_staff=True)
    found = [Caller("nobody"), Caller("wrong key", secret="hud_wrong")]
    found += [Caller(user.username, OF_ROLE["viewer"], user) for user in (plain, staff)]
    found += [Caller(role, OF_ROLE[role], create_user(f"a {role}", role)) for role in Role]
    for scope in SCOPES:
        host = accelerator.host if scope == "host" else None
        secret = create_key(name=scope, scopes=[scope], who="t", host=host)[1]
        found.append(Caller(f"key {scope}", OF_ROLE["admin"] if scope == "admin" else {scope}, secret=secret))
    return found


def one_of(callers: Sequence[Caller], turn: int) -> list[Caller]:
    """Return one caller, another each turn; none of none."""
    return [callers[turn % len(callers)]] if callers else []


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_every_caller_may_do_what_the_table_says_and_nothing_else(
    callers: list[Caller], redis_server: RedisServer, settings: Any, public: bool, each: bool
) -> None:
    """Everybody asks for the first URL of each kind and method; of the others one who may and one who may
    not, in turn, or `each`."""
    settings.HUD_PUBLIC_READ = public
    surprises, count = [], 0
    asked: set[tuple[bool, bool, str, str | None]] = set()
    clients = {caller.name: caller.client() for caller in callers}
    for address in addresses():
        name = resolve(address).view_name
        needs, api = needs_of(name), name.startswith(("api:", "host_api:", "metrics"))
        assert needs, f"{address} ({name}) stands in no row"
        of_data = "data_format" in resolve(address).kwargs  # of a page, for people and keys
        for method in METHODS:
            need = needs.get(method)
            if public and need != "read":  # as where reading is not public
                continue
            # a page takes no notice of keys, so one of them stands for all
            answers_keys = api or of_data
            asking = [one for one in callers if answers_keys or not one.secret or one.name == "key admin"]
            kind = api, of_data, method, need
            if need in {None, OPEN}:
                asking = callers[:3] if each else one_of(callers, count)
            elif kind in asked and not each:
                let = [
                    one
                    for one in asking
                    if one.may(str(need), method, api=api or (of_data and bool(one.secret)), public=public)
                ]
                asking = one_of(let, count) + one_of([one for one in asking if one not in let], count)
            asked.add(kind)
            for caller in asking:
                answer = clients[caller.name].generic(method, address, b"", "application/json")
                list(getattr(answer, "streaming_content", ()))  # an export ends when it is read
                count += 1
                if need is None:
                    as_said = answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED
                else:
                    by_key = api or (of_data and bool(caller.secret))
                    may = caller.may(need, method, api=by_key, public=public)
                    # Django may refuse a page of its own, for want of a permission
                    as_said = let_in(answer) == may or (may and need == STAFF)
                if not as_said or (answer.status_code >= 500 and need != QUEUES):
                    surprises.append((caller.name, method, address, answer.status_code))
                if "logout" in name:
                    clients[caller.name] = caller.client()
    assert not surprises
    assert count > (100 if public else 400)


def test_every_row_has_its_url() -> None:
    names = {resolve(address).view_name for address in addresses()}
    spaces = {f"{name.rpartition(':')[0]}:*" for name in names}
    assert set(ROUTES) <= names | spaces


def test_a_url_without_a_row_is_refused_to_everybody(client: Client, settings: Any) -> None:
    def view(_request: object) -> HttpResponse:
        return HttpResponse("open")

    settings.ROOT_URLCONF = (*urlpatterns, path("new/", view, name="new"))
    for method in ("GET", "POST"):
        assert client.generic(method, "/new/").status_code == HTTPStatus.FORBIDDEN
    client.force_login(create_user(role=Role.ADMIN))
    assert client.get("/new/").status_code == HTTPStatus.FORBIDDEN


def test_a_refusal_is_one_line_of_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.force_login(create_user("viewer"))
    assert client.get("/audit/").status_code == HTTPStatus.FORBIDDEN
    (record,) = caplog.records
    assert "/audit/" in record.getMessage()
    assert not record.exc_info


def test_staff_without_permissions_sees_nothing_and_with_one_that(
    client: Client, redis_server: RedisServer
) -> None:
    staff = User.objects.create_user("sam", is_staff=True)
    client.force_login(staff)
    index = client.get("/admin/").content.decode()
    assert "/admin/hud/" not in index
    assert "/admin/auth/user/" not in index
    for address in ("/admin/hud/schedule/", "/admin/auth/user/", "/django-rq/", "/django-rq/stats.json"):
        assert client.get(address).status_code == HTTPStatus.FORBIDDEN
    staff.user_permissions.add(
        Permission.objects.get(codename="admin", content_type__app_label="django_rq"),
        Permission.objects.get(codename="view_schedule"),
        Permission.objects.get(codename="change_user"),
    )
    assert client.get("/django-rq/").status_code == HTTPStatus.OK
    assert client.get("/admin/hud/schedule/").status_code == HTTPStatus.OK
    change = client.post(f"/admin/auth/user/{staff.pk}/change/", {"username": "sam", "role": "admin"})
    assert change.status_code == HTTPStatus.FORBIDDEN, "only admins give roles"


def test_an_admin_gives_roles_on_the_page_of_users(client: Client) -> None:
    client.force_login(create_user("ada", Role.ADMIN))
    olga = create_user("olga", Role.VIEWER)
    address, form = f"/admin/auth/user/{olga.pk}/change/", {"username": "olga", "is_active": "on"}
    for role in (Role.ADMIN, Role.UPLOADER):
        assert client.post(address, {**form, "role": role}).status_code == HTTPStatus.FOUND
        olga.refresh_from_db()
        is_admin = role is Role.ADMIN
        assert [group.name for group in olga.groups.all()] == [role]
        assert (olga.is_superuser, olga.is_staff, olga.is_active) == (is_admin, is_admin, True)
    added = {"username": "new", "password1": "open sesame 9", "password2": "open sesame 9"}
    assert client.post("/admin/auth/user/add/", {**added, "usable_password": "true"}).status_code == 302
    assert [group.name for group in User.objects.get(username="new").groups.all()] == [Role.VIEWER]


@pytest.mark.parametrize("role", ["", *Role])
def test_a_page_has_no_button_that_its_reader_may_not_press(client: Client, role: str) -> None:
    host, experiment = create_accelerator().host, create_experiment()
    run = create_run("running", device="cuda", experiment=experiment)
    create_task(run, state="running", accelerator=host.accelerators.get())
    if role:
        client.force_login(create_user(role=Role(role)))
    operates, is_admin = role in {"operator", "admin"}, role == "admin"
    for address, words, shown in (
        (
            f"/experiments/{experiment.pk}/",
            ">Rerun</button>",
            operates or not role,
        ),  # a visitor logs in first
        (f"/runs/{run.pk}/", "Cancel</button>", operates),
        ("/hosts/", "Create token</button>", operates),
        ("/hosts/", f"/hosts/{host.pk}/drain", operates),
        ("/", 'href="/keys/"', bool(role)),
        ("/", 'href="/audit/"', is_admin),
        ("/", 'href="/admin/auth/user/"', is_admin),
    ):
        assert (words in client.get(address).content.decode()) == shown, (address, words)
