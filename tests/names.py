"""Check names in the product: `make lint` fails for words that say nothing and classes that share a name."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

# the most occurrences in a thousand lines, as whole words: a variable says what it holds
_MOST = {"found": 15.6, "one": 29.6, "place": 10.9, "kept": 3.0, "said": 2.0, "told": 1.0, "given": 6.0}
_SHARED = {"Meta", "Command"}  # as Django calls them


def main() -> int:
    hud, runner = (_code(folder) for folder in ("hud", "runner"))
    code = hud + runner
    lines = code.count("\n")
    rates = {word: 1000 * len(re.findall(rf"\b{word}\b", code)) / lines for word in _MOST}
    print("Words in 1,000 lines: " + ", ".join(f"{word} {rate:.1f}" for word, rate in rates.items()))
    faults = [f"too many `{word}`: name what a variable holds" for word in _MOST if rates[word] > _MOST[word]]
    classes = Counter(re.findall(r"^ *class (\w+)", hud, re.MULTILINE))
    faults += [f"{n} classes {name} in hud" for name, n in classes.items() if n > 1 and name not in _SHARED]
    print("".join(f"{fault}\n" for fault in faults), end="")
    return bool(faults)


def _code(folder: str) -> str:
    paths = [path for path in Path(folder).rglob("*.py") if "migrations" not in path.parts]
    return "".join(path.read_text() for path in paths)


if __name__ == "__main__":
    sys.exit(main())
