"""Read the query string of an experiment's page."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from django import forms

from hud.pages.experiment.drawing import Look
from hud.pages.experiment.history import Range
from hud.pages.experiment.query import DEFAULT_POINTS, MAX_POINTS, PART_ROWS, TABLE_ROWS
from hud.pages.experiment.scale import ScaleName
from hud.pages.query_string import number, one_of, parameter, words

_PLACE = forms.RegexField(
    r"^\d{1,16}_[1-9]\d{0,8}$",
    required=False,
    error_messages={"invalid": "No part of the table of points begins here."},
)


@dataclass(frozen=True)
class Choice:
    """What an experiment's page shows: metric, points, how charts are drawn, and what is compared."""

    metric: str = words()
    points: int = number(MAX_POINTS, default=DEFAULT_POINTS)
    table: str = one_of("all")  # longer parts of the table of points
    before: str = parameter(_PLACE, "")  # time in microseconds and run of the first point not in its part
    branch: str = words()
    axis: Literal["even", "date"] = one_of("even", "date", default=Look.axis)
    scale: ScaleName = one_of("absolute", "relative", "log", default=Look.scale)
    marks: Literal["each", "medians"] = one_of("each", "medians", default=Look.marks)
    overlay: str = parameter(forms.RegexField(r"^\d{1,9}(,\d{1,9}){0,9}$", required=False), "")  # experiments
    base: int | None = number()  # runs
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
    def range(self) -> Range:
        return Range(self.points, self.branch, self.since, self.until, self.place)

    @property
    def look(self) -> Look:
        return Look(self.axis, self.scale, self.marks)

    @property
    def of_query(self) -> dict[str, Any]:
        """Return the options of the page's query."""
        overlay = [int(one) for one in self.overlay.split(",") if one]
        rows = PART_ROWS if self.table or self.before else TABLE_ROWS
        return {"metric": self.metric, "base": self.base, "head": self.head, "overlay": overlay, "rows": rows}
