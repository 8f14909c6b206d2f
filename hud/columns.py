"""The columns of a table's data: one declaration for JSON, CSV and the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any


class Columns:
    """Columns by name, each with the attribute that it shows: ``name``, ``name=path.to.it``, or
    ``name=path?.to.it``, which is '' where the path ends in None before."""

    def __init__(self, text: str, **computed: Callable[[Any], Any]) -> None:
        """Take the columns in their order; those of `computed` are read by a function."""
        parts = (part.partition("=") for part in text.split())
        self._readers = {name: computed.get(name) or _reader(path or name) for name, _sign, path in parts}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def row(self, one: Any) -> dict[str, Any]:
        return {name: read(one) for name, read in self._readers.items()}

    def rows(self, objects: Iterable[Any]) -> list[dict[str, Any]]:
        return [self.row(one) for one in objects]


def under(path: str, names: str) -> str:
    """Return columns that are attributes of one part: ``a=path.a b=path.b``."""
    return " ".join(f"{name}={path}.{name}" for name in names.split())


def experiment_of(path: str) -> str:
    """Return the columns that identify the experiment at a path."""
    return f"experiment={path}.pk {under(path, 'suite case knobs mode dtype backend device arch dynamic')}"


EXPERIMENT = experiment_of("experiment")


def _reader(path: str) -> Callable[[Any], Any]:
    first, _sign, rest = path.partition("?.")
    if not rest:
        return attrgetter(path)

    def read(one: Any) -> Any:
        owner = attrgetter(first)(one)
        return "" if owner is None else attrgetter(rest)(owner)

    return read
