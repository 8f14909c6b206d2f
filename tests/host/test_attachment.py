"""Where a host is attached: certificates of an authority of one's own, and a hud that has moved."""

from __future__ import annotations

import argparse
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.client.connection import Refused, Unreachable, Untrusted, WrongUsage
from runner.host.attach import add_arguments, attachment_of
from runner.host.client import Hud
from runner.schema.suite import BadRequest
from tests.host.fake_hud import KEY, TOKEN, Answer, FakeHud, problem


@pytest.fixture
def fake() -> Iterator[FakeHud]:
    hud = FakeHud()
    yield hud
    hud.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of its own authority for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("ca")
    paths = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=hud", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-out", str(paths[0]), "-keyout", str(paths[1])),
        ],
        check=True,
        capture_output=True,
    )
    return paths


@pytest.fixture
def over_tls(fake: FakeHud, certificate: tuple[Path, Path]) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    assert fake._server
    fake._server.socket = context.wrap_socket(fake._server.socket, server_side=True)
    return fake.url.replace("http:", "https:")


def attach(data: Path, *arguments: str) -> tuple[str, str]:
    """Return the address and the key of a command line's attachment."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    attachment = attachment_of(parser.parse_args(arguments), data)
    return attachment.hud, attachment.key


def test_an_untrusted_certificate_is_said_at_once(
    over_tls: str, fake: FakeHud, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="--ca"):
        attach(tmp_path, "--hud", over_tls, "--token", TOKEN)
    assert fake.tokens == {TOKEN}, "the token is not spent"
    with pytest.raises(Untrusted):
        Hud(over_tls, KEY).claim(1, "n")
    with pytest.raises(WrongUsage):
        attach(tmp_path, "--hud", over_tls, "--token", TOKEN, "--ca", str(certificate[1]))
    address, key = attach(tmp_path, "--hud", over_tls, "--token", TOKEN, "--ca", str(certificate[0]))
    assert Hud(over_tls, key, ca=str(certificate[0])).claim(1, "n") is None
    stored = json.loads((tmp_path / "registration.json").read_text())
    assert (stored["hud"], stored["ca"]) == (address, str(certificate[0]))
    attach(tmp_path)  # as the next start
    assert json.loads((tmp_path / "registration.json").read_text()) == stored


def test_a_host_moves_with_its_hud(fake: FakeHud, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        attach(tmp_path, "--move", fake.url)
    address, key = attach(tmp_path, "--hud", fake.url, "--token", TOKEN)
    moved = address.replace("127.0.0.1", "localhost")
    with pytest.raises(BadRequest, match="--move"):
        attach(tmp_path, "--hud", moved)
    assert attach(tmp_path, "--move", f"{moved}/") == (moved, key)
    assert attach(tmp_path) == attach(tmp_path, "--hud", moved, "--token", TOKEN) == (moved, key)
    assert fake.calls.count("POST hosts/register") == 1


@pytest.mark.parametrize(("by_hud", "error"), [(False, Unreachable), (True, Refused)])
def test_what_a_proxy_finds_too_large_is_tried_again(
    fake: FakeHud, monkeypatch: pytest.MonkeyPatch, by_hud: bool, error: type[Exception]
) -> None:
    def refuse(*_arguments: object) -> None:
        raise problem(413, "too large") if by_hud else Answer(413, {"error": "a page of nginx"})

    monkeypatch.setattr(fake, "answer", refuse)
    with pytest.raises(error):
        Hud(fake.url, KEY).claim(1, "n")
