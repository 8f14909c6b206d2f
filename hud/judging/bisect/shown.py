"""Bisects of a regression, step by step, for its page and the API."""

from hud.judging.bisect.search import most_steps
from hud.models import Bisect, BisectStep
from hud.tables.table import DataTable

STEP = DataTable[BisectStep]("""base head:int run:int|None=run_id answer pairs:list[tuple[float,float]]|None
    change low high:float|None finished:datetime|None""")
COLUMNS = DataTable[Bisect](
    """id:int=pk regression:int=regression_id state host:str=accelerator?.host.name environments=builds steps
    usual_steps:int good:int|None bad:int|None conclusion:str requested_by:str created:datetime
    finished:datetime|None""",
    steps=lambda bisect: STEP.rows(bisect.steps.order_by("pk")),
    usual_steps=lambda bisect: most_steps(len(bisect.builds)),
)
