"""A report on two sides over whole suites, such as two versions of torch: an HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .hud import Hud
from .words import number, percent, title_of

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;
overflow-wrap:anywhere}
table{border-collapse:collapse;margin:.5rem 0 1.5rem;display:block;overflow-x:auto}
td,th{border-bottom:1px solid #8884;padding:.2rem .7rem;text-align:left}
td.n,th.n{text-align:right}td,th{white-space:nowrap}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#e6e6e6}a{color:#8ab4f8}}"""
_VIEWPORT = "<meta name='viewport' content='width=device-width'>"
_VERDICTS = ("failed", "regressed", "improved", "inconclusive", "unchanged", "not_run", "new")
_MEANS = "suite|passing|mean|baseline:|candidate:|change:|95 %:"
_ITEMS = "experiment|metric|baseline:|candidate:|change:|× noise:|reason"


def report(hud: Hud, base: str, head: str, **filters: str) -> str:
    """Return the report: means over all and by suite and backend, each experiment by its verdict, and what
    differs between the environments."""
    page = hud.get("compare", base=base, head=head, **filters)
    sides = [page[side] for side in ("base", "head")]
    title = escape(" → ".join(side["side"][:20] for side in sides))  # of a commit the first digits
    about = " → ".join(f"{side['commit'][:12]} of {side['to'][:10]} on {side['host']}" for side in sides)
    counts = ", ".join(f"{page['counts'][name]} {name}" for name in ("matched", *_VERDICTS[:5]))
    link = escape(hud.link("compare/", base=base, head=head, **filters))
    means = [row for group in (page["totals"], *page["aggregates"]) for row in _means(group)]
    facts = [
        (fact["name"], *(", ".join(map(str, fact[side])) for side in ("base", "head")))
        for fact in page["environment"]
    ]
    sections = [_section("Means", _MEANS, means)]
    for verdict in _VERDICTS:
        rows = [_row(item) for item in page["items"] if item["verdict"] == verdict]
        sections.append(_section(f"{verdict.replace('_', ' ').capitalize()}: {len(rows)}", _ITEMS, rows))
    sections.append(_section("Environment", "fact|baseline|candidate", facts))
    head_html = f"<meta charset='utf-8'>{_VIEWPORT}<title>{title}</title><style>{_STYLE}</style>"
    sentence = f"{escape(about)}. {counts}. <a href='{link}'>Comparison</a>"
    body = f"<h1>{title}</h1><p>{sentence}</p>{''.join(sections)}"
    return f"<!doctype html><html lang='en'>{head_html}{body}\n"


def _means(group: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    where = " ".join(group.get(name, "") for name in ("suite", "backend")).strip() or "all"
    passing = f"{group['base_passed']} → {group['head_passed']} of {group['expected']}"
    for mean in group["means"].values():
        interval = f"{percent(mean['low'])} to {percent(mean['high'])}" if mean["low"] is not None else ""
        name = f"{mean['metric']}, {mean['statistic']} of {mean['matched']}"
        ends = number(mean["base"]), number(mean["head"], mean["unit"])
        yield (where, passing, name, *ends, percent(mean["change"]), interval)


def _row(item: Mapping[str, Any]) -> Sequence[str]:
    factor, reason = item.get("factor"), str(item.get("reason") or "").replace("_", " ")
    ends = number(item.get("base")), number(item.get("head"), item["unit"])
    changes = percent(item.get("change")), "" if factor is None else f"{factor:.1f}"
    return (title_of(item), item["metric"], *ends, *changes, reason)


def _section(title: str, heads: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table with its title, '' without rows. Heads of numbers end with `:`."""
    names = heads.split("|")
    kinds = [" class='n'" if name.endswith(":") else "" for name in names]
    lines = [("th", [name.rstrip(":") for name in names]), *(("td", row) for row in rows)]
    table = "".join(
        f"<tr>{''.join(f'<{tag}{kinds[at]}>{escape(cell)}</{tag}>' for at, cell in enumerate(cells))}</tr>\n"
        for tag, cells in lines
    )
    return f"<h2>{escape(title)}</h2><table>{table}</table>" if rows else ""
