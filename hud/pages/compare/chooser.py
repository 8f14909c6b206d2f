"""Sides that may be chosen: the newest runs, and the default branch's last two nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.models import TERMINAL, Run
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
    def branch(self) -> str:
        return branch_or_default(self.run.branch)

    def to_row(self) -> dict[str, Any]:
        run = self.run
        return {
            "side": self.side,
            "run": run.pk,
            "title": run.title,
            "branch": self.branch,
            "commit": run.commit,
            "host": run.host_name,
            "time": run.order_time,
        }


@dataclass(frozen=True)
class Chooser:
    runs: list[Offer]
    nights: tuple[str, str] | None  # sides: the two newest commits of the default branch

    @property
    def newest_two(self) -> tuple[str, str] | None:
        """Return the newest two runs of one title: others have measured something else."""
        newest: dict[str, Offer] = {}
        for offer in self.runs:
            if (head := newest.setdefault(offer.run.title, offer)) is not offer:
                return offer.side, head.side
        return None


def read() -> Chooser:
    """Return the newest runs and the last two nights: 2 statements."""
    ended = Run.objects.filter(state__in=TERMINAL).defer("provenance").order_by("-order_time", "-pk")
    nights = ended.filter(base_interpreter="", branch__in=stored_names()).exclude(commit="")
    commits = list(dict.fromkeys(nights.values_list("commit", flat=True)[:500]))
    return Chooser([Offer(run) for run in ended[:_MOST_RUNS]], _two(commits))


def _two(commits: Sequence[str]) -> tuple[str, str] | None:
    return (f"commit:{commits[1]}", f"commit:{commits[0]}") if len(commits) > 1 else None
