"""Rename a misspelt suite, case, arch or host, or merge it into the one with the right name.

The old name is kept as an alias: what comes in under it later lands under the new one. A dry run renames and
rolls back. Locks as in `hud.corrections.deletion`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from hud.accounts import audit
from hud.accounts.roles import Scopes
from hud.corrections import waiting
from hud.corrections.deletion import ChangedRows, delete_rows, judge_again, touch
from hud.ingest.runs import changing_references
from hud.models import (
    Alias,
    Expectation,
    Experiment,
    Follow,
    Host,
    KeptValue,
    Point,
    Regression,
    Run,
    RunSubject,
    RunSummary,
    Series,
    Target,
    Threshold,
)
from hud.points import write as points
from hud.problems import Problem
from hud.sql import execute, fetch_tuples
from hud.states.regressions import ACTIVE
from runner.formats.scalars import nfc
from runner.schema.devices import arch_key, is_named

_OF_SUBJECT = ("run_id", "stream_id", "suite", "arch", "mode", "dtype")
_OF_MERGE = ("merged_series", "moved_measurements", "dropped_measurements")
_OF_ALIAS = ("kind", "suite", "old", "new", "who")
KINDS = ("suite", "case", "arch", "host")
_PAIRS = "FROM unnest(%(old)s::int[], %(new)s::int[]) AS pair(old, new) WHERE own.experiment_id = pair.old"
_ONE_OF_A_KEY = {  # what an experiment has one of for each rest of a key; that of the twin stays
    "hud_compilation": """known.run_id = own.run_id AND known.environment_id = own.environment_id
        AND known.repeat = own.repeat AND known.side = own.side""",
    "hud_knownfailure": "known.stream_id = own.stream_id",
}


@dataclass
class Renaming(ChangedRows):
    """Counts of what a renaming changes. `dropped_measurements`: the run has them under the new name too,
    which stay."""

    experiments: int = 0  # with the new name now
    merged_experiments: int = 0  # of those, into one that had it before
    merged_series: int = 0
    moved_measurements: int = 0  # from one series to another
    dropped_measurements: int = 0
    targets: int = 0
    runs: int = 0  # with another title or host
    hosts: int = 0


def alias_of(kind: str, old: str, new: str, suite: str, who: str) -> Alias:
    """Return a renaming that can be done, not stored yet. Raise Problem."""
    new = arch_key(nfc(new)) if kind == "arch" else nfc(new).strip()
    if not new or new == old:
        raise Problem(409, "the new name is empty or the old one")
    if suite and kind not in {"case", "arch"}:
        raise Problem(409, "a suite is given with a case or an arch only")
    alias = Alias(kind=kind, suite=suite, old=old, new=new, who=who[:150])
    if kind != "host":
        _check_length(new, Experiment, kind)
        if not experiments_of(alias).exists():
            raise Problem(409, f"no experiment has the {kind} {old}" + (f" in {suite}" if suite else ""))
    return alias


def rename(*, kind: str, old: str, new: str, who: str, suite: str = "", dry_run: bool = False) -> Renaming:
    """Rename a suite, case, arch or host, with `suite` only there. Raise Problem."""
    done, alias = Renaming(), alias_of(kind, old, new, suite, who)
    with changing_references():
        keep_alias(alias)
        rename_part(done, alias)
        if dry_run:
            transaction.set_rollback(True)
    return done


def rename_part(done: Renaming, alias: Alias, most: int | None = None) -> bool:
    """Rename about so many experiments, and all else once none is left; return whether that is so. Raise
    Problem."""
    if alias.kind == "host":
        _rename_host(done, alias.old, alias.new)
    elif _rename_experiments(done, alias, most) and most:
        return False
    else:
        _rename_others(done, alias)
    audit.note(who=alias.who, action=f"rename.{alias.kind}", subject=str(alias), detail=done.to_json())
    return True


def may_rename(kind: str, old: str, scopes: Scopes) -> bool:
    """Return whether a caller may rename this: with the scope `rules` an arch that names no device."""
    return ("rules" if kind == "arch" and not is_named(old) else "admin") in scopes


def keep_alias(alias: Alias) -> None:
    """Keep it in place of another of its old name; its new name is one of its own from now on. Raise Problem
    409 where a renaming in the background has its old name, or takes away the new one."""
    kind, suite, new = alias.kind, alias.suite, alias.new
    goes = Q(arguments__old__in=[alias.old, new]) | Q(arguments__new=alias.old)
    of_suite = Q(arguments__suite__in=[suite, ""]) if suite else Q()
    waiting.check_none(goes & of_suite & Q(action="rename", arguments__kind=kind))
    Alias.objects.filter(kind=kind, old=new, **({"suite": suite} if suite else {})).delete()
    if Alias.objects.filter(kind=kind, suite="", old=new).exists():  # no longer in this suite
        Alias.objects.create(kind=kind, suite=suite, old=new, new=new, who=alias.who)
    Alias.objects.filter(kind=kind, suite=suite, old=alias.old).delete()
    alias.save()
    if kind == "suite":
        there = Alias.objects.filter(suite=new, kind=OuterRef("kind"), old=OuterRef("old"))
        Alias.objects.filter(Exists(there), suite=alias.old).delete()
        Alias.objects.filter(suite=alias.old).update(suite=new)


def aliases() -> set[tuple[str, ...]]:
    """Return kind, suite, old and new name and author of all aliases that people made."""
    return set(Alias.objects.filter(kind__in=KINDS).values_list(*_OF_ALIAS))


def restore_aliases(kept: Collection[Collection[str]], replaced: Collection[Collection[str]]) -> None:
    """Undo `keep_alias`, which has kept some aliases in place of others."""
    for alias in kept:
        Alias.objects.filter(**dict(zip(_OF_ALIAS, alias, strict=True))).delete()
    before = [Alias(**dict(zip(_OF_ALIAS, alias, strict=True))) for alias in replaced]
    Alias.objects.bulk_create(before, ignore_conflicts=True)


def _rename_host(done: Renaming, old: str, new: str) -> None:
    _check_length(new, Host, "name")
    runs = Run.objects.filter(host_name=old)
    if numbers := runs_that_come_twice(runs, host_name=new):
        raise Problem(409, f"{new} has the same runs as {numbers}; delete those of one name first")
    hosts = Host.objects.filter(name=old)
    if Host.objects.filter(name=new).exists():
        if hosts.filter(detached_at=None).exists():
            raise Problem(409, f"{old} and {new} are two attached machines; detach {old} first")
    else:
        done.hosts = hosts.update(name=new)
    done.runs = runs.update(host_name=new)
    if not done.runs and not done.hosts:
        raise Problem(409, f"no host is called {old}")


def runs_that_come_twice(runs: QuerySet[Run], **changed: Any) -> str:
    """Return the numbers of runs whose natural key another run has once `changed` is; '' for none."""
    known = Run.objects.filter(**{name: OuterRef(name) for name in Run.IDENTITY} | changed)
    return ", ".join(str(run.pk) for run in runs.filter(Exists(known)).order_by("pk")[:5])


def experiments_of(alias: Alias) -> QuerySet[Experiment]:
    """Return the experiments with the old name."""
    of_suite = {"suite": alias.suite} if alias.suite else {}
    return Experiment.objects.filter(**{alias.kind: alias.old}, **of_suite)


def _rename_experiments(done: Renaming, alias: Alias, most: int | None) -> int:
    """Give experiments the new name, or merge them into those that have it; return how many. Their points are
    about as many as are wanted at `most`."""
    kind, new = alias.kind, alias.new
    experiments = experiments_of(alias).order_by("pk")
    ids = list(experiments.values_list("pk", flat=True)[:most])
    known = {name: OuterRef(name) for name in Experiment.IDENTITY} | {kind: new}
    same = Experiment.objects.filter(**known).values("pk")[:1]
    merged = experiments.filter(pk__in=ids).annotate(twin=same).exclude(twin=None)
    twins: dict[int, int] = dict(merged.values_list("pk", "twin"))
    if most and twins:
        moving = Point.objects.filter(series__experiment__in=twins).values_list("series__experiment")
        sizes = dict(moving.annotate(Count("series")))
        ids = ids[: max(1, sum(total <= most for total in accumulate(sizes.get(pk, 1) for pk in ids)))]
        twins = {pk: twins[pk] for pk in ids if pk in twins}
    _merge(done, twins, alias.who)
    renamed = [pk for pk in ids if pk not in twins]
    Experiment.objects.filter(pk__in=renamed).update(**{kind: new})
    # an upload finds them anew by their identity, and fills in the digest
    Series.objects.filter(experiment__in=renamed).update(digest=None)
    done.experiments += len(ids)
    done.merged_experiments += len(twins)
    return len(ids)


def _rename_others(done: Renaming, alias: Alias) -> None:
    """Rename what else has the old name, once no experiment of the alias has it."""
    kind, suite, old, new = alias.kind, alias.suite, alias.old, alias.new
    if kind in {"suite", "arch"}:
        subjects = RunSubject.objects.filter(**{kind: old}, **({"suite": suite} if suite else {}))
        names = [{**row, kind: new} for row in subjects.values(*_OF_SUBJECT)]
        RunSubject.objects.bulk_create([RunSubject(**row) for row in names], ignore_conflicts=True)
        subjects.delete()
    KeptValue.objects.all().delete()  # of nights, with names in it
    if kind in {"suite", "case"}:
        RunSummary.objects.all().delete()  # they have the names, and are soon made anew
    if kind == "suite":
        done.runs = _rename_titles(old, new)
    if not Experiment.objects.filter(**{kind: old}).exists():
        done.targets = _rename_rules(Target, kind, old, new)
        _rename_rules(Threshold, kind, old, new)
        Follow.objects.filter(**{kind: old}).update(**{kind: new})
        if kind in {"suite", "case"}:
            Expectation.objects.filter(**{kind: old}).update(**{kind: new})


def _merge(done: Renaming, twins: dict[int, int], who: str) -> None:
    """Move the series of experiments to their twins, whose ids are theirs from now on, and measurements where
    a twin has the same series."""
    pairs: dict[str, Any] = {"old": list(twins), "new": list(twins.values())}
    for table, rest_of_key in _ONE_OF_A_KEY.items():
        execute(
            f"""
            UPDATE {table} own SET experiment_id = pair.new {_PAIRS} AND NOT EXISTS (
                SELECT FROM {table} known WHERE known.experiment_id = pair.new AND {rest_of_key})
            """,  # noqa: S608 — constants of this module, as below  # nosec B608
            pairs,
        )
    counts = merge_series(
        """
        SELECT o.id, n.id FROM unnest(%(old)s::int[], %(new)s::int[]) AS pair(old, new)
        JOIN hud_series o ON o.experiment_id = pair.old
        LEFT JOIN hud_series n ON n.experiment_id = pair.new AND n.metric_id = o.metric_id
            AND n.stream_id = o.stream_id
        """,
        pairs,
    )
    for name, count in zip(_OF_MERGE, counts, strict=True):
        setattr(done, name, getattr(done, name) + count)
    execute(f"UPDATE hud_series own SET experiment_id = pair.new, digest = NULL {_PAIRS}", pairs)  # noqa: S608  # nosec B608
    execute(f"UPDATE hud_runrequest own SET experiment_id = pair.new {_PAIRS}", pairs)  # noqa: S608  # nosec B608
    delete_rows(Experiment, twins)
    merged = (Alias(kind="experiment", old=str(old), new=str(new), who=who) for old, new in twins.items())
    Alias.objects.bulk_create(merged)


def merge_series(statement: str, params: Mapping[str, Any]) -> tuple[int, int, int]:
    """Lock the series of a query, in the order in which the judge does, each with the one that takes it over
    or NULL, and move measurements, points and regressions of those with one, which are judged again. Return
    how many were joined, how many measurements moved, and how many were dropped because the run has them
    there too."""
    series: dict[int, int | None] = dict(fetch_tuples(statement, params))
    joined = {old: new for old, new in series.items() if new is not None}
    lock = "SELECT FROM hud_series WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
    execute(lock, [[*series, *joined.values()]])
    execute(
        """
        CREATE TEMPORARY TABLE moving_run ON COMMIT DROP AS SELECT pair.old, pair.new, p.run_id
        FROM unnest(%s::int[], %s::int[]) AS pair(old, new)
        JOIN (SELECT series_id, run_id FROM hud_point UNION SELECT series_id, run_id FROM hud_sidepoint) p
            ON p.series_id = pair.old
        """,
        [list(joined), list(joined.values())],
    )
    places = fetch_tuples("SELECT run_id, old FROM moving_run UNION SELECT run_id, new FROM moving_run")
    points.unfold(places)
    touch(
        """
        SELECT moving_run.new AS id, min(p.order_time) AS first, max(p.order_time) AS last
        FROM moving_run JOIN hud_point p ON p.series_id = moving_run.old AND p.run_id = moving_run.run_id
        GROUP BY moving_run.new
        """
    )
    moved = execute(
        """
        WITH later AS (  -- points of one run at other times: they go behind those with the new name
            SELECT pair.old, k.run_id, k.environment_id, max(k.repeat) + 1 AS by
            FROM moving_run pair
            JOIN hud_detailedmeasurement k ON k.series_id = pair.new AND k.run_id = pair.run_id
            WHERE EXISTS (SELECT FROM hud_detailedmeasurement m WHERE m.series_id = pair.old
                AND m.run_id = k.run_id AND m.environment_id = k.environment_id
                AND m.order_time <> k.order_time)
            GROUP BY pair.old, k.run_id, k.environment_id
        ), moving AS (
            SELECT m.run_id, m.environment_id, m.repeat, m.side, m.order_time, pair.old, pair.new,
                later.by
            FROM moving_run pair
            JOIN hud_detailedmeasurement m ON m.series_id = pair.old AND m.run_id = pair.run_id
            LEFT JOIN later ON later.old = pair.old AND later.run_id = m.run_id
                AND later.environment_id = m.environment_id
        )
        UPDATE hud_detailedmeasurement m
        SET series_id = moving.new, repeat = m.repeat + coalesce(moving.by, 0)
        FROM moving
        WHERE m.series_id = moving.old AND m.run_id = moving.run_id
            AND m.environment_id = moving.environment_id
            AND m.repeat = moving.repeat AND m.side = moving.side
            AND NOT EXISTS (
                SELECT FROM hud_detailedmeasurement k
                WHERE k.series_id = moving.new AND k.run_id = m.run_id
                    AND k.environment_id = m.environment_id AND k.order_time = m.order_time
                    AND (k.repeat = m.repeat OR moving.by IS NOT NULL) AND k.side = m.side)
        """
    )
    dropped = execute(
        """DELETE FROM hud_detailedmeasurement m USING moving_run
        WHERE m.run_id = moving_run.run_id AND m.series_id = moving_run.old"""
    )
    points.make(places)
    execute("DROP TABLE moving_run")
    judge_again()
    _merge_regressions(joined)
    delete_rows(Series, joined)
    return len(joined), moved, dropped


def _merge_regressions(joined: dict[int, int]) -> None:
    """Give the regressions of merged series to those that stay. Of two active ones the one there stays, with
    the history of both."""
    there = Regression.objects.filter(series__in=joined.values(), state__in=ACTIVE)
    active = {(regression.series_id, regression.class_key): regression for regression in there}
    decided = ("owner", "note", "link", "muted_until")
    for regression in Regression.objects.filter(series__in=joined).order_by("pk"):
        key = joined[regression.series_id], regression.class_key
        stays = active.setdefault(key, regression) if regression.state in ACTIVE else regression
        if stays is regression:
            regression.series_id = key[0]
            regression.save(update_fields=["series"])
        else:
            regression.events.update(regression=stays)
            for name in decided:
                setattr(stays, name, getattr(stays, name) or getattr(regression, name))
            stays.save(update_fields=decided)
            regression.delete()


def _rename_rules(rules: type[Target | Threshold], kind: str, old: str, new: str) -> int:
    """Rename what rules match, once no experiment has the old name; one with the new name stays. Return how
    many."""
    identity = {name: OuterRef(name) for name in rules.IDENTITY} | {kind: new}
    renamed = rules._default_manager.filter(**{kind: old})
    twins = renamed.filter(Exists(rules._default_manager.filter(**identity))).delete()[0]
    return twins + renamed.update(**{kind: new})


def _rename_titles(old: str, new: str) -> int:
    """Rename a suite in the titles of runs, as `hud.ingest.runs` writes them; return how many."""
    runs = []
    for run in Run.objects.filter(upload__isnull=False, title__contains=old):
        source, colon, suites = run.title.rpartition(": ")
        names = [new if name == old else name for name in suites.split(", ")]
        title = f"{source}{colon}{', '.join(dict.fromkeys(names))}"[:300]
        if title != run.title:
            run.title = title
            runs.append(run)
    return Run.objects.bulk_update(runs, ["title"], batch_size=1000) if runs else 0


def _check_length(name: str, kind: Any, field: str) -> None:
    most = kind._meta.get_field(field).max_length
    if len(name) > most:
        raise Problem(409, f"a name has at most {most} characters")
