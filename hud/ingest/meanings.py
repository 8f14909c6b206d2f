"""Unit and direction of the metrics of an upload: what the registry or an operator says, else what the first
record says. Values in another unit are converted to it, or refused."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

from hud.ingest.resolve import metric_ids
from hud.models import Metric, Series, SeriesState
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement
from runner.formats.metric_values import check_values
from runner.schema.metrics import METRICS, convert, is_known, says_unit

_MOST_LISTED = 100  # metrics in a receipt
_MOST_WARNED_OF = 10
_KEY = attrgetter("metric", "unit", "direction")
_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)  # before every point


class Meanings:
    """The metrics of one upload, and what its records say of them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._new: set[str] = set()
        self._converted: dict[str, set[str]] = {}  # units by metric

    def convert(self, items: Sequence[ParsedMeasurement]) -> list[tuple[ParsedMeasurement, WrongRecord]]:
        """Write measurements in the units of their metrics. Return those in a unit of something else, or with
        the opposite direction, each with what is wrong."""
        keys = dict.fromkeys(map(_KEY, items))
        self._learn(keys)
        others = {key for key in keys if self._differs(*key)}
        wrong = []
        for item in items if others else ():
            if _KEY(item) in others:
                try:
                    self._convert(item)
                except WrongRecord as error:
                    wrong.append((item, error))
        return wrong

    def _learn(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Read the metrics of these names, units and directions. One without unit or direction gets the first
        that is said; of concurrent uploads the others wait for the first."""
        said: dict[str, tuple[str, str]] = {}
        for name, said_unit, said_direction in keys:
            unit, direction = said.get(name, ("", ""))
            said[name] = unit or said_unit, direction or said_direction
        unread = sorted(said.keys() - self._metrics.keys() - METRICS.keys())
        for name in said.keys() & METRICS.keys() - self._metrics.keys():
            self._metrics[name] = Metric(**METRICS[name].to_row())
        self._metrics |= _rows(unread)
        if new := [name for name in unread if name not in self._metrics]:
            metric_ids(new)
            self._metrics |= _rows(new)
            self._new.update(new)
        self._complete(said)

    def _complete(self, said: Mapping[str, tuple[str, str]]) -> None:
        """Give metrics the unit and direction that they lack; what is stored of them can then be judged."""
        lacking = [
            name
            for name, (unit, direction) in said.items()
            if (unit and _lacks_unit(self._metrics[name]))
            or (direction and _lacks_direction(self._metrics[name]))
        ]
        if not lacking:
            return
        rows = Metric.objects.select_for_update(no_key=True).filter(name__in=lacking).order_by("name")
        for metric in rows:
            unit, direction = said[metric.name]
            if _lacks_unit(metric):
                metric.unit = unit
            if _lacks_direction(metric) and direction:
                metric.direction = direction
                Series.objects.filter(metric=metric).update(touched_at=_FIRST)
                SeriesState.objects.filter(series__metric=metric).update(seen_run=0)
            metric.save(update_fields=["unit", "direction"])
            self._metrics[metric.name] = metric

    def _differs(self, name: str, unit: str, direction: str) -> bool:
        metric = self._metrics[name]
        return unit not in {"", metric.unit} or {direction, metric.direction} == {"up", "down"}

    def _convert(self, item: ParsedMeasurement) -> None:
        metric = self._metrics[item.metric]
        if {item.direction, metric.direction} == {"up", "down"}:
            detail = f"{item.metric} is better {metric.direction}, not {item.direction}"
            raise WrongRecord("/metric/extra_info/direction", detail)
        try:
            item.samples = [convert(sample, item.unit, metric.unit) for sample in item.samples]
            if item.target is not None:
                item.target = convert(item.target, item.unit, metric.unit)
        except ValueError as error:
            detail = f"{item.metric} is in {metric.unit or 'no unit'}: {error}"
            raise WrongRecord("/metric/extra_info/unit", detail) from error
        check_values(item.suite, item.metric, item.samples)
        self._converted.setdefault(item.metric, set()).add(item.unit)
        item.unit = metric.unit

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was understood, for the receipt: the metrics that the registry does not know, and those
        whose values were converted."""
        shown = sorted(name for name in self._metrics if name in self._converted or not is_known(name))
        return [
            {
                "name": name,
                "unit": self._metrics[name].unit,
                "direction": self._metrics[name].direction,
                "new": name in self._new,
                "converted_from": sorted(self._converted.get(name, ())),
            }
            for name in shown[:_MOST_LISTED]
        ]

    def warnings(self) -> list[str]:
        """Return a warning that names the metrics of which nothing says the direction."""
        names = sorted(name for name, metric in self._metrics.items() if _lacks_direction(metric))
        if not names:
            return []
        rest = len(names) - _MOST_WARNED_OF
        listed = ", ".join(names[:_MOST_WARNED_OF]) + (f" and {rest} more" if rest > 0 else "")
        words = "it is never called better or worse until a record or an operator on /rules/ says"
        return [f"nothing says which direction is better of {listed}: {words}"]


def _rows(names: Sequence[str]) -> dict[str, Metric]:
    return Metric.objects.in_bulk(names, field_name="name") if names else {}


def _lacks_unit(metric: Metric) -> bool:
    return not metric.unit and not says_unit(metric.name)


def _lacks_direction(metric: Metric) -> bool:
    return metric.direction == "none" and not metric.told and not is_known(metric.name)
