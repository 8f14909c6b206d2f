"""Rate limits: on wrong passwords by account and address, by address and over all, on wrong keys by address.

Attempts are counted in Redis for all processes; while Redis is down, each process counts alone.
"""

import hashlib
import ipaddress
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth.forms import UsernameField
from django.contrib.auth.signals import user_logged_in
from django.core.cache.backends.locmem import LocMemCache
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from redis.exceptions import RedisError

from hud.hosts import queues

_OWN = LocMemCache("rate_limit", {"OPTIONS": {"MAX_ENTRIES": 10_000}})  # callers that one process remembers
_HASHING = threading.BoundedSemaphore(2)  # passwords that one process checks at once


class RateLimit:
    """Permit `most()` attempts of a caller, such as an address, within `window_s` of its first one."""

    def __init__(self, name: str, most: Callable[[], int], window_s: int) -> None:
        self._name, self._most, self._window_s = name, most, window_s

    def take(self, caller: str) -> int:
        """Count an attempt; return 0, or the seconds to wait after too many."""
        count, left_s = self._count(caller, 1)
        return 0 if count <= self._most() else max(1, left_s)

    def give_back(self, caller: str) -> None:
        """Take an attempt out of the count."""
        self._count(caller, -1)

    def _count(self, caller: str, change: int) -> tuple[int, int]:
        """Return the attempts within the window, and the seconds left of it."""
        key = f"hud:rate_limit:{self._name}:{caller}"
        try:
            with queues.connect() as redis, redis.pipeline() as steps:
                steps.set(key, 0, ex=self._window_s, nx=True)
                steps.incrby(key, change)
                steps.ttl(key)
                _, count, left_s = steps.execute()
                if left_s > self._window_s:  # its clock went back
                    redis.delete(key)
        except (RedisError, OSError):
            _OWN.add(key, 0, timeout=self._window_s)
            return _OWN.incr(key, change), self._window_s
        return int(count), int(left_s)


PASSWORDS = RateLimit("password", lambda: settings.HUD_WRONG_PASSWORDS, 300)
ADDRESS_PASSWORDS = RateLimit("address", lambda: 10 * settings.HUD_WRONG_PASSWORDS, 300)
ALL_PASSWORDS = RateLimit("all", lambda: 100 * settings.HUD_WRONG_PASSWORDS, 300)
KEYS = RateLimit("key", lambda: settings.HUD_WRONG_KEYS, 60)


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


class LoginRateLimitMiddleware(MiddlewareMixin):
    """Limit wrong passwords in the login forms of the site and of its admin pages, and how many passwords
    are hashed at once.

    It acts after the CSRF check, so that what other sites send counts for nobody. An attempt counts before
    its password is checked, and no longer once that was right.
    """

    def process_view(self, request: HttpRequest, *_view: Any) -> HttpResponse | None:
        if request.method != "POST" or request.path not in {reverse("login"), reverse("admin:login")}:
            return None
        address, name = address_of(request), UsernameField().to_python(request.POST.get("username", "")) or ""
        account = hashlib.sha256(name.casefold().encode("utf-8", "surrogatepass")).hexdigest()[:32]
        limits = ((PASSWORDS, f"{address}:{account}"), (ADDRESS_PASSWORDS, address), (ALL_PASSWORDS, ""))
        wait_s = next((wait_s for limit, caller in limits if (wait_s := limit.take(caller))), 0)
        if not wait_s:
            request.counted_in = limits  # type: ignore[attr-defined]
            request.hashes = _HASHING.acquire(blocking=False)  # type: ignore[attr-defined]
            if request.hashes:  # type: ignore[attr-defined]
                return None
            wait_s = 1
        answer = render(request, "429.html", {"wait_s": wait_s}, status=HTTPStatus.TOO_MANY_REQUESTS)
        answer["Retry-After"] = str(wait_s)
        return answer

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if getattr(request, "hashes", False):
            _HASHING.release()
        return response


@receiver(user_logged_in)
def _forget_right_password(request: HttpRequest | None = None, **_more: Any) -> None:
    for limit, caller in getattr(request, "counted_in", ()):
        limit.give_back(caller)
