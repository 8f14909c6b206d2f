"""nginx with the site of `deploy/`, without TLS, in front of webs of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import ROOT, Hud, free_port
from tests.support.waiting import wait_for

SITE = ROOT / "deploy" / "nginx" / "compiler-hud.conf"


@contextmanager
def nginx(folder: Path, nodes: Sequence[Hud]) -> Iterator[str]:
    """Yield the address; `compiler-hud.json` in the folder is the access log."""
    port = free_port()
    site = SITE.read_text()
    site = (
        site[: site.index("server {\n    listen 80;")] + site[site.index("server {\n    listen 443 ssl;") :]
    )
    site = re.sub(r" *(ssl_\w+|listen \[).*\n", "", site).replace(
        "listen 443 ssl", f"listen 127.0.0.1:{port}"
    )
    upstream = "".join(f"    server 127.0.0.1:{node.port};\n" for node in nodes)
    site = re.sub(r" *server 127\.0\.0\.1:8000;.*\n", upstream, site)
    site = site.replace("server_name hud.example.org", "server_name 127.0.0.1")
    site = site.replace("$scheme", "https")  # as if it had ended TLS
    site = site.replace("/var/log/nginx", str(folder))
    folders = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root; " if os.geteuid() == 0 else ""  # else its workers may not keep large bodies here
    (folder / "nginx.conf").write_text(
        f"{user}pid {folder}/pid; error_log {folder}/error.log; daemon off; events {{}}"
        f" http {{ access_log off; {folders}\n{site}\n}}"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: status_of(f"{url}/healthz") == 200 or None, "nginx answers")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def status_of(url: str, data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
