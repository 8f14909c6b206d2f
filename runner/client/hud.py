"""The API of a HUD for programs: read it, upload results, start runs and wait for them."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from .connection import Body, Connection, Refused, WrongUsage, with_retries

PATIENCE_S = 60.0
_TIMEOUT_S = 120.0
_POLL_S = 1.0
_WAIT_S = 30  # of one request for the result of a run
_ENDED = {"succeeded", "failed", "timed_out", "lost", "cancelled"}

# Variables of GitHub's and of GitLab's CI that say what a parameter does; several make one value.
_CI_VARIABLES = {
    "commit": (("GITHUB_SHA",), ("CI_COMMIT_SHA",)),
    "branch": (("GITHUB_HEAD_REF",), ("GITHUB_REF_NAME",), ("CI_COMMIT_REF_NAME",)),
    "run_id": (("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"), ("CI_PIPELINE_ID", "CI_JOB_ID")),
    "repo": (("GITHUB_REPOSITORY",), ("CI_PROJECT_PATH",)),
}


def said_by_ci(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the upload parameters that the environment of a CI job says."""
    said = {}
    for parameter, choices in _CI_VARIABLES.items():
        values = ("-".join(filter(None, map(environ.get, names))) for names in choices)
        value = next(filter(None, values), "")
        if value:
            said[parameter] = value
    return said


def run_by_ci(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the environment of a CI job says of a run: commit, and pull request or else branch."""
    said = said_by_ci(environ)
    about: dict[str, Any] = {name: said[name] for name in ("commit", "branch") if name in said}
    of_github = re.match(r"refs/pull/(\d+)/", environ.get("GITHUB_REF", ""))
    number = of_github[1] if of_github else environ.get("CI_MERGE_REQUEST_IID", "")
    if number:
        about["branch"], about["pull_request"] = f"pull/{number}", int(number)
    return about


class Hud(Connection):
    """A HUD, by default that of the variables HUD_URL and HUD_KEY. Calls are repeated for up to `patience_s`
    while it cannot be reached."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, patience_s: float | None = None
    ) -> None:
        """Raise WrongUsage without an address."""
        address = url or os.environ.get("HUD_URL", "")
        if not address:
            raise WrongUsage("say which hud: --hud http://… or HUD_URL")
        super().__init__(address, key or os.environ.get("HUD_KEY", ""), timeout_s=_TIMEOUT_S)
        self.patience_s = PATIENCE_S if patience_s is None else patience_s

    def ask(self, method: str, path: str, body: Body = None, *, key: str = "") -> dict[str, Any]:
        """Call an operation of the API; with the same `key` it happens once. Raise HudError."""
        # one key for all tries, so that a run whose answer was lost is not started twice
        headers = {"Idempotency-Key": key or str(uuid.uuid4())} if isinstance(body, Mapping) else {}
        address = f"/api/v1/{path}"
        return with_retries(
            lambda: self.call(method, address, body, headers=headers), patience_s=self.patience_s
        )

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Read from the API; '' and None are left out of the query, a list is repeated."""
        return self.ask("GET", with_query(path, query))

    def page(self, path: str, **query: Any) -> dict[str, Any]:
        """Read the data of a page, such as `runs/12`."""
        address = "/" + with_query(f"{path}.json", query)
        return with_retries(lambda: self.call("GET", address), patience_s=self.patience_s)

    def link(self, path: str, **query: Any) -> str:
        """Return the address of a page for people."""
        return f"{self.url}/{with_query(path, query)}"

    def upload(self, filename: str, body: bytes, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Upload a results file; return the receipt, once it is imported. Raise Refused with the reason."""
        receipt = self.ask("POST", with_query("results", {"filename": filename, **parameters}), body)
        if "receipt" not in receipt:
            return receipt
        job = receipt
        while job["state"] in {"queued", "running"}:
            time.sleep(_POLL_S)
            job = self.get(f"imports/{quote(str(job['id']), safe='')}")
        if job["state"] == "failed":
            problem = dict(job["problem"] or {})
            raise Refused(422, str(problem.get("detail", "")), problem)
        imported: dict[str, Any] = job["receipt"]
        return imported

    def start(self, body: Mapping[str, Any]) -> int:
        """Start a run; return its number. Interrupted meanwhile, the run is cancelled."""
        key = str(uuid.uuid4())
        try:
            return int(self.ask("POST", "runs", body, key=key)["id"])
        except KeyboardInterrupt:  # it may have arrived
            self.cancel(int(self.ask("POST", "runs", body, key=key)["id"]))
            raise

    def cancel(self, run: int) -> None:
        self.ask("POST", f"runs/{run}/cancel")

    def result(self, run: int, until: float = 0.0) -> dict[str, Any]:
        """Return what came of a run, once it has ended or the clock `time.monotonic` is at `until`."""
        while True:
            left_s = until - time.monotonic()
            asked = time.monotonic()
            result = self.get(f"runs/{run}/result", wait=max(0, min(_WAIT_S, int(left_s))))
            if result["state"] in _ENDED or until <= time.monotonic():
                return result
            # where others wait already, it answers at once
            time.sleep(max(0.0, min(_POLL_S - (time.monotonic() - asked), until - time.monotonic())))


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with a query string of what is said."""
    said = {name: value for name, value in query.items() if value not in ("", None, [])}
    text = urlencode(said, doseq=True, quote_via=quote, safe="")
    return f"{path}?{text}" if text else path
