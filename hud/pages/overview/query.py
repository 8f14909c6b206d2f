"""The overview: regressions, missed targets, the latest runs, hosts and suites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hud.models import Series
from hud.pages import values
from hud.pages.health import processes_standing_still
from hud.pages.hosts import query as hosts
from hud.pages.hosts.query import HostsInLine
from hud.pages.regressions import query as regressions
from hud.pages.regressions.query import Cause
from hud.pages.runs import query as runs
from hud.pages.runs.query import RunLine
from hud.pages.sql import fetch_tuples
from hud.pages.suite import query as suite
from hud.pages.suite.query import SuiteLine, identity
from hud.pages.targets import Targets
from hud.pages.values import MetricValue

ROWS = 20  # of each list; the page says how many there are
LAST_RUNS = 10
_RECENT_RUNS = 10  # whose records' own targets count as current


@dataclass
class Overview:
    causes: list[Cause]  # of the regressions that wait for somebody
    waiting: dict[str, int]  # regressions by tab of their page
    regressed: list[MetricValue]
    missed: list[MetricValue]  # the largest shortfall first
    met: int  # series that reach their target
    runs: list[RunLine]
    hosts: HostsInLine
    standing_still: dict[str, str] = field(default_factory=dict)  # processes of the HUD
    suites: list[SuiteLine] = field(default_factory=list)

    def to_rows(self) -> list[dict[str, Any]]:
        lists = {"regressed": self.regressed, "misses target": self.missed}
        return [
            {"list": name, **identity(reading.experiment), **reading.to_row()}
            for name, readings in lists.items()
            for reading in readings
        ]


def read() -> Overview:
    """Return the page, in 16 statements."""
    targets = Targets.read()
    found = _candidates(targets)
    series = list(Series.objects.filter(pk__in=found).select_related("experiment", "metric"))
    experiments = {one.experiment_id: one.experiment for one in series}
    readings = values.shown(series, experiments, values.latest(found), targets)
    regressed = [one for one in readings if found[one.series_id]]
    return Overview(
        causes=regressions.waiting(),
        waiting=regressions.counts(None),
        regressed=sorted(regressed, key=lambda one: -abs(one.change or 0)),
        missed=sorted((one for one in readings if one.met == "missed"), key=_shortfall, reverse=True),
        met=sum(one.met == "met" for one in readings),
        runs=runs.latest(LAST_RUNS),
        hosts=hosts.in_one_line(),
        standing_still=processes_standing_still(),
        suites=suite.read_all(),
    )


def _shortfall(value: MetricValue) -> float:
    """Return how far a value is from its target, as a share of the target."""
    own = value.own_target
    if own is None or value.median is None or own.value == 0:
        return 0.0
    return abs(own.value - value.median) / abs(own.value)


def _candidates(targets: Targets) -> dict[int, bool]:
    """Return the series with an open regression or maybe a target, with whether they regressed.

    A record's own target counts while one of the latest runs has it: reading all measurements would grow
    with the history.
    """
    found = fetch_tuples(
        """
        WITH regressed AS (
            SELECT series_id FROM hud_regression
            WHERE state = ANY(%(open)s) AND coalesce(muted_until < now(), true)
            ORDER BY since DESC LIMIT 500
        ), recent AS (
            SELECT id FROM hud_run WHERE state NOT IN ('queued', 'running')
            ORDER BY created DESC LIMIT %(recent)s
        ), aimed AS (
            SELECT s.id AS series_id FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id
            WHERE k.name = ANY(%(names)s) OR k.id = ANY(%(metrics)s)
            UNION
            SELECT m.series_id FROM recent
            JOIN LATERAL (
                SELECT series_id, target_arch FROM hud_measurement
                WHERE run_id = recent.id AND target IS NOT NULL OFFSET 0
            ) m ON true
            JOIN hud_series s ON s.id = m.series_id
            JOIN hud_experiment e ON e.id = s.experiment_id
            WHERE coalesce(m.target_arch, e.arch) = e.arch
        )
        SELECT series_id, true FROM regressed
        UNION ALL
        SELECT series_id, false FROM aimed WHERE series_id NOT IN (SELECT series_id FROM regressed)
        """,
        {
            "names": sorted(targets.shipped_metrics()),
            "metrics": sorted(targets.operator_metrics()),
            "recent": _RECENT_RUNS,
            "open": list(regressions.WAITING),
        },
    )
    return dict(found)
