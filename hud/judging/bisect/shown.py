"""Bisects of a regression, step by step, for its page and the API."""

from hud.judging.bisect.search import most_steps
from hud.models import Bisect, BisectStep
from hud.tables.table import DataTable

_STEP = DataTable[BisectStep]("base head run=run_id answer pairs change low high finished")
COLUMNS = DataTable[Bisect](
    """id=pk regression=regression_id state host=accelerator?.host.name environments=builds steps usual_steps
    good bad conclusion requested_by created finished""",
    steps=lambda bisect: _STEP.rows(bisect.steps.order_by("pk")),
    usual_steps=lambda bisect: most_steps(len(bisect.builds)),
)
