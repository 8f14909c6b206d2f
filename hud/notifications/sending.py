"""Send one request to a webhook. Its host is resolved once, and the connection goes to just the address that
was checked: no private one, no redirect, ten seconds, a bounded answer."""

import base64
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

LIMIT_S = 10.0  # for all of a request
_MOST_ANSWER_BYTES = 4096
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_RESERVED = [ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
_PORTS = {"http": 80, "https": 443}
SECRET_PREFIX = "whsec_"  # noqa: S105 - of Standard Webhooks, no secret


class CannotSend(Exception):
    """No answer came. The text says why."""


@dataclass(frozen=True)
class WebhookAnswer:
    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def check_address(url: str, *, private: bool) -> list[tuple[str, int]]:
    """Return the addresses, with the port, of a webhook's URL. Raise CannotSend if it is none of HTTP, does
    not resolve, or leads to an address that is not public and may not be `private`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise CannotSend(f"this is no URL: {error}") from error
    if parts.scheme not in _PORTS or not host or parts.username or parts.password:
        raise CannotSend("the URL must begin with https:// or http:// and a host, without a login")
    try:
        answers = socket.getaddrinfo(host, port or _PORTS[parts.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotSend(f"{host} has no address: {error}") from error
    addresses = list(dict.fromkeys((str(address[0]), int(address[1])) for *_kind, address in answers))
    if not private:
        for address, _port in addresses:  # one private address among public ones is a trap too
            if not _is_public(address):
                raise CannotSend(f"{host} leads to {address}, which is not public; see HUD_WEBHOOK_PRIVATE")
    return addresses


def post(
    url: str, body: bytes, headers: dict[str, str], *, private: bool, begin: Callable[[], object]
) -> WebhookAnswer:
    """Send a body; `begin` is called once the connection is there. Raise CannotSend if no answer comes."""
    deadline = time.monotonic() + LIMIT_S
    addresses, parts = check_address(url, private=private), urlsplit(url)
    host, port = str(parts.hostname), addresses[0][1]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        plain, secured = _connect(addresses, deadline), None
        connection = http.client.HTTPConnection(host, port)
        connection.sock = plain
        with closing(connection):
            if parts.scheme == "https":
                # the certificate is that of the name, the connection that of the address
                context = ssl.create_default_context()
                connection.sock = secured = context.wrap_socket(
                    plain, server_hostname=host, do_handshake_on_connect=False
                )
            with _ended_at(deadline, connection.sock):
                if secured:
                    secured.do_handshake()
                headers = {"Host": parts.netloc, "User-Agent": "compiler-hud", **headers}
                begin()
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                text = answer.read(_MOST_ANSWER_BYTES).decode("utf-8", "replace").replace("\0", "")
                return WebhookAnswer(answer.status, text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = time.monotonic() >= deadline
        reason = f"no answer within {LIMIT_S:g} s" if late else str(error) or type(error).__name__
        raise CannotSend(reason) from error


def _connect(addresses: Sequence[tuple[str, int]], deadline: float) -> socket.socket:
    """Return a connection to the first of these addresses that takes one."""
    *others, last = addresses
    for address in others:
        with suppress(OSError):
            return socket.create_connection(address, timeout=_left_s(deadline) / 2)
    return socket.create_connection(last, timeout=_left_s(deadline))


@contextmanager
def _ended_at(deadline: float, stream: socket.socket) -> Iterator[None]:
    """End the connection at the deadline: a socket's own limit begins anew with each byte."""

    def end() -> None:
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_left_s(deadline), end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` of Standard Webhooks."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    digest = hmac.new(secret_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def secret_key(secret: str) -> bytes:
    """Return the 24 to 64 bytes of a secret, `whsec_` and base64. Raise ValueError for another one."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    if not 24 <= len(key) <= 64:
        raise ValueError("a secret has 24 to 64 bytes")
    return key


def _is_public(address: str) -> bool:
    """Return whether an address is one of the public internet, also where IPv6 wraps one of IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is None and ip not in _GLOBAL_UNICAST:
            return False
        ip = wrapped or ip
    # Python 3.11 takes some of those that are reserved for global
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _RESERVED)


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"no answer within {LIMIT_S:g} s")
    return left
