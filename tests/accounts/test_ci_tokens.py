"""Keys for the identity tokens of CI jobs, against an issuer with the public shapes of GitHub's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client

from hud.accounts import ci_tokens
from hud.models import ApiKey, Audit, Stream
from hud.settings import scopes_by_repository

pytestmark = pytest.mark.django_db
_AUDIENCE = "https://hud.example.org"
_OURS, _FOREIGN = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _key in range(2))
_PUBLIC = _OURS.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


class Issuer(HTTPServer):
    """Answer the keys of GitHub, and count who asks for what."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(_OURS.public_key()))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"keys": [{**own, "kid": "k1", "alg": "RS256", "use": "sig"}]}).encode())

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def issuer(settings: Any) -> Iterator[Issuer]:
    server = Issuer()
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    settings.HUD_GITHUB_ISSUER, settings.HUD_PUBLIC_URL = server.url, _AUDIENCE
    settings.HUD_GITHUB_REPOSITORIES = scopes_by_repository("o/r=read,upload,run o/viewer=read")
    yield server
    server.shutdown()
    server.server_close()


def token(
    issuer: Issuer, *, key: Any = _OURS, algorithm: str = "RS256", kid: str = "k1", **other: Any
) -> str:
    """Return a token as GitHub makes it, but for these claims; None leaves one out."""
    now = int(time.time())
    claims = {
        "iss": issuer.url,
        "aud": _AUDIENCE,
        "sub": "repo:o/r:pull_request",
        "repository": "o/r",
        "repository_owner": "o",
        "event_name": "pull_request",
        "jti": "1",
        "iat": now,
        "nbf": now,
        "exp": now + 300,
        **other,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    headers = {"kid": kid, "jku": f"{issuer.url}/evil", "x5u": f"{issuer.url}/evil"}
    return str(jwt.encode(claims, key, algorithm=algorithm, headers=headers))


def exchange(client: Client, text: str) -> Any:
    return client.post("/api/v1/keys/github", {"token": text}, content_type="application/json")


def test_a_job_gets_a_key_of_an_hour_with_the_scopes_of_its_repository(
    client: Client, issuer: Issuer
) -> None:
    answer = exchange(client, token(issuer))
    assert answer.status_code == 201, answer.content
    assert answer.json()["scopes"] == ["read", "run", "upload"]
    key = ApiKey.objects.get()
    assert (key.name, key.owner, key.stream) == ("github o/r", None, Stream.objects.get(name="github-o-r"))
    assert key.expires
    assert timedelta(minutes=59) < key.expires - datetime.now(UTC) <= timedelta(hours=1)
    assert Audit.objects.get(action="key.create").who == "github o/r"
    headers = {"authorization": f"Bearer {answer.json()['key']}"}
    assert client.get("/api/v1/runs", headers=headers).status_code == 200
    assert client.get("/api/v1/audit", headers=headers).status_code == 403
    ApiKey.objects.update(expires=datetime.now(UTC) - timedelta(seconds=1))
    assert client.get("/api/v1/runs", headers=headers).status_code == 401
    assert exchange(client, token(issuer, repository="o/viewer")).json()["scopes"] == ["read"]
    ApiKey.objects.update(expires=datetime.now(UTC) - timedelta(days=31))
    assert exchange(client, token(issuer)).status_code == 201
    assert ApiKey.objects.count() == 1


def _unsigned(issuer: Issuer) -> str:
    return token(issuer, key=None, algorithm="none")


def _by_the_public_key(issuer: Issuer) -> str:
    """Sign by HMAC with the public key as its secret, which PyJWT itself refuses to do."""
    head, body, _signature = token(issuer).split(".")
    forged = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "k1"}).encode()).decode()
    signer = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = jwt.utils.base64url_encode(signer.sign(f"{forged}.{body}".encode(), _PUBLIC)).decode()
    assert head != forged
    return f"{forged}.{body}.{signature}"


def _of_another_body(issuer: Issuer) -> str:
    (head, _body, signature), other = token(issuer).split("."), token(issuer, repository="o/viewer")
    return f"{head}.{other.split('.')[1]}.{signature}"


@pytest.mark.parametrize(
    ("forged", "status"),
    [
        (lambda issuer: token(issuer, key=_FOREIGN), 401),
        (_unsigned, 401),
        (_by_the_public_key, 401),
        (_of_another_body, 401),
        (lambda issuer: token(issuer, kid="k2"), 401),
        (lambda issuer: token(issuer, aud="https://github.com/o"), 401),
        (lambda issuer: token(issuer, aud=[]), 401),
        (lambda issuer: token(issuer, aud=None), 401),
        (lambda issuer: token(issuer, iss="https://token.actions.githubusercontent.com"), 401),
        (lambda issuer: token(issuer, exp=int(time.time()) - 60), 401),
        (lambda issuer: token(issuer, exp=None), 401),
        (lambda issuer: token(issuer, nbf=int(time.time()) + 600), 401),
        (lambda issuer: token(issuer, repository=None), 401),
        (lambda _issuer: "no.token.atall", 401),
        (lambda issuer: token(issuer, repository="evil/r"), 403),
        (lambda issuer: token(issuer, repository="o/r/x"), 403),
        (lambda issuer: token(issuer, repository="O/R"), 403),
        (lambda issuer: token(issuer, repository=["o/r"]), 403),
    ],
)
def test_what_the_issuer_did_not_say_for_us_gets_nothing(
    client: Client, issuer: Issuer, forged: Callable[[Issuer], str], status: int
) -> None:
    assert exchange(client, forged(issuer)).status_code == status
    assert not ApiKey.objects.exists()
    assert {*issuer.asked} <= {"/.well-known/jwks"}  # wherever the token says that its keys are


def test_guesses_are_limited_and_the_issuer_is_not_asked_for_each(
    client: Client, issuer: Issuer, settings: Any
) -> None:
    settings.HUD_WRONG_KEYS = 3
    answers = [exchange(client, token(issuer, kid=f"g{n}")).status_code for n in range(6)]
    assert answers == [401, 401, 401, 429, 429, 429]
    assert len(issuer.asked) <= 2


def test_no_answer_of_the_issuer_and_no_rule(client: Client, issuer: Issuer, settings: Any) -> None:
    settings.HUD_GITHUB_REPOSITORIES = {}
    assert exchange(client, token(issuer)).status_code == 403
    text = token(issuer)
    ci_tokens._keys_of.cache_clear()
    settings.HUD_GITHUB_ISSUER = "http://127.0.0.1:9"
    assert exchange(client, text).status_code == 503


@pytest.mark.parametrize("rule", ["o/r", "o/r=", "o/r=admin", "o/r=read,hosts", "o=read", "*/r=read"])
def test_a_rule_gives_named_scopes_to_one_repository(rule: str) -> None:
    with pytest.raises(ValueError, match="HUD_GITHUB_REPOSITORIES"):
        scopes_by_repository(rule)
