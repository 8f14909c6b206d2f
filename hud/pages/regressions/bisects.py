"""Bisects of a regression, step by step, for its page and the API."""

from collections.abc import Sequence
from dataclasses import dataclass

from hud.judging.bisect import work
from hud.judging.bisect.search import BisectState, most_steps
from hud.models import Accelerator, Bisect, BisectStep, Regression
from hud.tables.table import DataTable, under

_STEP = DataTable("base head run=run_id answer pairs change low high finished")
COLUMNS = DataTable(
    f"""id=bisect.pk regression=bisect.regression_id state=bisect.state
    host=bisect.accelerator?.host.name environments=bisect.builds steps usual_steps
    {under("bisect", "good bad conclusion requested_by created finished")}""",
    steps=lambda view: _STEP.rows(view.steps),
)


@dataclass(frozen=True)
class BisectView:
    bisect: Bisect
    steps: list[BisectStep]
    usual_steps: int

    @property
    def is_running(self) -> bool:
        return self.bisect.state == BisectState.RUNNING


def view(bisect: Bisect) -> BisectView:
    """Return a bisect with its steps: 2 statements."""
    steps = list(bisect.steps.select_related("run").order_by("pk"))
    for step in steps:
        step.base_build, step.head_build = bisect.builds[step.base], bisect.builds[step.head]
    return BisectView(bisect, steps, most_steps(len(bisect.builds)))


def newest(regression: Regression, attached: Sequence[Accelerator]) -> tuple[BisectView | None, str]:
    """Return the newest bisect of a regression, and why another cannot start ('' if it can): at most 6
    statements."""
    last = Bisect.objects.filter(regression=regression).select_related("accelerator__host").last()
    shown = view(last) if last else None
    if shown and shown.is_running:
        return shown, "it is running"
    return shown, work.hindrance(regression, attached)
