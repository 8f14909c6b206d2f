"""Count words that make poor names in the product's code: `make lint` fails where there are too many."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# the most occurrences in a thousand lines, as whole words: a variable says what it holds
_MOST = {"found": 15.6, "one": 29.6, "place": 10.9, "kept": 3.0, "said": 2.0, "told": 1.0, "given": 6.0}


def main() -> int:
    files = [path for folder in ("hud", "runner") for path in Path(folder).rglob("*.py")]
    code = "".join(path.read_text() for path in files if "migrations" not in path.parts)
    lines = code.count("\n")
    rates = {word: 1000 * len(re.findall(rf"\b{word}\b", code)) / lines for word in _MOST}
    print("Words in 1,000 lines: " + ", ".join(f"{word} {rate:.1f}" for word, rate in rates.items()))
    excess = [word for word, rate in rates.items() if rate > _MOST[word]]
    if excess:
        print(f"More than tests/names.py allows: {', '.join(excess)}; name what a variable holds.")
    return bool(excess)


if __name__ == "__main__":
    sys.exit(main())
