"""Print how many mutations of each module the tests noticed, and name the others: after `mutmut run`."""

from __future__ import annotations

import json
from pathlib import Path

_NOT_NOTICED = {0, 33}  # mutmut's exit codes: every test passed, no test runs the function


def main() -> None:
    for path in sorted(Path("mutants").rglob("*.meta")):
        codes: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
        tried = {name: code for name, code in codes.items() if code is not None}
        left = [name for name, code in tried.items() if code in _NOT_NOTICED]
        if tried:
            module = path.relative_to("mutants").with_suffix("")
            print(f"{module}: {1 - len(left) / len(tried):.1%} of {len(tried)} noticed")
            print("".join(f"  {name}\n" for name in left), end="")


if __name__ == "__main__":
    main()
