"""The commits between which regressions moved: read from bare mirrors that an operator keeps, and stored."""

import logging
import re
import subprocess
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.conf import settings

from hud.judging.regressions.commits import HASH, ends
from hud.models import Commit, Regression
from hud.runs.overlays import git
from hud.states.regressions import TOLD
from runner.formats.scalars import INVISIBLE

logger = logging.getLogger(__name__)
MOST_COMMITS = 1000  # of a range
_MOST_RANGES, _ROUND_S = 50, 20
_DEPTH, _MOST_TOUCHED = 4, 60
_FIELDS = "%x01%H%x02%P%x02%at%x02%an%x02%s"
_UNSEEN = re.compile(r"[\x00-\x1f\x7f]+")


def fetch() -> int:
    """Store the commits of every range in which a waiting regression moved, and that is not known; return how
    many. Mirrors are only read."""
    if not settings.HUD_REPO_MIRRORS:
        return 0
    stored, until = 0, time.monotonic() + _ROUND_S
    waiting = Regression.objects.filter(state__in=TOLD).select_related("first_run", "last_good_run")
    ranges = list(dict.fromkeys(filter(None, map(ends, waiting.order_by("-since")[:500]))))
    known = set(Commit.objects.filter(sha__in=[head for _base, head in ranges]).values_list("sha", flat=True))
    for base, head in [pair for pair in ranges if pair[1] not in known][:_MOST_RANGES]:
        for repo, path in settings.HUD_REPO_MIRRORS.items():
            if time.monotonic() < until and (commits := _log(repo, path, base, head)):
                stored += store(commits)
                break
    return stored


def store(commits: Iterable[Commit]) -> int:
    """Store commits; return how many are new. One that is known stays as it is."""
    before = Commit.objects.count()
    Commit.objects.bulk_create(commits, ignore_conflicts=True)
    return Commit.objects.count() - before


def commit_of(*, title: str, author: str, files: Iterable[str], **fields: Any) -> Commit:
    """Return a commit with texts that can be shown, and its files cut to the depth at which folders tell."""
    touched = dict.fromkeys("/".join(_shown(file).split("/")[:_DEPTH])[:200] for file in files)
    title, author = _shown(title)[:300], _shown(author)[:150]
    return Commit(title=title, author=author, touched=list(touched)[:_MOST_TOUCHED], **fields)


def _shown(text: str) -> str:
    return INVISIBLE.sub("", _UNSEEN.sub(" ", text)).strip()


def _log(repo: str, path: str, base: str, head: str) -> list[Commit]:
    """Return the commits of the main line of a mirror after `base` up to `head`; none where it lacks one."""
    if not (HASH.fullmatch(base) and HASH.fullmatch(head)):
        raise ValueError(f"{base}..{head} is no range of commits")
    command = ["log", "--first-parent", "-m", "--name-only", "--no-renames", f"--max-count={MOST_COMMITS}"]
    commits = []
    try:
        written = git(path, *command, f"--format={_FIELDS}", f"{base}..{head}", "--")
        for part in written.decode("utf-8", "replace").split("\x01")[1:]:
            line, _newline, names = part.partition("\n")
            sha, parents, seconds, author, title = line.split("\x02", 4)
            about: dict[str, Any] = {"repo": repo, "sha": sha, "parent": parents.partition(" ")[0]}
            about["date"] = datetime.fromtimestamp(int(seconds), UTC)
            files = filter(None, names.splitlines())
            commits.append(commit_of(title=title, author=author, files=files, **about))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.debug("%s..%s of %s is not read: %s", base, head, repo, error)
    return commits
