"""Write the gate's answer as the one comment of a pull request that begins with its mark, new or changed."""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

MARK = "<!-- compiler-hud gate -->"
MOST = 65_000  # characters of a comment


def call(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """Call GitHub's API; return what it answers."""
    headers = {"Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"}
    headers["Accept"] = "application/vnd.github+json"
    data = json.dumps(body).encode() if body else None
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{path}"
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - GitHub's own address
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.load(response)


def main(pull_request: str, answer: str) -> None:
    body = {"body": f"{MARK}\n{Path(answer).read_text()}"[:MOST]}
    page = 1
    while comments := call("GET", f"{pull_request}/comments?per_page=100&page={page}"):
        for comment in comments:
            if comment["body"].startswith(MARK):
                call("PATCH", f"comments/{comment['id']}", body)
                return
        page += 1
    call("POST", f"{pull_request}/comments", body)


if __name__ == "__main__":
    main(*sys.argv[1:])
