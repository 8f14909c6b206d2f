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

from hud.accounts import audit
from hud.accounts.audit import client_address
from hud.accounts.roles import Scopes
from hud.corrections import deletion, renaming, streams
from hud.corrections.deletion import ChangedRows, Deletion, may_delete
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
_NAMES = ("kind", "old", "new", "suite")  # of an alias
logger = logging.getLogger(__name__)
# By action: what counts, which of it are the rows, and what does a part and returns whether it was the last
_Part = Callable[[Any, dict[str, Any], str], bool]
_ACTIONS: dict[str, tuple[type[ChangedRows], str, _Part]] = {
    f"{kind._meta.model_name}.delete": (
        Deletion,
        "points",
        lambda done, of, who, kind=kind: deletion.delete_part(done, kind(pk=of["id"]), who, PART),  # type: ignore[misc]
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
    lambda done, of, who: renaming.rename_part(
        done, Alias(**{name: of[name] for name in _NAMES}, who=who), PART
    ),
)
# By action: what takes back, of one that is cancelled, what was done when it was asked for
_RESTORE: dict[str, Callable[..., None]] = {
    "run.delete": deletion.restore,
    "upload.delete": deletion.restore,
    "rename": renaming.restore_aliases,
}


def delete(row: Run | Upload, *, who: str, dry_run: bool = False) -> Deletion | Correction:
    """Delete a run or an upload; a large one in the background, of which a dry run counts runs, uploads,
    points and measurements only. Raise Problem."""
    points = sum(run.points for run in deletion.runs_of(row))
    if points <= LARGE:
        return deletion.delete(row, who=who, dry_run=dry_run)
    if dry_run:
        return deletion.estimate(row)
    with changing_references():
        about = {"id": row.pk, "before": deletion.set_aside(row)}
        return _begin(f"{row._meta.model_name}.delete", str(row), about, points, who)


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
        before = renaming.aliases()
        renaming.keep_alias(alias)
        after = renaming.aliases()
        changed = {"kept": sorted(after - before), "replaced": sorted(before - after)}
        names = {name: getattr(alias, name) for name in _NAMES}
        return _begin("rename", str(alias), {**names, "before": changed}, experiments, who)


def merge(stream: Stream, into: Stream, *, who: str) -> Merging | Correction:
    """Merge a stream into another; one with many points in the background. Raise Problem."""
    points = stream.runs.aggregate(total=Sum("points"))["total"] or 0
    if points <= LARGE:
        return streams.merge(stream, into, who=who)
    with transaction.atomic():
        stream, into = streams.to_be_merged(stream, into)
        about, series = {"stream": stream.pk, "into": into.pk}, stream.series.count()
        return _begin("stream.merge", f"stream {stream.name} into {into.name}", about, series, who)


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
            row.rows = max(row.rows, row.done_rows)  # uploads come meanwhile
        row.finished = timezone.now() if is_over else None
        row.save()
    return True


def may_cancel(row: Correction, *, scopes: Scopes, owner_id: int | None, key_id: int | None = None) -> bool:
    """Return whether a caller may cancel a correction: who may ask for it."""
    if row.action == "stream.merge":
        return "rules" in scopes
    if row.action == "rename":
        return renaming.may_rename(row.arguments["kind"], row.arguments["old"], scopes)
    kind = Run if row.action == "run.delete" else Upload
    subject = kind._default_manager.filter(pk=row.arguments["id"]).first()
    uploads = deletion.uploads_of(subject) if subject else []
    return may_delete(uploads, scopes=scopes, owner_id=owner_id, key_id=key_id)


def cancel(row: Correction, *, who: str) -> Correction:
    """End a correction that waits, as if nobody had asked for it; what came in under a new name stays there.
    Raise Problem 409 for one that has changed something."""
    with transaction.atomic():
        row = Correction.objects.select_for_update().get(pk=row.pk)  # waits for a part of it
        if not row.waits:
            words = "has ended" if row.finished else "is under way, and what it has changed stays so"
            raise Problem(409, f"correction {row.pk} {words}")
        if before := row.arguments.get("before"):
            with changing_references():
                _RESTORE[row.action](**before)
        row.finished = timezone.now()
        row.save(update_fields=["finished"])
        audit.note(who=who, action=f"{row.action}.cancel", subject=row.subject)
    return row


def finish(done: ChangedRows | Correction) -> ChangedRows:
    """Return what a correction changed, once it is over. Raise Problem."""
    if isinstance(done, ChangedRows):
        return done
    while done.finished is None:
        if not run_part():
            time.sleep(0.2)
        done.refresh_from_db()
    if done.state != "done":
        raise Problem(409, done.problem or "it was cancelled")
    return _ACTIONS[done.action][0](**done.counts)
