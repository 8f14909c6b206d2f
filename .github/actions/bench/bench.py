"""Answer `/hud bench CASES`, a comment or a review of a pull request: compare its commit as a patch.

Only people who may write to the repository are heard, and only for the commit that they saw: that of their
review, or the head if nothing was pushed to its repository since their comment. Nothing of the comment but
names of cases goes anywhere.
"""

import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.client.connection import HudError
from runner.client.hud import Hud

_COMMAND = re.compile(r"/hud bench((?: [A-Za-z0-9][A-Za-z0-9_.-]{0,99}){1,10})\s*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAY_WRITE = {"admin", "maintain", "write"}
_DIFF = "application/vnd.github.diff"


class NotHeard(Exception):
    """A comment that is answered with the reason, and starts nothing."""


def call(path: str, body: dict[str, str] | None = None, accept: str = "application/vnd.github+json") -> str:
    """Call GitHub's API on this repository; return what it answers."""
    headers = {"Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}", "Accept": accept}
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}"
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - GitHub's own address
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        text: str = response.read().decode("utf-8", "replace")
        return text


def commit_of(comment: dict[str, Any], pull_request: dict[str, Any]) -> str:
    """Return the commit that who commented saw. Raise NotHeard where it may be another by now."""
    if seen := comment.get("commit_id"):
        return str(seen)
    head = pull_request["head"]
    pushed = (head["repo"] or {}).get("pushed_at") or "9"
    if pushed >= comment["created_at"]:
        raise NotHeard("something was pushed since this comment: say it again, or in a review of the commit")
    return str(head["sha"])


def measure(cases: list[str], number: int, comment: dict[str, Any]) -> str:
    """Start the comparison and wait for it; return the answer as Markdown. Raise NotHeard, HudError."""
    who = quote(comment["user"]["login"], safe="")
    permission = json.loads(call(f"collaborators/{who}/permission"))["permission"]
    if permission not in _MAY_WRITE:
        raise NotHeard("only who may write to this repository starts code on a host")
    pull_request = json.loads(call(f"pulls/{number}"))
    commit, base = commit_of(comment, pull_request), str(pull_request["base"]["sha"])
    if not (_COMMIT.fullmatch(commit) and _COMMIT.fullmatch(base)):
        raise NotHeard("GitHub names no commit")
    body = {
        "suite": os.environ["SUITE"],
        "cases": cases,
        "environment": os.environ["ENVIRONMENT"],
        "overlay": {"patch": call(f"compare/{base}...{commit}", accept=_DIFF)},
        "draws": int(os.environ["DRAWS"]),
        "commit": commit,
        "pull_request": number,
        "class": "ci",
    }
    hud = Hud()
    run = hud.start(body)
    result = hud.result(run, time.monotonic() + 60 * float(os.environ["BUDGET"]))
    if result["state"] in {"queued", "running"}:
        hud.cancel(run)
        raise NotHeard(f"run {run} did not end in {os.environ['BUDGET']} minutes")
    answer = result["verdict"] or result["state"]
    link = hud.link(f"runs/{run}/")
    return f"**{answer}**: {', '.join(cases)} at {commit[:12]}, {result['pairs']} draws ([run {run}]({link}))"


def main() -> None:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())
    comment = event.get("comment") or event.get("review") or {}
    number = (event.get("pull_request") or event.get("issue") or {}).get("number")
    is_new = event.get("action") in {"created", "submitted"}  # an edited one is not what was seen
    is_of_pull_request = "pull_request" in event or "pull_request" in event.get("issue", {})
    command = _COMMAND.fullmatch(comment.get("body") or "")
    if not (command and is_new and is_of_pull_request):
        return
    try:
        answer = measure(command[1].split(), int(number), comment)
    except (NotHeard, HudError) as error:
        answer = f"Not measured: {error}"
    sys.stdout.write(answer + "\n")
    call(f"issues/{int(number)}/comments", {"body": answer[:60_000]})


if __name__ == "__main__":
    main()
