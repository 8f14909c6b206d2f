"""Unit and direction of the metrics of an upload: what the registry or an operator says, else what the first
record says. Values in another unit are converted to it, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from hud.ingest.resolve import metric_ids
from hud.models import Metric, Series, SeriesState
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement
from runner.formats.metric_values import check_values
from runner.schema.metrics import METRICS, is_known, says_unit
from runner.schema.units import convert

_MOST_LISTED = 100  # metrics in a receipt
_MOST_WARNED_OF = 10
_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)  # before every point


class Meanings:
    """The metrics of one upload, and what its records say of them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._new: set[str] = set()
        self._converted: dict[str, set[str]] = {}  # units by metric

    def learn(self, items: Iterable[ParsedMeasurement]) -> None:
        """Read the metrics of these measurements. One without unit or direction gets the first that a
        measurement says; of concurrent uploads the others wait for the first."""
        units: dict[str, str] = {}
        directions: dict[str, str] = {}
        names = set()
        for item in items:
            names.add(item.metric)
            if item.unit:
                units.setdefault(item.metric, item.unit)
            if item.direction:
                directions.setdefault(item.metric, item.direction)
        for name in METRICS.keys() & names - self._metrics.keys():
            info = METRICS[name]
            self._metrics[name] = Metric(name=name, unit=info.unit, direction=info.direction)
        self._read(sorted(names - self._metrics.keys()))
        without = [
            metric
            for name, metric in self._metrics.items()
            if (name in units and _lacks_unit(metric)) or (name in directions and _lacks_direction(metric))
        ]
        if without:
            self._complete(without, units, directions)

    def _read(self, names: Sequence[str]) -> None:
        """Read metrics that the registry does not list; store those that are new."""
        if not names:
            return
        stored = Metric.objects.in_bulk(names, field_name="name")
        if new := [name for name in names if name not in stored]:
            metric_ids(new)
            stored |= Metric.objects.in_bulk(new, field_name="name")
            self._new.update(new)
        self._metrics |= stored

    def _complete(self, metrics: Iterable[Metric], units: dict[str, str], directions: dict[str, str]) -> None:
        ids = [metric.pk for metric in metrics]
        turned = []
        for metric in Metric.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("name"):
            if _lacks_unit(metric):
                metric.unit = units.get(metric.name, "")
            if _lacks_direction(metric) and metric.name in directions:
                metric.direction = directions[metric.name]
                turned.append(metric.pk)
            metric.save(update_fields=["unit", "direction"])
            self._metrics[metric.name] = metric
        # what was stored before can be judged now
        Series.objects.filter(metric__in=turned).update(touched_at=_FIRST)
        SeriesState.objects.filter(series__metric__in=turned).update(seen_run=0)

    def convert(self, item: ParsedMeasurement) -> None:
        """Write a measurement in its metric's unit. Raise WrongRecord for one in a unit of something else, or
        with the opposite direction."""
        metric = self._metrics[item.metric]
        if {item.direction, metric.direction} == {"up", "down"}:
            detail = f"{item.metric} is better {metric.direction}, not {item.direction}"
            raise WrongRecord("/metric/extra_info/direction", detail)
        item.direction = metric.direction
        if item.unit in ("", metric.unit):
            return
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


def _lacks_unit(metric: Metric) -> bool:
    return not metric.unit and not says_unit(metric.name)


def _lacks_direction(metric: Metric) -> bool:
    return metric.direction == "none" and not metric.told and not is_known(metric.name)
