"""A series for the API: every point with its compilations, target and verdict."""

import hashlib
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from django.conf import settings

from hud.models import Point, Run, Series
from hud.points import expectations
from hud.points.read import POINT
from hud.points.targets import Targets
from hud.problems import Problem
from hud.runs.branches import branch_or_default, stored_names
from hud.sql import fetch_models, fetch_tuples
from runner.formats.errors import Fault

MAX_POINTS = 2000  # of one page


def etag_of(series: Series, filters: Mapping[str, Any]) -> str:
    """Return an ETag that changes with points, verdicts and targets."""
    (state,) = fetch_tuples(
        """
        SELECT count(p.run_id), sum(hashtext(concat(p.xmin, p.ctid))),  -- another version of a row has others
            (SELECT coalesce(sum(hashtext(t::text)), 0) FROM hud_target t),
            (SELECT sum(hashtext(x.id::text)) FROM hud_expectation x WHERE x.suite = e.suite
                AND x."case" = e."case"),
            (SELECT sum(hashtext(f::text)) FROM hud_knownfailure f WHERE f.experiment_id = e.id)
        FROM hud_experiment e LEFT JOIN hud_point p ON p.series_id = %(series)s
        WHERE e.id = %(experiment)s GROUP BY e.id
        """,
        {"series": series.pk, "experiment": series.experiment_id},
    )
    text = f"{series.pk} {filters} {settings.HUD_DEFAULT_BRANCH} {series.stream} {state}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def series_points(
    series: Series, *, branch: str, since: date | None, until: date | None, cursor: str
) -> dict[str, Any]:
    """Return a page of at most `MAX_POINTS` points, oldest first, from the day `since` to the day `until`.
    The first page has the latest points; its `next` is the `cursor` of those before them. Raise Problem 422
    for a wrong cursor."""
    time, run, environment = _place_of(cursor) if cursor else (None, None, None)
    newest_first = fetch_models(
        Point,
        """
        JOIN hud_run run ON run.id = one.run_id
        WHERE one.series_id = %(series)s
            AND (%(branches)s::text[] IS NULL OR one.branch = ANY(%(branches)s))
            AND (%(since)s::date IS NULL OR one.order_time >= %(since)s::date)
            AND (%(until)s::date IS NULL OR one.order_time < %(until)s::date + 1)
            AND (%(time)s::timestamptz IS NULL OR (one.order_time, one.run_id, one.environment_id)
                < (%(time)s::timestamptz, %(run)s::int, %(environment)s::int))
        ORDER BY one.order_time DESC, one.run_id DESC, one.environment_id DESC LIMIT %(limit)s
        """,
        {
            "series": series.pk,
            "branches": stored_names(branch) if branch else None,
            "since": since,
            "until": until,
            "time": time,
            "run": run,
            "environment": environment,
            "limit": MAX_POINTS + 1,
        },
        run=Run,
    )
    targets = Targets.read()
    page = newest_first[:MAX_POINTS][::-1]
    for point in page:
        point.show(series.experiment, series.metric, targets)
    expectations.add(series.stream_id, page)
    return {
        "unit": series.metric.unit,
        "direction": series.metric.direction,
        "points": [_row(point, series) for point in page],
        "next": _cursor(page[0]) if len(newest_first) > MAX_POINTS else None,
    }


def _cursor(point: Point) -> str:
    time = point.order_time.isoformat().replace("+00:00", "Z")
    return f"{time}_{point.run_id}_{point.environment_id}"


def _place_of(cursor: str) -> tuple[datetime, int, int]:
    text = "the cursor is none that an earlier answer gave"
    wrong = Problem(422, text, errors=[Fault("?cursor", text)])
    try:
        time, run, environment = cursor.split("_")
        place = datetime.fromisoformat(time.replace("Z", "+00:00")), int(run), int(environment)
    except ValueError as error:
        raise wrong from error
    if place[0].tzinfo is None or not all(0 <= number < 2**31 for number in place[1:]):
        raise wrong
    return place


def _row(point: Point, series: Series) -> dict[str, Any]:
    own = point.own_target
    return {
        **POINT.row(point),
        "stream": series.stream.name,
        "time": point.order_time.isoformat(),
        "commit": point.run.commit,
        "branch": branch_or_default(point.branch),
        "source": point.run.source,
        "verdict": point.verdict or None,
        "target": own.value if own else point.target,
        "target_arch": None if own else point.target_arch,
        "compilations": _compilations(point),
    }


def _compilations(point: Point) -> list[dict[str, Any]]:
    """Return each compilation that gave a value; the variant is None where its kernels are not known."""
    values = point.compilation_values
    variants = point.variants or list[str | None]([None] * len(values))
    counts = point.counts or [point.samples]
    return [
        {"variant": variant, "value": value, "n": n}
        for variant, value, n in zip(variants, values, counts, strict=True)
        if value is not None
    ]
