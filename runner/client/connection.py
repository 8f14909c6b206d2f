"""HTTP to a hud with a key: errors as exceptions, and retries. Standard library only."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, Union
from urllib.parse import urlsplit

TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_TRY_LATER = (408, 425, 429)  # and everything from 500 on

T = TypeVar("T")
# a mapping is sent as JSON; the wheel takes Python 3.9
Body = Union[bytes, Mapping[str, Any], None]  # noqa: UP007
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WrongUsage(ValueError):
    """A call that cannot be made: no address of a hud, or values that do not fit each other."""


class HudError(Exception):
    """The HUD did not do what was asked."""


class Unreachable(HudError):
    """No answer, or one that says "later": the same call may succeed later."""

    def __init__(self, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Untrusted(HudError):
    """The certificate of the HUD is not one that this machine trusts: somebody has to look."""


class Refused(HudError):
    """An error that repeating will not change."""

    def __init__(self, status: int, detail: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.problem = problem


class KeyRefused(Refused):
    """The key (or token) is unknown or revoked, or may not do this."""


class Connection:
    """The HUD at an address."""

    def __init__(self, url: str, key: str = "", *, timeout_s: float = TIMEOUT_S, ca: str = "") -> None:
        """`ca` is a PEM file of the authority of its certificate, by default one that this machine trusts.
        Raise WrongUsage if the URL is no http(s) address, or the file none of certificates."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise WrongUsage(f"{url!r} is no address of a hud; it looks like http://hud.example.org:8000")
        self.url = url.rstrip("/")
        self._key = key
        self.timeout_s = timeout_s
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if ca:
            try:
                handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)))
            except OSError as error:
                raise WrongUsage(f"{ca} has no certificate of an authority: {error}") from None
        if parts.hostname in {"localhost", "::1"} or parts.hostname.startswith("127."):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def call(
        self, method: str, path: str, body: Body = None, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> dict[str, Any]:
        """Send one request to a path of the HUD, a mapping as JSON; return the object that it answers, or {}.
        Raise HudError."""
        return _object(self.send(method, path, body, headers=headers))

    def send(
        self, method: str, path: str, body: Body = None, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        """As `call`; return whatever it answers."""
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        kind = "application/json" if isinstance(body, Mapping) else "application/octet-stream"
        headers = {"Content-Type": kind, "Accept": "application/json", **headers}
        headers.update({"Authorization": f"Bearer {self._key}"} if self._key else {})
        # http or https, as __init__ has checked
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise error_of(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLCertVerificationError):
                detail = f"the certificate of {self.url} is not trusted: {reason.verify_message}"
                raise Untrusted(f"{detail}; name the file of its authority: attach --ca FILE") from error
            raise Unreachable(f"{self.url} does not answer: {reason}") from error
        return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: a redirected POST would arrive as a GET."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def with_retries(call: Callable[[], T], *, patience_s: float, stop: Callable[[], bool] = lambda: False) -> T:
    """Repeat a call while the HUD is unreachable, with growing random pauses, at least as long as it says in
    `Retry-After`; then raise Unreachable."""
    until = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Unreachable as error:  # noqa: PERF203 - this loop is there for it
            wait_s = max(random.uniform(0.5, 1.0) * pause_s, error.retry_after_s)  # noqa: S311 - a pause
            if stop() or time.monotonic() + wait_s > until:
                raise
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def error_of(error: urllib.error.HTTPError) -> HudError:
    """Return the exception for an error answer."""
    with error:
        try:
            problem = _object(error.read(2**16))
        except (OSError, http.client.HTTPException):
            problem = {}
    detail = str(problem.get("detail") or error.reason)
    is_quota = problem.get("code") == "quota"  # used up until tomorrow
    if (error.code in _TRY_LATER or error.code >= 500) and not is_quota:
        wait = error.headers.get("Retry-After") or ""  # in seconds; its other form, a date, is ignored
        detail += f" ({error.url})" if error.code == 500 else ""  # of many requests of a gate
        return Unreachable(f"{error.code}: {detail}", min(float(wait), 60.0) if wait.isdecimal() else 0.0)
    if error.code == 413 and problem.get("status") != 413:
        detail = "a proxy before the hud refuses a body of this size: raise its limit"
        return Unreachable(f"413: {detail} (client_max_body_size of nginx, docs/deploying.md)", float("inf"))
    if 300 <= error.code < 400:
        detail = f"the hud is at another address: {error.headers.get('Location')} (attach --move URL)"
    kind = KeyRefused if error.code in {401, 403} else Refused
    return kind(error.code, detail, problem)


def _object(text: bytes) -> dict[str, Any]:
    """Return a JSON object, or {} for anything else, such as a proxy's error page."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
