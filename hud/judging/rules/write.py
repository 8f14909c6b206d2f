"""Write rules: targets, thresholds, and what an unknown metric means. Each write has an audit line, and marks
the series that it touches for the judge, which judges them again in the background."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet

from hud.accounts import audit
from hud.models import Metric, Series, SeriesState, Target, Threshold
from hud.problems import Problem
from hud.sql import execute
from hud.tables.table import DataTable
from runner.schema.metrics import METRICS, is_known, metric_info, says_unit

Rule = Target | Threshold | Metric
_Rule = TypeVar("_Rule", Target, Threshold, Metric)
_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)  # before every point
_LOCK = 7_014_003
_MOST = 1e300  # as of a measurement
MOST_RELATIVE = 10.0
COLUMNS: dict[type[Any], DataTable[Any]] = {  # of a rule in JSON, CSV and the API
    Target: DataTable(
        "id=pk metric=metric.name suite case backend arch dtype size value share=fraction note"
    ),
    Threshold: DataTable("id=pk metric suite case backend arch relative minimum judged note"),
    Metric: DataTable("id=pk metric=name unit direction"),
}
_SETTINGS: dict[type, tuple[str, ...]] = {
    Metric: ("unit", "direction"),
    Target: ("value", "fraction", "note"),
    Threshold: ("relative", "minimum", "judged", "note"),
}


def metric_of(name: str) -> Metric:
    """Return the metric of this name; one that no upload has brought yet is stored."""
    info = metric_info(name).to_row()
    return Metric.objects.get_or_create(name=info.pop("name"), defaults=info)[0]


def name_of(text: str) -> str:
    """Return the name of the metric that this name or title means. Raise Problem for none, or several."""
    stored = Metric.objects.values_list("name", "title")
    names = {name for name, title in stored if text == name or text.casefold() == title.casefold()}
    names |= {name for name, info in METRICS.items() if text.casefold() == info.title.casefold()}
    if text in names or is_known(text):
        return text
    if len(names) != 1:
        several = f"{len(names)} metrics are" if names else "no metric is"
        raise Problem(422, f"{several} called {text!r}; give its name", at="/metric")
    return names.pop()


def rule_of(kind: type[Rule], fields: Mapping[str, Any], pk: int | None = None) -> Rule:
    """Return the rule that the fields of a form or of the API say, unstored. Raise Problem for another
    metric than the one with this key."""
    columns = dict(fields)
    if kind is not Metric and columns["metric"]:
        columns["metric"] = name_of(columns["metric"])
    if kind is Threshold:
        return Threshold(pk=pk, **columns)
    metric = metric_of(columns.pop("metric"))
    if kind is Target:
        return Target(pk=pk, metric=metric, fraction=columns.pop("share"), **columns)
    if pk not in {None, metric.pk}:
        raise Problem(422, "the name of a metric stays; add another one", at="/metric")
    metric.unit, metric.direction = columns["unit"], columns["direction"]
    return metric


def save(rule: Rule, *, who: str) -> None:
    """Store a new or changed rule. Raise Problem."""
    with transaction.atomic():
        _lock()
        check(rule)
        same = {name: getattr(rule, name) for name in rule.IDENTITY}
        if type(rule)._default_manager.filter(**same).exclude(pk=rule.pk).exists():
            raise Problem(422, "there is a rule for exactly this already; change that one", at="/metric")
        earlier = type(rule)._default_manager.filter(pk=rule.pk).first() if rule.pk else None
        _write(rule, earlier, who)


def delete(rule: Rule, *, who: str) -> None:
    """Delete a rule; a metric stays, without unit and direction."""
    with transaction.atomic():
        _lock()
        _delete(rule, who)


def replace(kind: type[_Rule], wanted: Sequence[_Rule], *, who: str) -> None:
    """Make these the only rules of their kind; those that stay as they are touch nothing. Raise Problem at
    the place of the rule."""
    with transaction.atomic():
        _lock()
        stored: dict[tuple[Any, ...], _Rule] = {identity(rule): rule for rule in rules_of(kind)}
        seen = set()
        for index, rule in enumerate(wanted):
            if identity(rule) in seen:
                words = "an earlier rule of this list is for exactly the same"
                raise Problem(422, words, at=f"/{index}/metric")
            try:
                check(rule)
            except Problem as error:
                raise Problem(422, error.detail, at=f"/{index}{error.at}") from error
            seen.add(identity(rule))
            earlier = stored.get(identity(rule))
            rule.pk = earlier.pk if earlier else rule.pk
            if earlier is None or settings_of(earlier) != settings_of(rule):
                _write(rule, earlier, who)
        for key, rule in stored.items():
            if key not in seen:
                _delete(rule, who)


def rules_of(kind: type[_Rule]) -> list[_Rule]:
    """Return the stored rules of a kind, the oldest first."""
    rows: QuerySet[_Rule] = kind._default_manager.order_by("pk")
    if kind is Metric:
        rows = rows.filter(Q(told=True))
    return list(rows.select_related("metric") if kind is Target else rows)  # type: ignore[misc]  # its field


def identity(rule: Rule) -> tuple[Any, ...]:
    """Return what a rule matches: no two of a kind match exactly the same."""
    return tuple(rule.serializable_value(name) for name in rule.IDENTITY)


def settings_of(rule: Rule) -> dict[str, Any]:
    """Return what a rule says, as the audit shows it."""
    return {name: getattr(rule, name) for name in _SETTINGS[type(rule)]}


def subject(rule: Rule) -> str:
    """Return a rule in words: ``threshold of speedup, suite timm``."""
    if isinstance(rule, Metric):
        return f"metric {rule.name}"
    matched = [f"{name} {getattr(rule, name)}" for name in rule.IDENTITY[1:] if getattr(rule, name)]
    metric = rule.metric.name if isinstance(rule, Target) else rule.metric or "any metric"
    return ", ".join([f"{type(rule).__name__.lower()} of {metric}", *matched])


def check(rule: Rule) -> None:
    """Raise Problem for a rule that makes no sense."""
    if isinstance(rule, Metric):
        known = metric_info(rule.name)
        if is_known(rule.name) and says_unit(rule.name):
            text = f"{rule.name} is known: {known.unit or 'no unit'}, {known.direction}"
            raise Problem(422, text, at="/metric")
    elif isinstance(rule, Target):
        if (rule.value is None) == (rule.fraction is None):
            raise Problem(422, "a target is a value or a share of the ceiling, one of them", at="/value")
        _check_number("value", rule.value, -_MOST, _MOST)
        _check_number("share", rule.fraction, 0, MOST_RELATIVE)
        if rule.fraction is not None and rule.metric.unit != "GB/s":
            raise Problem(422, "the ceiling is a copy bandwidth; the metric is not in GB/s", at="/share")
    else:
        if rule.relative is None and rule.minimum is None and rule.judged is None:
            raise Problem(422, "a threshold says at least one thing", at="/relative")
        _check_number("relative", rule.relative, 0, MOST_RELATIVE)
        _check_number("minimum", rule.minimum, 0, _MOST)


def _check_number(field: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise Problem(422, f"it must be a number from {least:g} to {most:g}", at=f"/{field}")


def _write(rule: Rule, earlier: Rule | None, who: str) -> None:
    is_new = earlier is None or (isinstance(earlier, Metric) and not earlier.told)
    if isinstance(rule, Metric):
        rule.told = True
    rule.save()
    detail = settings_of(rule)
    if earlier and not is_new:
        detail["before"] = {"rule": subject(earlier), **settings_of(earlier)}
    action = "rule.create" if is_new else "rule.change"
    audit.note(who=who, action=action, subject=subject(rule), detail=detail)
    _judge_again([rule, *([earlier] if earlier else [])])


def _delete(rule: Rule, who: str) -> None:
    audit.note(who=who, action="rule.delete", subject=subject(rule), detail=settings_of(rule))
    _judge_again([rule])
    if isinstance(rule, Metric):
        info = metric_info(rule.name)
        Metric.objects.filter(pk=rule.pk).update(told=False, unit=info.unit, direction=info.direction)
    else:
        rule.delete()


def touched(rule: Rule) -> Q:
    """Return the series that a rule matches."""
    if isinstance(rule, Metric):
        return Q(metric=rule.pk)
    name = rule.metric.name if isinstance(rule, Target) else rule.metric
    wanted = Q(metric__name=name) if name else Q()
    for field in ("suite", "case", "backend", "arch", *(["dtype"] if isinstance(rule, Target) else [])):
        if value := getattr(rule, field):
            wanted &= Q(**{f"experiment__{field}": value})
    if isinstance(rule, Target) and rule.size:
        wanted &= Q(experiment__knobs__D=rule.size) | (
            Q(experiment__knobs__D=int(rule.size)) if rule.size.isdecimal() else Q()
        )
    return wanted


def _judge_again(rules: Sequence[Rule]) -> None:
    """Mark the series of these rules for the judge, from their first points on. It has no use for targets."""
    for rule in rules:
        if not isinstance(rule, Target):
            series = Series.objects.filter(touched(rule))
            SeriesState.objects.filter(series__in=series).update(seen_run=0)  # for the next look back
            series.update(touched_at=_FIRST)


def _lock() -> None:
    """Let writers of rules wait for each other until the transaction ends."""
    execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
