"""The query string of an experiment's page."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from django import forms

from hud.pages.query_string import number, one_of, parameter, words

MAX_POINTS = 1000
_TABLE_ROWS, _PART_ROWS = 20, 50  # of the table of points: at first, and of an older part
_PLACE = forms.RegexField(
    r"^\d{1,16}_[1-9]\d{0,8}$",
    required=False,
    error_messages={"invalid": "No part of the table of points begins here."},
)
ScaleName = Literal["absolute", "relative", "log"]


@dataclass(frozen=True)
class Choice:
    """What an experiment's page shows: metric, points, how charts are drawn, and what is compared."""

    metric: str = words()  # '' and an unknown one: the suite's first
    points: int = number(MAX_POINTS, default=200)  # the newest of the range
    table: str = one_of("all")  # longer parts of the table of points
    before: str = parameter(_PLACE, "")  # time in microseconds and run of the first point not in its part
    branch: str = words()  # '': all
    axis: Literal["even", "date"] = one_of("even", "date", default="even")
    scale: ScaleName = one_of("absolute", "relative", "log", default="absolute")
    marks: Literal["each", "medians"] = one_of("each", "medians", default="each")
    overlay: str = parameter(forms.RegexField(r"^\d{1,9}(,\d{1,9}){0,9}$", required=False), "")  # experiments
    base: int | None = number()  # runs whose kernels to compare
    head: int | None = number()
    point: int | None = number()  # run whose details are open
    options: str = one_of("all")  # of a rerun; else those that most need
    since: datetime | None = parameter(forms.DateTimeField(required=False), names=("from",))
    until: datetime | None = parameter(forms.DateTimeField(required=False), names=("to",))

    @property
    def place(self) -> tuple[datetime, int] | None:
        """Return before which time and run the table ends."""
        time, _line, run = self.before.partition("_")
        return (datetime.fromtimestamp(int(time) / 1e6, UTC), int(run)) if time else None

    @property
    def rows(self) -> int:
        """Return how many rows the table of points has."""
        return _PART_ROWS if self.table or self.before else _TABLE_ROWS
