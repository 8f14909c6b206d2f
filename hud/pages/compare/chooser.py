"""Sides that may be chosen: the newest runs, and the default branch's last two nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.models import TERMINAL, Run
from hud.pages.runs.query import origin_of, title_of
from hud.sql import fetch_tuples
from hud.runs.branches import branch_or_default, stored_names

_MOST_RUNS = 40


@dataclass(frozen=True)
class Offer:
    """A run that may be a side."""

    run: Run

    @property
    def side(self) -> str:
        return f"run:{self.run.pk}"

    @property
    def title(self) -> str:
        return title_of(self.run)

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title and commit: source, file and external id."""
        return [*filter(None, [self.run.source]), *origin_of(self.run)]

    @property
    def branch(self) -> str:
        return branch_or_default(self.run.branch)

    def to_row(self) -> dict[str, Any]:
        run = self.run
        return {
            "side": self.side,
            "run": run.pk,
            "title": self.title,
            "source": run.source,
            "filename": run.upload.filename if run.upload else "",
            "branch": self.branch,
            "commit": run.commit,
            "host": run.host_name,
            "time": run.order_time,
        }


@dataclass(frozen=True)
class Chooser:
    runs: list[Offer]
    nights: tuple[str, str] | None  # sides: the two newest commits of the default branch
    newest_two: tuple[str, str] | None  # the newest run that measured something again, after the one before


def read() -> Chooser:
    """Return the newest runs and the last two nights: 3 statements."""
    ended = Run.objects.filter(state__in=TERMINAL).order_by("-order_time", "-pk")
    nights = ended.filter(base_interpreter="", branch__in=stored_names()).exclude(commit="")
    commits = list(dict.fromkeys(nights.values_list("commit", flat=True)[:500]))
    large = ("provenance", "upload__parameters", "upload__receipt")
    runs = [Offer(run) for run in ended.select_related("upload").defer(*large)[:_MOST_RUNS]]
    return Chooser(runs, _two(commits), _again([offer.run.pk for offer in runs]))


def _again(runs: list[int]) -> tuple[str, str] | None:
    """Return the newest of these runs whose first series has an earlier point, after the run of that."""
    found = fetch_tuples(
        """
        SELECT earlier.run_id, r.id
        FROM unnest(%(runs)s::int[]) WITH ORDINALITY AS given(id, place) JOIN hud_run r ON r.id = given.id
        CROSS JOIN LATERAL (
            SELECT series_id FROM hud_measurement WHERE run_id = r.id AND value IS NOT NULL LIMIT 1
        ) one
        CROSS JOIN LATERAL (
            SELECT run_id FROM hud_measurement m
            WHERE m.series_id = one.series_id AND m.order_time < r.order_time AND m.run_id <> r.id
            ORDER BY m.order_time DESC LIMIT 1
        ) earlier
        ORDER BY given.place LIMIT 1
        """,
        {"runs": runs},
    )
    return (f"run:{found[0][0]}", f"run:{found[0][1]}") if found else None


def _two(commits: Sequence[str]) -> tuple[str, str] | None:
    return (f"commit:{commits[1]}", f"commit:{commits[0]}") if len(commits) > 1 else None
