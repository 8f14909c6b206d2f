"""How many experiments each choice of the suite's filters would leave, out of what the page has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hud.pages.suite.newest import Newest, Wanted


def of_results(found: Newest, wanted: Wanted) -> dict[str, dict[str, int]]:
    """Return by filter the number of each choice, the other filter on results kept. `found` are the
    experiments before either."""
    by_verdict, by_status = found.by_verdict(), found.by_status()
    verdict, status = by_verdict.get(wanted.verdict), by_status.get(wanted.status)
    return {
        "verdict": {
            word: int((rows if status is None else rows & status).sum()) for word, rows in by_verdict.items()
        },
        "status": {
            word: int((rows if verdict is None else rows & verdict).sum()) for word, rows in by_status.items()
        },
    }


def of_words(
    combinations: Sequence[Mapping[str, Any]], chosen: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Return by choice the number of experiments of each word, the other choices kept."""
    found = {}
    for name in chosen:
        others = [(other, word) for other, word in chosen.items() if word and other != name]
        counts: Counter[str] = Counter()
        for one in combinations:
            if all(one[other] == word for other, word in others):
                counts[one[name]] += one["experiments"]
        found[name] = counts
    return {name: dict(counts) for name, counts in found.items()}
