"""Delete a run or an upload with everything that nothing else refers to.

A dry run deletes and rolls back, so that it answers exactly what a deletion takes along. Locks are taken as
the judge takes them: compilations, unjudged runs, series in the order of their ids, then runs.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import Count, Exists, OuterRef, Q, Subquery, Sum, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Concat
from django.utils import timezone

from hud.accounts import audit
from hud.accounts.roles import Scopes
from hud.files import delete_folder
from hud.ingest.runs import changing_references
from hud.models import (
    ACTIVE,
    Artifact,
    DetailedMeasurement,
    Expectation,
    Experiment,
    IdempotencyKey,
    Import,
    Measurement,
    Run,
    Series,
    Task,
    Upload,
)
from hud.points import write as points
from hud.problems import Problem
from hud.sql import execute, fetch_tuples, int_array

OWN_UPLOAD_AGE = timedelta(days=1)  # so long an uploader may delete an own upload


class ChangedRows:
    """Count what a deletion, renaming or merge touches; a dataclass derives from it."""

    def to_json(self) -> dict[str, int]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # of a dataclass

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.to_json().items())


@dataclass
class Deletion(ChangedRows):
    """Counts of what a deletion removes. Series that stay are judged again."""

    runs: int = 0
    uploads: int = 0
    measurements: int = 0
    compilations: int = 0
    points: int = 0
    series: int = 0
    experiments: int = 0
    tasks: int = 0
    artifacts: int = 0
    file_bytes: int = 0  # of logs and artifacts
    expectations: int = 0
    series_judged_again: int = 0


def delete(row: Run | Upload, *, who: str, dry_run: bool = False) -> Deletion:
    """Delete a run, and uploads that it leaves without measurements; or an upload with its measurements, its
    expectations, and its runs without measurements of other uploads. The same content can then be uploaded
    again. Raise Problem."""
    done = Deletion()
    with changing_references():
        delete_part(done, row, who)
        if dry_run:
            transaction.set_rollback(True)
    return done


def delete_part(done: Deletion, row: Run | Upload, who: str, most: int | None = None) -> bool:
    """Delete about so many measurements of a run or an upload, and what they leave empty; the row itself once
    none is left. Return whether that is so. Raise Problem."""
    fresh = type(row).objects.filter(pk=row.pk).first()
    if fresh is None:
        raise Problem(409, "it is deleted already")
    if isinstance(fresh, Run) and fresh.state in ACTIVE:  # a run that has ended never begins again
        raise Problem(409, f"{fresh} is {fresh.state}: cancel it first, and wait until it has ended")
    upload = fresh if isinstance(fresh, Upload) else None
    run_ids = [run.pk for run in runs_of(fresh)]
    if _delete_measurements(done, run_ids, upload, most) and most:
        return False
    points.forget_subjects(run_ids)
    if upload:  # the first other one with measurements in them gets its runs
        measured = Measurement.objects.filter(run=OuterRef("pk"))
        first = measured.order_by("upload").values("upload")[:1]
        Run.objects.filter(Exists(measured), upload=upload).update(upload=Subquery(first))
        run_ids = list(Run.objects.filter(upload=upload).values_list("pk", flat=True))
    gone = _delete_runs_and_uploads(done, run_ids, upload)
    action = f"{fresh._meta.model_name}.delete"
    audit.note(who=who, action=action, subject=str(fresh), detail={**done.to_json(), **gone})
    return True


def runs_of(row: Run | Upload) -> list[Run]:
    """Return the run, or those that an upload made or brought measurements of."""
    if isinstance(row, Run):
        return [row]
    return list(Run.objects.filter(Q(upload=row) | Q(pk__in=row.receipt.get("run_ids", []))))


def _wholly(row: Run | Upload) -> tuple[list[Run], list[Upload]]:
    """Return the runs and uploads of which a deletion leaves nothing."""
    if isinstance(row, Run):
        named: tuple[list[int], ...] = [], [row.pk]
        return [row], [upload for upload in uploads_of(row) if upload.receipt.get("run_ids", []) in named]
    return [run for run in runs_of(row) if {upload.pk for upload in uploads_of(run)} == {row.pk}], [row]


def estimate(row: Run | Upload) -> Deletion:
    """Count the runs, uploads, points and measurements of a deletion, without doing it."""
    runs, uploads = _wholly(row)
    of_upload = {"upload": row} if isinstance(row, Upload) else {}
    measurements = Measurement.objects.filter(run__in=runs_of(row), **of_upload)
    places = measurements.values("run", "series").distinct()
    return Deletion(
        runs=len(runs), uploads=len(uploads), points=places.count(), measurements=measurements.count()
    )


def set_aside(row: Run | Upload) -> dict[str, dict[int, str]]:
    """Let what is deleted in parts come in again meanwhile, as new; return what `restore` takes. Raise
    Problem."""
    if isinstance(row, Run) and row.state in ACTIVE:
        raise Problem(409, f"{row} is {row.state}: cancel it first, and wait until it has ended")
    runs, uploads = _wholly(row)
    content_keys = {upload.pk: upload.content_key for upload in uploads}
    external_ids = {run.pk: run.external_id for run in runs if run.external_id is not None}
    _outdate(content_keys)
    Run.objects.filter(pk__in=external_ids).update(external_id=None)
    return {"content_keys": content_keys, "external_ids": external_ids}


def restore(content_keys: Mapping[str, str], external_ids: Mapping[str, str]) -> None:
    """Undo `set_aside`, except for what came in again meanwhile."""
    columns = (Upload, "content_key", content_keys), (Run, "external_id", external_ids)
    for kind, column, values in columns:
        for pk, value in values.items():
            with suppress(IntegrityError), transaction.atomic():
                kind._default_manager.filter(pk=pk).update(**{column: value})


def may_delete(
    uploads: Collection[Upload], *, scopes: Scopes, owner_id: int | None, key_id: int | None = None
) -> bool:
    """Return whether a caller may delete what came in these uploads: everything with the scope `run`, else
    what the caller has uploaded within a day. `owner_id` is the person's or of the caller's key."""
    if "run" in scopes:
        return True
    since = timezone.now() - OWN_UPLOAD_AGE
    return bool(uploads) and all(
        upload.created > since
        and upload.key is not None
        and (upload.key.pk == key_id or (owner_id is not None and upload.key.owner_id == owner_id))
        for upload in uploads
    )


def uploads_of(run: Run | Upload) -> list[Upload]:
    """Return the upload that made a run, and every other one to its stream that brought measurements of it. A
    run of a host has none, also where its export was uploaded; an upload has itself."""
    if isinstance(run, Upload):
        return [run]
    if run.upload_id is None:
        return []
    others = Q(stream=run.stream_id, receipt__contains={"run_ids": [run.pk]})
    uploads = Upload.objects.filter(Q(pk=run.upload_id) | others)
    return list(uploads.select_related("key").order_by("pk"))


def _delete_measurements(done: Deletion, run_ids: list[int], upload: Upload | None, most: int | None) -> int:
    """Delete about so many measurements of these runs, or of one upload in them, with what that leaves empty;
    return of how many runs and series."""
    of_upload = "" if upload is None else "AND upload_id = %(upload)s"
    params: dict[str, Any] = {"runs": run_ids, "upload": upload and upload.pk, "most": most}
    which = f"run_id = ANY(%(runs)s) {of_upload}"
    # points whose raw values were dropped go with their run
    kinds = ("hud_measurement", *(() if upload else ("hud_point", "hud_sidepoint")))
    places_of = "SELECT run_id, series_id FROM {} WHERE " + which  # noqa: S608  # nosec B608
    done.compilations += execute(f"DELETE FROM hud_compilation WHERE {which}", params)  # noqa: S608  # nosec B608
    # the judge locks them before it adds measurements of its own to their runs
    execute("SELECT FROM hud_unjudgedrun WHERE run_id = ANY(%(runs)s) ORDER BY id FOR UPDATE", params)
    execute("DROP TABLE IF EXISTS pg_temp.place")
    execute(
        f"""CREATE TEMPORARY TABLE place ON COMMIT DROP AS SELECT DISTINCT * FROM (
            {" UNION ALL ".join(map(places_of.format, kinds))} LIMIT %(most)s) few""",  # noqa: S608 — constants of this function  # nosec B608
        params,
    )
    execute("ANALYZE place")
    touch(
        """
        SELECT place.series_id AS id, min(order_time) AS first, max(order_time) AS last
        FROM place CROSS JOIN LATERAL (
            SELECT order_time FROM hud_point WHERE run_id = place.run_id AND series_id = place.series_id
            UNION ALL SELECT order_time FROM hud_sidepoint
            WHERE run_id = place.run_id AND series_id = place.series_id OFFSET 0) p GROUP BY 1
        """
    )
    which += " AND (run_id, series_id) IN (SELECT run_id, series_id FROM place)"
    for taken_from in ("DELETE FROM hud_detailedmeasurement", "UPDATE hud_point SET repeat = NULL"):
        done.measurements += execute(f"{taken_from} WHERE {which} AND repeat IS NOT NULL", params)  # nosec B608
    places = fetch_tuples("SELECT run_id, series_id FROM place")
    done.points += points.make(places, of_compilations=places if upload else ())
    empty = dict(  # OFFSET 0: one look-up each
        fetch_tuples(
            """
            SELECT id, experiment_id FROM hud_series s WHERE id IN (SELECT id FROM touched)
                AND NOT EXISTS (SELECT FROM hud_point WHERE series_id = s.id OFFSET 0)
                AND NOT EXISTS (SELECT FROM hud_sidepoint WHERE series_id = s.id OFFSET 0)
            """
        )
    )
    done.series += delete_rows(Series, empty)
    done.series_judged_again += judge_again()
    left = Experiment.objects.filter(pk__in=set(empty.values()), series=None)
    done.experiments += delete_rows(Experiment, left.values_list("pk", flat=True))
    return len(places)


def touch(changed: str, params: dict[str, Any] | None = None) -> None:
    """Lock the series of a query for `id`, `first` and `last`, and keep its rows for `judge_again`."""
    execute("DROP TABLE IF EXISTS pg_temp.touched")
    execute(f"CREATE TEMPORARY TABLE touched ON COMMIT DROP AS {changed}", params)
    execute("ANALYZE touched")
    execute("SELECT FROM hud_series WHERE id IN (SELECT id FROM touched) ORDER BY id FOR UPDATE")


def judge_again() -> int:
    """Mark the series of `touch` for the judge, from the first changed point to the last; return how many."""
    return execute(
        """
        UPDATE hud_series s SET touched_at = least(s.touched_at, touched.first),
            touched_until = greatest(s.touched_until, touched.last)
        FROM touched WHERE s.id = touched.id
        """
    )


def delete_rows(kind: type[Series] | type[Experiment], ids: Iterable[int]) -> int:
    """Delete rows and what refers to them by the models' rules, in sets: Django would list 100,000 ids in
    each statement. Return how many rows went. Series that are deleted have no measurements any more."""
    gone = RawSQL("SELECT unnest(%s::int[])", [int_array(ids)])
    for relation in kind._meta.related_objects:
        if relation.related_model in (DetailedMeasurement, Measurement):
            continue  # it has no index by series, or is a view
        rows = relation.related_model._default_manager.filter(**{f"{relation.field.attname}__in": gone})
        if relation.on_delete is models.SET_NULL:
            rows.update(**{relation.field.name: None})
        else:
            rows.delete()
    return execute(f"DELETE FROM {kind._meta.db_table} WHERE id IN ({gone.sql})", gone.params)  # noqa: S608  # nosec B608


def _delete_runs_and_uploads(
    done: Deletion, run_ids: list[int], upload: Upload | None
) -> dict[str, list[int]]:
    """Delete these runs, and the uploads that are left without measurements; of an upload only itself. Return
    the ids of both. Others that lost what they had repeated stay, and their content can be stored again."""
    files = Artifact.objects.filter(task__run__in=run_ids).aggregate(
        count=Count("pk"), size=Sum("size_bytes")
    )
    tasks = Task.objects.filter(run__in=run_ids).aggregate(count=Count("pk"), size=Sum("log_bytes"))
    done.tasks, done.artifacts = tasks["count"], files["count"]
    done.file_bytes = (tasks["size"] or 0) + (files["size"] or 0)
    # other uploads may have stored nothing in the runs of this one
    shared = upload.receipt.get("run_ids", []) if upload else []
    concerned = fetch_tuples(
        """
        SELECT DISTINCT u.id FROM hud_upload u
        LEFT JOIN jsonb_array_elements_text(coalesce(u.receipt->'run_ids', '[]')) AS named(run) ON true
        WHERE u.id = %(upload)s OR named.run::int = ANY(%(named)s)
            OR u.id IN (SELECT upload_id FROM hud_run WHERE id = ANY(%(runs)s))
        """,
        {"upload": upload and upload.pk, "runs": run_ids, "named": [*run_ids, *shared]},
    )
    done.runs = _delete(Run, pk__in=run_ids)
    rows = fetch_tuples(
        """
        SELECT u.id FROM hud_upload u WHERE u.id = ANY(%s)
            AND NOT EXISTS (SELECT FROM hud_run WHERE upload_id = u.id)
            AND NOT EXISTS (
                SELECT FROM hud_measurement m WHERE m.upload_id = u.id AND m.run_id IN (
                    SELECT jsonb_array_elements_text(coalesce(u.receipt->'run_ids', '[]'))::int))
        """,
        [[upload_id for (upload_id,) in concerned]],
    )
    emptied = [upload_id for (upload_id,) in rows]
    if upload:
        _outdate([pk for pk in emptied if pk != upload.pk] if done.measurements else [])
        emptied = [upload.pk]
    done.expectations = _delete(Expectation, upload__in=emptied)
    imports = Import.objects.filter(receipt__id__in=emptied)
    of_imports = Q(receipt={}, content_key__in=imports.values("content_key"))  # whose answer is the job's
    IdempotencyKey.objects.filter(Q(receipt__id__in=emptied) | of_imports).delete()
    imports.delete()
    # not by the ORM, which would look for their measurements without an index
    done.uploads = execute("DELETE FROM hud_upload WHERE id = ANY(%s)", [emptied])
    IdempotencyKey.objects.filter(receipt__run__in=run_ids).delete()
    # what a crash leaves behind goes as an orphan (`hud.retention`)
    for name, run_id in product(("artifacts", "tasklogs"), run_ids):
        transaction.on_commit(partial(delete_folder, f"{name}/{run_id}"), robust=True)
    return {"run_ids": run_ids, "upload_ids": emptied}


def _outdate(uploads: Collection[int]) -> None:
    """Let the content of uploads come in again."""
    IdempotencyKey.objects.filter(receipt__id__in=uploads).delete()
    for kind, which in ((Upload, {"pk__in": uploads}), (Import, {"receipt__id__in": uploads})):
        outdated_key = Concat(Value("outdated "), Cast("pk", models.TextField()))
        kind._default_manager.filter(**which).update(content_key=outdated_key)


def _delete(kind: Any, **which: Any) -> int:
    """Return how many rows of this kind went; what refers to them goes by the models' rules."""
    by_kind: dict[str, int] = kind.objects.filter(**which).delete()[1]
    return by_kind.get(kind._meta.label, 0)
