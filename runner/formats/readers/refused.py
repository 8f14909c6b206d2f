"""Files that look like results and are not read: how to recognise each, and what to do instead.

They are refused by name, since "none of the formats" or "no v3 record" helps nobody. Only what no format
recognises comes here; for JSON that is before v3, which takes whatever is JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.formats.format import Preview

AS_V3 = "write its numbers as v3 records (docs/formats.md, “Your own benchmark”)"


@dataclass(frozen=True)
class Refused:
    """A kind of file, as `refused.toml` explains it."""

    name: str
    instead: str = AS_V3
    keys: Sequence[str] = ()
    words: Sequence[str] = ()
    columns: Sequence[str] = ()
    contains: str = ""
    begins: Sequence[str] = ()
    offset: int = 0

    def matches(self, preview: Preview) -> bool:
        value = preview.first_value if self.keys and preview.is_json else None
        own_keys = value.keys() if isinstance(value, dict) else set()
        start = preview.start[self.offset :].lstrip(b"\xef\xbb\xbf \t\r\n")[:200].lower()
        columns = {*preview.columns()}
        beginnings = tuple(text.encode("latin-1").lower() for text in self.begins)
        return (
            (not self.keys or any(own_keys >= {*keys.split()} for keys in self.keys))
            and (not self.words or preview.names(*self.words))
            and (not self.columns or any(columns.issuperset(names.split(",")) for names in self.columns))
            and self.contains.encode() in preview.start
            and (not beginnings or start.startswith(beginnings))
        )


@cache
def kinds() -> list[Refused]:
    import tomllib  # the web application's Python has it; that of a measured environment may be 3.10

    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["kind"]
    return [Refused(**table) for table in tables]


def refused(preview: Preview) -> Refused | None:
    """Return the kind of a file that is known and not read, None for others."""
    return next((kind for kind in kinds() if kind.matches(preview)), None)
