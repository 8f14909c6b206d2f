"""Badges: a verdict, status or state by word, icon and colour."""

from functools import lru_cache

from django.utils.safestring import SafeString

from hud.tables.html import element, join

# Tone (a class of hud.css) → word → icon, so that no meaning depends on colour.
_ICONS = {
    "better": {"improved": "▲", "met": "✓", "ok": "✓", "succeeded": "✓", "done": "✓", "online": "●"},
    "worse": {"regressed": "▼", "missed": "✗", "timed_out": "⏱", "dirty": "!"},
    "doubt": {"inconclusive": "?", "cannot_tell": "?", "moved": "⇄", "late": "◔", "paused": "‖",
              "drained": "⏏"},
    "active": {"confirmed": "●", "busy": "▶", "running": "▶"},
    "quiet": {
        "unchanged": "=", "dismissed": "=", "same code": "=", "new": "+", "": "…", "none": "◎", "idle": "○",
        "queued": "…", "cancelled": "⊘", "unsupported": "—", "not_run": "○", "detached": "○", "gone": "○",
        "in_pairs": "⇄", "unknown": "?",
    },
}  # fmt: skip
LOOKS = {word: (icon, tone) for tone, icons in _ICONS.items() for word, icon in icons.items()}
WORDS = {
    "": "not judged yet",
    "in_pairs": "A/B comparison",
    "cannot_tell": "cannot tell",
    "moved": "best choice moved",
    "timed_out": "timed out",
    "not_run": "not run",
    "dirty": "unavailable",
}


@lru_cache(maxsize=2048)
def badge_html(key: str, text: str = "", title: str = "") -> SafeString:
    icon, tone = LOOKS.get(key, ("✗", "worse"))
    content = join(element("span", icon, css="icon", aria_hidden="true"), text or WORDS.get(key, key))
    return element("span", content, css=f"badge {tone}", title=title)
