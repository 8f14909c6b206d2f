"""Template tags for a commit and for a range of commits.

They link to `HUD_REPO_URL` where it is set, else to the runs of the commit or range.
"""

import re
from functools import cache
from urllib.parse import quote

from django import template
from django.conf import settings
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.tables.html import code, element, join, link, span

register = template.Library()

SHORT_COMMIT = 7  # characters
_HASH = re.compile(r"[0-9a-f]{8,64}")
_COMMIT = "{commit}"


def short_commit(commit: str) -> str:
    """Return the first characters of a hash; any other name as it is."""
    return commit[:SHORT_COMMIT] if _HASH.fullmatch(commit) else commit


@register.simple_tag
def commit(name: str | None) -> SafeString:
    """Show a commit: its short hash as a link, and a button that copies it."""
    if not name:
        return SafeString("")
    in_repository = settings.HUD_REPO_URL.replace(_COMMIT, name) if _HASH.fullmatch(name) else ""
    return _html(in_repository or runs_of(name), short_commit(name), name)


@register.simple_tag
def commit_range(old: str | None, new: str | None) -> SafeString:
    """Show ``old..new``; one commit where the other is not known or the same."""
    if not old or not new or old == new:
        return commit(new or old)
    address, page = runs_of(f"{old}..{new}"), f"/commit/{_COMMIT}"
    if _HASH.fullmatch(old) and _HASH.fullmatch(new) and page in settings.HUD_REPO_URL:
        # which GitHub and GitLab have beside that of a commit
        address = settings.HUD_REPO_URL.replace(page, f"/compare/{old}...{new}")
    return _html(address, f"{short_commit(old)}..{short_commit(new)}", f"{old}..{new}")


def runs_of(commits: str) -> str:
    """Return the address of the runs of a commit, or of a range ``old..new``."""
    return f"{path('runs')}?commit={quote(commits, safe='.')}"


@register.filter
@cache
def path(name: str) -> str:
    """Return the address of a page that has one."""
    return reverse(name)


def _html(address: str, short: str, full: str) -> SafeString:
    label = span(f"Copy {short}", "visually-hidden")
    about = {"data_copy_text": full, "title": f"Copy {full}"}
    button = element("button", label, type="button", css="copy", **about)
    return span(join(link(address, code(short), title=full), button, by=""), "commit")
