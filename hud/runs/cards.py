"""Keep series on their cards: a task waits a while for the card on which its kind was last measured.

Two cards of one kind differ by 1 %, more than many changes that are searched for.
"""

from django.conf import settings

from hud.models import Run, Task
from hud.runs import matching
from hud.sql import execute

_LOOK_BACK = 5000  # tasks of the stream
_KIND = "spec - '{compilation,timeout_s}'::text[]"  # of a task: what it measures
# Task t may go to accelerator a: it has no card, or this one, or its own cannot take it, or did not within
# the bound since another card was free for it.
MAY_GO = f"""
    (t.home_id IS NULL OR t.home_id = a.id
    OR t.passed_at <= clock_timestamp() - %(same_card)s * interval '1 s'
    OR NOT EXISTS (
        SELECT FROM (SELECT * FROM hud_accelerator WHERE id = t.home_id) a
        JOIN hud_host h ON h.id = a.host_id WHERE {matching.FITS} AND {matching.OPEN} AND {matching.HEARD}))
"""  # noqa: S608 - constants of ours  # nosec B608


def assign(run: Run) -> None:
    """Give each task of a new run the card of the newest task of its stream that measured the same: 1
    statement. A processor is no card."""
    if not settings.HUD_SAME_CARD_S:
        return
    execute(
        f"""
        UPDATE hud_task t SET home_id = past.accelerator_id FROM (
            SELECT DISTINCT ON (kind) kind, accelerator_id FROM (
                SELECT p.id, p.{_KIND} AS kind, p.accelerator_id FROM hud_task p
                JOIN hud_run r ON r.id = p.run_id AND r.stream_id = %(stream)s
                WHERE p.state = 'done' AND p.status = 'ok' ORDER BY p.id DESC LIMIT {_LOOK_BACK}
            ) p JOIN hud_accelerator a ON a.id = p.accelerator_id AND a.uuid <> ''
            ORDER BY kind, p.id DESC
        ) past
        WHERE t.run_id = %(run)s AND t.{_KIND} = past.kind
        """,  # noqa: S608 - constants of this file  # nosec B608
        {"run": run.pk, "stream": run.stream_id},
    )


def pass_over(accelerator_id: int) -> None:
    """Note that an accelerator was free for tasks that wait for their cards: from now on the bound counts."""
    execute(
        f"""
        UPDATE hud_task SET passed_at = clock_timestamp() WHERE id IN (
            SELECT t.id FROM {matching.FITTING_RUNS}
            JOIN hud_task t ON t.run_id = r.id AND t.state = 'queued' AND t.passed_at IS NULL
            WHERE a.id = %(accelerator)s AND {matching.OPEN} AND t.home_id <> a.id
            FOR UPDATE OF t SKIP LOCKED)
        """,  # noqa: S608 - constants of ours  # nosec B608
        {"accelerator": accelerator_id},
    )


def elsewhere(task: Task) -> str:
    """Return what to know of a claimed task's numbers if another card measured its series last, else ''."""
    home, now = task.home, task.accelerator
    if home is None or now is None or home.pk == now.pk:
        return ""
    last = f"{home.host.name} {home.name}"
    return f"measured on another card, {now.host.name} {now.name}, than last time ({last})"
