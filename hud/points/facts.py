"""Facts of environments: their names on pages, and what differs between two."""

from collections.abc import Mapping
from typing import Any

from hud.models import Environment
from runner.schema.tables import rows

# Facts of an environment, and of the runs in it, whose names are not those that pages show
_NAMES = {row["fact"]: row["name"] for row in rows(__file__, "facts.csv")}


def fact_name(name: str) -> str:
    return _NAMES.get(name, name)


def changes(before: Environment, after: Environment) -> list[str]:
    """Return ``torch 2.10.0 → 2.11.0`` for each fact that differs; those of one side only are last."""
    if before.pk == after.pk:
        return []
    differing = [
        name for name in {**after.facts, **before.facts} if before.facts.get(name) != after.facts.get(name)
    ]
    olds, news = (flat({name: side.facts.get(name) for name in differing}) for side in (before, after))
    known = ((name, olds.get(name) or "", news.get(name) or "") for name in {**news, **olds})
    pairs = [(name, was, now) for name, was, now in known if was != now]
    pairs.sort(key=lambda pair: (not pair[2], not pair[1]))
    return [f"{fact_name(name)} {_brief(was)} → {_brief(now)}" for name, was, now in pairs]


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of an environment with those of a group one by one."""
    flattened: dict[str, Any] = {}
    for name, fact in facts.items():
        flattened.update(fact if isinstance(fact, dict) else {name: fact})
    return flattened


def _brief(fact: Any) -> str:
    """Return a fact as text; the middle of a card's long identity is left out."""
    text = str(fact or "unknown")
    return f"{text[:8]}…{text[-4:]}" if text.startswith("GPU-") and len(text) > 20 else text
