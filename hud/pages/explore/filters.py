"""The filters in the address of Explore, and the key of a series under them."""

from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from hud.pages.query_string import day, one_of, several, words

DIMENSIONS = ("suite", "case", "options", "backend", "arch", "mode", "dtype", "metric", "stream")
NIGHTS = ("28", "90", "200")


@dataclass(frozen=True)
class ExploreFilters:
    suite: tuple[str, ...] = several()
    case: tuple[str, ...] = several()
    options: tuple[str, ...] = several()
    backend: tuple[str, ...] = several()
    arch: tuple[str, ...] = several()
    mode: tuple[str, ...] = several()
    dtype: tuple[str, ...] = several()
    metric: tuple[str, ...] = several()
    stream: tuple[str, ...] = several()
    q: str = words()  # that the names of cases have
    colour: str = one_of(*DIMENSIONS, default="backend")
    group: str = one_of(*DIMENSIONS, default="backend")
    line: str = one_of("series", "mean", default="series")  # mean: of a group
    relative: str = words(210)  # first, night:2026-11-20 or backend:eager
    x: str = one_of("date", "commit", "torch", default="date")
    scale: str = one_of("linear", "log", default="linear")
    nights: str = one_of(*NIGHTS, default="90")
    start: date | None = day(names=("from",))  # like `end` what the chart shows first
    end: date | None = day(names=("to",))
    hidden: tuple[str, ...] = several()  # keys of lines

    @property
    def chosen(self) -> dict[str, set[str]]:
        """Return the chosen names of each dimension that has some."""
        return {name: set(getattr(self, name)) for name in DIMENSIONS if getattr(self, name)}


class SeriesRow(NamedTuple):
    pk: int
    experiment: int
    names: tuple[str, ...]  # by dimension

    def of(self, dimension: str) -> str:
        return self.names[DIMENSIONS.index(dimension)]
