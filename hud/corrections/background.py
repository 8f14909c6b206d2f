"""Corrections of what is large: in parts, each a short transaction, by `manage.py imports` when none waits.

The store itself says what is left to do, so that a correction whose process dies goes on where it was.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Sum
from django.utils import timezone

from hud.accounts.audit import client_address
from hud.corrections import deletion, renaming, streams
from hud.corrections.deletion import ChangedRows, Deletion
from hud.corrections.renaming import Renaming
from hud.corrections.streams import Merging
from hud.ingest.runs import changing_references
from hud.models import Alias, Correction, Run, Stream, Upload
from hud.problems import Problem, row_of
from hud.tables.table import DataTable

LARGE = 5000  # points or experiments; a correction of more is done in parts
PART = 2000  # points that a part takes, about
COLUMNS = DataTable[Correction](
    """id:int=pk action:str subject:str state:str done_rows:int rows:int counts:dict[str,int] problem:str
    links:dict[str,str]""",
    links=lambda row: {"self": f"/api/v1/corrections/{row.pk}"},
)
logger = logging.getLogger(__name__)
# By action: what counts, which of it are the rows, and what does a part and returns whether it was the last
_Part = Callable[[Any, dict[str, Any], str], bool]
_ACTIONS: dict[str, tuple[type[ChangedRows], str, _Part]] = {
    f"{kind._meta.model_name}.delete": (
        Deletion,
        "points",
        lambda done, of, who, kind=kind: deletion.delete_part(done, row_of(kind, of["id"]), who, PART),  # type: ignore[misc]
    )
    for kind in (Run, Upload)
}
_ACTIONS["stream.merge"] = (
    Merging,
    "all_series",
    lambda done, of, who: streams.merge_part(
        done, row_of(Stream, of["stream"]), row_of(Stream, of["into"]), who, PART
    ),
)
_ACTIONS["rename"] = (
    Renaming,
    "experiments",
    lambda done, of, who: renaming.rename_part(done, Alias(**of, who=who), PART),
)


def delete(row: Run | Upload, *, who: str, dry_run: bool = False) -> Deletion | Correction:
    """Delete a run or an upload; a large one in the background, of which a dry run says about how many points
    go. Raise Problem."""
    points = sum(run.points for run in deletion.runs_of(row))
    if points <= LARGE:
        return deletion.delete(row, who=who, dry_run=dry_run)
    if dry_run:
        return Deletion(points=points)
    with changing_references():
        deletion.set_aside(row)
        return _begin(f"{row._meta.model_name}.delete", str(row), {"id": row.pk}, points, who)


def rename(
    *, kind: str, old: str, new: str, who: str, suite: str = "", dry_run: bool = False
) -> Renaming | Correction:
    """Rename as `hud.corrections.renaming` does; many experiments in the background, of which a dry run says
    how many there are. What comes in has the new name at once. Raise Problem."""
    alias = renaming.alias_of(kind, old, new, suite, who)
    experiments = renaming.experiments_of(alias).count() if kind != "host" else 0
    if experiments <= LARGE:
        return renaming.rename(kind=kind, old=old, new=new, who=who, suite=suite, dry_run=dry_run)
    if dry_run:
        return Renaming(experiments=experiments)
    with changing_references():
        renaming.keep_alias(alias)
        names = {name: getattr(alias, name) for name in ("kind", "old", "new", "suite")}
        return _begin("rename", str(alias), names, experiments, who)


def merge(stream: Stream, into: Stream, *, who: str) -> Merging | Correction:
    """Merge a stream into another; one with many points in the background. Raise Problem."""
    points = stream.runs.aggregate(total=Sum("points"))["total"] or 0
    if points <= LARGE:
        return streams.merge(stream, into, who=who)
    streams.check_mergeable(stream, into)
    about = {"stream": stream.pk, "into": into.pk}
    return _begin("stream.merge", f"stream {stream.name} into {into.name}", about, stream.series.count(), who)


def _begin(action: str, subject: str, arguments: dict[str, Any], rows: int, who: str) -> Correction:
    about = {"arguments": arguments, "rows": rows, "who": who[:150], "address": client_address.get()}
    return Correction.objects.get_or_create(
        action=action, subject=subject[:200], finished=None, defaults=about
    )[0]


def run_part() -> bool:
    """Do the next part of the oldest correction; return False where there is none, or an upload is being
    stored."""
    with transaction.atomic():
        waiting = Correction.objects.select_for_update(skip_locked=True).filter(finished=None)
        row = waiting.order_by("pk").first()
        if row is None:
            return False
        kind, unit, part = _ACTIONS[row.action]
        done, is_over = kind(**row.counts), True
        client_address.set(row.address)
        try:
            with changing_references():
                is_over = part(done, row.arguments, row.who)
        except (OperationalError, InterfaceError):
            raise
        except Problem as error:
            if error.retry_after_s is not None:
                return False
            row.problem = str(error)[:500]
        except Exception:
            logger.exception("correction %s ends with an error of ours", row.pk)
            row.problem = "an error of ours; it is in the log"
        else:
            row.counts, row.done_rows = done.to_json(), getattr(done, unit)
        row.finished = timezone.now() if is_over else None
        row.save()
    return True


def finish(done: ChangedRows | Correction) -> ChangedRows:
    """Return what a correction changed, once it is over. Raise Problem."""
    if isinstance(done, ChangedRows):
        return done
    while done.finished is None:
        if not run_part():
            time.sleep(0.2)
        done.refresh_from_db()
    if done.problem:
        raise Problem(409, done.problem)
    return _ACTIONS[done.action][0](**done.counts)
