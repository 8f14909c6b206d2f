"""The rules that operators set, and the metrics of which nothing is known."""

from datetime import timedelta
from typing import Any

from django.db.models import Count

from hud.judging.rules.preview import NIGHTS, Flag, Preview, newest_series
from hud.judging.rules.thresholds import least_change
from hud.judging.rules.write import rules_of
from hud.models import Experiment, Metric, Point, Target, Threshold
from hud.points.targets import AppliedTarget, Targets
from hud.tables.table import DataTable
from runner.schema.devices import is_named
from runner.schema.metrics import METRICS, is_known

MOST_UNKNOWN = 50
COLUMNS: dict[type[Any], DataTable[Any]] = {  # of a rule in JSON, CSV and the API
    Target: DataTable(
        "id=pk metric=metric.name suite case backend arch dtype size value share=fraction note"
    ),
    Threshold: DataTable("id=pk metric suite case backend arch relative minimum judged note"),
    Metric: DataTable("id=pk metric=name unit direction"),
}
HEADER = """kind id metric suite case backend arch dtype size value share relative minimum judged unit
    direction note""".split()  # noqa: SIM905 - of all three


def rows() -> list[dict[str, Any]]:
    """Return all rules for JSON and CSV: 3 statements."""
    rules = [(kind, COLUMNS[kind].row(rule)) for kind in COLUMNS for rule in rules_of(kind)]
    return [dict.fromkeys(HEADER) | {"kind": kind.__name__.lower(), **row} for kind, row in rules]


def read() -> dict[str, Any]:
    """Return the rules, the `unknown` metrics of which neither the registry nor an operator says unit and
    direction, and what the fields of forms offer, by name: 6 statements."""
    nameless = Metric.objects.filter(told=False, direction="none", kind="timing")
    counted = nameless.annotate(count=Count("series")).filter(count__gt=0).order_by("-count", "name")
    unknown = [metric for metric in counted if not is_known(metric.name)]
    names = ("suite", "backend", "arch")
    experiments = list(Experiment.objects.values_list(*names).distinct().order_by())
    offers = {f"{name}s": sorted({row[place] for row in experiments}) for place, name in enumerate(names)}
    offers["archs"] = [arch for arch in offers["archs"] if is_named(arch)]
    stored = Metric.objects.filter(series__isnull=False).distinct().order_by("name")
    offers["metrics"] = list(stored.values_list("name", flat=True)[:500])
    offers["unknown"] = [metric.name for metric in unknown]
    return {
        "targets": rules_of(Target),
        "thresholds": rules_of(Threshold),
        "metrics": rules_of(Metric),
        "unknown": unknown[:MOST_UNKNOWN],
        "more_unknown": max(len(unknown) - MOST_UNKNOWN, 0),
        "offers": offers,
    }


def defaults() -> list[tuple[str, str]]:
    """Return the smallest changes that count where no threshold says otherwise, with their metrics."""
    by_change: dict[float, list[str]] = {}
    for info in METRICS.values():
        if info.kind == "timing" and info.role == "headline":
            by_change.setdefault(least_change(info.floor), []).append(info.name)
    return [(f"{change * 100:.3g} %", ", ".join(names)) for change, names in sorted(by_change.items())]


def preview_target(rule: Target, *, replaces: int | None) -> Preview:
    """Return the points of the last 60 nights that a target would have called missed, beside those that are
    missed without it."""
    matching, newest, until = newest_series(rule)
    found = Preview(matching, len(newest), until)
    if until is None:
        return found
    series = {one.pk: one for one in newest}
    today = Targets.read()
    rows = [row for row in today.rows if row.pk != replaces]
    then = Targets([*rows, rule])
    points = Point.objects.filter(
        series__in=series, order_time__gte=until - timedelta(days=NIGHTS), value__isnull=False, rerun=False
    ).order_by("order_time", "run_id")
    known: dict[tuple[Any, ...], tuple[AppliedTarget | None, ...]] = {}
    for point in points.iterator():
        one, said = series[point.series_id], (point.target, point.target_arch)
        key = (one.pk, *said)
        if key not in known:
            known[key] = tuple(which.own(one.experiment, one.metric, *said) for which in (today, then))
        is_missed, would_be = (
            own is not None and own.met_by(point.value, one.metric.direction) == "missed"
            for own in known[key]
        )
        flag = [Flag(one, point.run_id, point.order_time, None, point.value)] if would_be else []
        found.add(flag, int(is_missed))
    return found
