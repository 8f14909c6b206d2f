"""The names under which the web answers, who is redirected to HTTPS, and what a page may load."""

import ipaddress
import platform
from collections.abc import Mapping

import psutil
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.middleware.security import SecurityMiddleware

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(environment: Mapping[str, str], *, production: bool) -> list[str]:
    """Return Django's ALLOWED_HOSTS: those of the variable, and this machine's own loopback names.

    Without the variable, in development: the names and addresses under which others reach `BIND`. A page of
    another site could otherwise point its own name here, and read what the visitor may read.
    """
    names = environment.get("ALLOWED_HOSTS", "").replace(",", " ").split()
    bind = environment.get("BIND") or "127.0.0.1"
    if not names and not production and bind not in {*_LOOPBACK, "::1"}:
        addresses = [address.address for card in psutil.net_if_addrs().values() for address in card]
        reached = addresses if bind in {"0.0.0.0", "::"} else [bind]  # noqa: S104 - compared  # nosec B104
        names = [platform.node()]
        names += [f"[{address.partition('%')[0]}]" if ":" in address else address for address in reached]
    return [*names, *_LOOPBACK]


class HttpsMiddleware(SecurityMiddleware):
    """Redirect to HTTPS, except this machine's own programs, which talk to the web over the loopback.

    A proxy on the same machine names the visitor in `X-Forwarded-…`, so its requests are redirected. Every
    answer has the same Content-Security-Policy.
    """

    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        forwarded = any(name.startswith("HTTP_X_FORWARDED_") for name in request.META)
        if not forwarded and _is_local(request):
            return None
        return super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response.headers["Content-Security-Policy"] = settings.CONTENT_SECURITY_POLICY
        return super().process_response(request, response)


def _is_local(request: HttpRequest) -> bool:
    peer = request.META.get("REMOTE_ADDR", "")
    try:
        loopback = ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
    return loopback or peer == request.META.get("SERVER_NAME")  # BIND=10.0.0.5, from the same machine
