"""Print a key of the HUD for the identity token of this job, which needs `permissions: id-token: write`."""

import json
import os
import sys
import urllib.request
from typing import Any
from urllib.parse import quote


def call(url: str, headers: dict[str, str], body: dict[str, str] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - GitHub's address, and the HUD's
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.load(response)


def main() -> None:
    hud = os.environ["HUD_URL"].rstrip("/")
    asked = f"{os.environ['ACTIONS_ID_TOKEN_REQUEST_URL']}&audience={quote(hud, safe='')}"
    secret = os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]
    token = call(asked, {"Authorization": f"Bearer {secret}"})["value"]
    answer = call(f"{hud}/api/v1/keys/github", {"Content-Type": "application/json"}, {"token": token})
    sys.stdout.write(answer["key"])


if __name__ == "__main__":
    main()
