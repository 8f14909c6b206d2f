"""Refuse what `hud.accounts.roles` does not permit, for pages and API alike, and too many wrong guesses."""

import hashlib
import ipaddress
import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.contrib.auth.forms import UsernameField
from django.contrib.auth.signals import user_logged_in
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.urls import is_valid_path, resolve, reverse
from django.utils.functional import SimpleLazyObject

from hud.accounts.audit import client_address
from hud.accounts.keys import effective_scopes, find_key
from hud.accounts.limits import ADDRESS_PASSWORDS, ALL_PASSWORDS, KEYS, PASSWORDS
from hud.accounts.roles import LOGIN, OPEN, QUEUES, STAFF, Scopes, needs_of, scopes_of_user
from hud.models import ApiKey
from hud.problems import Problem

logger = logging.getLogger(__name__)
_HASHING = threading.BoundedSemaphore(2)  # passwords that one process checks at once
_READING = {"GET", "HEAD"}
_BY_KEY = ("api:", "host_api:", "metrics")  # begin the URL names that answer keys, and problem+json
GetResponse = Callable[[HttpRequest], HttpResponse]
_View = TypeVar("_View", bound=Callable[..., HttpResponse])


def after_login(address: Callable[..., str]) -> Callable[[_View], _View]:
    """Say where a visitor goes on who pressed a button, was sent to the login, and is back, if that is not
    the page with the button: `address` takes the request and the URL's arguments."""

    def mark(view: _View) -> _View:
        view.after_login = address  # type: ignore[attr-defined]
        return view

    return mark


