"""Pieces of HTML for the cells of tables. Every text is escaped; what is HTML already is a SafeString.

Python, because a template's loop over hundreds of cells costs several times as much.
"""

from collections.abc import Iterable
from functools import lru_cache
from html import escape  # of strings only, at a fifth of the cost of Django's

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.utils.safestring import SafeString
from django.utils.text import slugify

from runner.schema.tables import rows

NOTHING = SafeString("")


def text(value: object) -> str:
    """Return a value as HTML: '' for None, a SafeString as it is, anything else escaped."""
    if value.__class__ is SafeString:
        return value
    return "" if value is None else escape(str(value))


def attributes(**values: str | None) -> str:
    """Return the attributes that have a value, each after a space; `css` is ``class``, ``_`` is ``-``."""
    return "".join(
        [
            f' {"class" if name == "css" else name.replace("_", "-")}="{text(value)}"'
            for name, value in values.items()
            if value
        ]
    )


def element(name: str, content: object, /, **values: str | None) -> SafeString:
    return SafeString(f"<{name}{attributes(**values)}>{text(content)}</{name}>")


def link(address: str, content: object, **values: str | None) -> SafeString:
    return SafeString(f'<a href="{text(address)}"{attributes(**values)}>{text(content)}</a>')


def span(content: object, css: str, title: str | None = None) -> SafeString:
    """Return a part of a text in a style of its own, nothing without content."""
    if not content:
        return NOTHING
    return SafeString(f'<span class="{css}"{attributes(title=title) if title else ""}>{text(content)}</span>')


def dim(content: object) -> SafeString:
    return span(content, "dim")


def code(content: object) -> SafeString:
    return SafeString(f"<code>{text(content)}</code>")


def facts(terms: Iterable[tuple[object, object]]) -> SafeString:
    """Return names with what is known of them."""
    items = "".join(f"<dt>{text(name)}</dt><dd>{text(fact)}</dd>" for name, fact in terms)
    return SafeString(f'<dl class="facts">{items}</dl>')


def join(*parts: object, by: str = " ") -> SafeString:
    """Return the parts that are not empty, one after the other."""
    return SafeString(by.join([shown for part in parts if (shown := text(part))]))


def options(choices: Iterable[tuple[str, str]], chosen: str) -> SafeString:
    return SafeString(
        "".join(
            f'<option value="{text(value)}"{" selected" if value == chosen else ""}>{text(title)}</option>'
            for value, title in choices
        )
    )


def json_block(data: str, name: str) -> SafeString:
    """Return a data block of JSON for the page's script."""
    for char in "<>&":  # a data block ends at the first "</script" that stands in it
        data = data.replace(char, f"\\u{ord(char):04x}")
    return element("script", SafeString(data), type="application/json", id=name)


def csrf_field(request: HttpRequest) -> SafeString:
    """Return the field that each form of a table needs, as the tag `csrf_token` does."""
    return SafeString(f'<input type="hidden" name="csrfmiddlewaretoken" value="{get_token(request)}">')


def post_button(address: str, csrf: SafeString, content: object, **values: str | None) -> SafeString:
    """Return a form of one button that sends a POST."""
    button = element("button", content, **values)
    return SafeString(f'<form method="post" action="{text(address)}" class="inline">{csrf}{button}</form>')


@lru_cache(maxsize=64)
def icon_html(name: str) -> SafeString:
    """Return a symbol of templates/parts/icons.html; a word beside it says what it means."""
    return SafeString(f'<svg class="icon" aria-hidden="true"><use href="#i-{name}"/></svg>')


_ROWS = rows(__file__, "looks.csv")
# Word → icon and tone, a class of hud.css: no meaning depends on colour.
LOOKS = {row["word"]: (row["icon"], row["tone"]) for row in _ROWS}
WORDS = {row["word"]: row["text"] for row in _ROWS if row["text"]}


TERMS = {row["term"]: row["text"] for row in rows(__file__, "terms.csv")}  # of the glossary


@lru_cache(maxsize=256)
def term_html(term: str, shown: str = "") -> SafeString:
    """Return a term, perhaps in another form, with its meaning as tooltip and a link to the glossary."""
    return link(f"/glossary/#{slugify(term)}", shown or term, css="term", title=TERMS[term])


@lru_cache(maxsize=2048)
def badge_html(key: str, text: str = "", title: str = "") -> SafeString:
    """Return a verdict, status or state by word, icon and colour."""
    icon, tone = LOOKS.get(key, ("cross", "worse"))
    content = join(icon_html(icon), text or WORDS.get(key, key))
    return element("span", content, css=f"badge {tone}", title=title)