class AccessMiddleware:
    """Check every request against the table of roles before its view is called.

    `request.scopes` has the scopes of the person, `request.api_key` the key of the API's caller or None.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.scopes = SimpleLazyObject(lambda: scopes_of_user(request.user))  # type: ignore[attr-defined]
        request.api_key = None  # type: ignore[attr-defined]
        token = client_address.set(address_of(request))
        try:
            return self.get_response(request)
        finally:
            client_address.reset(token)
            if getattr(request, "hashes", False):
                _HASHING.release()

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: list[Any], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        match = request.resolver_match
        name = match.view_name if match and match.view_name else ""
        needs = needs_of(name)
        if needs is None:
            logger.error("no row of hud/accounts/roles.toml permits %s (%s)", request.path, name)
            raise PermissionDenied
        need = needs.get("GET" if request.method == "HEAD" else request.method or "")
        if need is None:
            return HttpResponseNotAllowed(sorted({*needs, "HEAD"} if "GET" in needs else needs))
        if need == OPEN:
            return _refuse_guess(request)
        has_key = request.META.get("HTTP_AUTHORIZATION", "").lower().startswith("bearer ")
        if name.startswith(_BY_KEY) or (has_key and kwargs.get("data_format")):
            return _refuse_caller(request, need)
        return _refuse_visitor(request, need, view, kwargs)


def scopes_of(request: HttpRequest) -> Scopes:
    scopes: Scopes = request.scopes  # type: ignore[attr-defined]
    return scopes


def may(request: HttpRequest) -> dict[str, Any]:
    """Give every template `may`, the scopes of the person: `{% if "run" in may %}`."""
    return {"may": getattr(request, "scopes", frozenset())}


def form_as_it_was(request: HttpRequest) -> str:
    """Return the fields of a form as a query string, so that the page can fill it in again."""
    return urlencode(
        {name: text for name, text in request.POST.items() if text and name != "csrfmiddlewaretoken"}
    )


def _refuse_visitor(
    request: HttpRequest, need: str, view: Callable[..., Any], kwargs: dict[str, Any]
) -> HttpResponse | None:
    """Send a visitor to the login. Raise PermissionDenied for a person whose role lacks the need."""
    user = request.user
    if need == "read" and settings.HUD_PUBLIC_READ:
        return None
    if not user.is_authenticated:
        address = request.get_full_path()
        if request.method not in _READING:
            address = getattr(view, "after_login", _page_before)(request, **kwargs)
        return redirect_to_login(address)
    if need in {STAFF, QUEUES}:
        permitted = user.is_staff and (need == STAFF or user.has_perm(need))
    else:
        permitted = need == LOGIN or need in request.scopes  # type: ignore[attr-defined]
    if not permitted:
        raise PermissionDenied
    return None


def _page_before(request: HttpRequest, **_kwargs: Any) -> str:
    """Return the page of ours with the button that a visitor pressed, else the overview."""
    before = urlsplit(request.headers.get("Referer", ""))
    is_ours = before.netloc == request.get_host() and is_valid_path(before.path)
    if not is_ours or "GET" not in (needs_of(resolve(before.path).view_name) or {}):
        return "/"
    return urlunsplit(before._replace(scheme="", netloc=""))


def _refuse_caller(request: HttpRequest, need: str) -> HttpResponse | None:
    """Return the problem of a request whose key lacks the need. Without a key, everybody has public reading,
    and a session may read what its role permits."""
    try:
        key = key_of(request)
    except Problem as problem:
        return problem.response()
    request.api_key = key  # type: ignore[attr-defined]
    if need == "read" and settings.HUD_PUBLIC_READ:
        return None
    if key is not None:
        scopes = effective_scopes(key)
    elif request.method in _READING and request.user.is_authenticated:
        scopes = request.scopes  # type: ignore[attr-defined]
    else:
        return Problem(401, "this needs a key: Authorization: Bearer KEY").response()
    if need not in scopes:
        return Problem(403, f"this {'key' if key else 'login'} has not the scope {need}").response()
    return None


def key_of(request: HttpRequest) -> ApiKey | None:
    """Return the request's key, None if it has none. Raise Problem 401 for an invalid key, 429 after too many
    of them from one address."""
    header = request.headers.get("Authorization", "")
    if not header:
        return None
    scheme, _, secret = header.partition(" ")
    key = find_key(secret.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        KEYS.check(address_of(request))
        raise Problem(401, "this key is unknown, revoked or expired")
    return key


def address_of(request: HttpRequest) -> str:
    """Return the caller's address: the peer's, or the last one that a trusted proxy names.

    An IPv6 address counts as its /64 network, since one person has all of it.
    """
    address: str = request.META.get("REMOTE_ADDR", "")
    if address in settings.HUD_PROXIES:
        address = request.headers.get("X-Forwarded-For", address).rpartition(",")[2].strip()
    try:
        network = ipaddress.IPv6Network((address, 64), strict=False)
    except ValueError:
        return address[:100]
    return str(network)


def _refuse_guess(request: HttpRequest) -> HttpResponse | None:
    """Answer 429 to a login after too many wrong passwords, or while others are hashed.

    It is called after the CSRF check, so that what other sites send counts for nobody. An attempt counts
    before its password is checked, and no longer once that was right.
    """
    if request.method != "POST" or request.path not in {reverse("login"), reverse("admin:login")}:
        return None
    address, name = address_of(request), UsernameField().to_python(request.POST.get("username", "")) or ""
    account = hashlib.sha256(name.casefold().encode("utf-8", "surrogatepass")).hexdigest()[:32]
    limits = ((ADDRESS_PASSWORDS, address), (ALL_PASSWORDS, ""), (PASSWORDS, f"{address}:{account}"))
    request.counted_in = counted = []  # type: ignore[attr-defined]
    for limit, caller in limits:
        if wait_s := limit.take(caller):
            _uncount(request)
            break
        counted.append((limit, caller))
    else:
        request.hashes = _HASHING.acquire(blocking=False)  # type: ignore[attr-defined]
        if request.hashes:  # type: ignore[attr-defined]
            return None
        wait_s = 1
    answer = render(request, "429.html", {"wait_s": wait_s}, status=HTTPStatus.TOO_MANY_REQUESTS)
    answer["Retry-After"] = str(wait_s)
    return answer


@receiver(user_logged_in)
def _uncount(request: HttpRequest | None = None, **_more: Any) -> None:
    for limit, caller in getattr(request, "counted_in", ()):
        limit.take(caller, -1)
