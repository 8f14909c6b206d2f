"""The commits of a regression's range, ranked by whether they touch what its kernels and metric name."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.judging.kernels.attribution import Attribution
from hud.models import Commit, Regression
from hud.sql import fetch_models
from hud.tables.table import DataTable
from runner.schema.tables import rows

HASH = re.compile(r"[0-9a-f]{7,64}")
_MOST = 1000  # commits of a range
_QUIET = ("test/", "docs/", "benchmarks/", ".github/", ".ci/", "scripts/", "tools/")
_OF_DEVICE = {  # what only runs elsewhere
    "cuda": re.compile(r"codegen/cpp|cpu|mkldn|halide|/mps|metal|xpu"),
    "cpu": re.compile(r"triton|cuda|cutlass|halide|/mps|metal|xpu|rocm"),
}
_NAMED = 6.0  # for a commit that names an operator of the kernels
_COMMON = "triton poi per red fused tem cpp to copy clone view prims aten"  # in names of many kernels
_AREAS: list[dict[str, Any]] = [
    {**row, "pattern": re.compile(row["pattern"])} for row in rows(__file__, "areas.csv")
]


def ends(regression: Regression) -> tuple[str, str] | None:
    """Return the commits between which a regression moved, None without two hashes that differ."""
    runs = regression.last_good_run, regression.first_run
    base, head = (run.commit if run and HASH.fullmatch(run.commit) else "" for run in runs)
    return (base, head) if base and head and base != head else None


@dataclass(frozen=True)
class Clues:
    """The clues to the cause of a regression: a weight for each column of `areas.csv`, and its operators."""

    weights: dict[str, float] = field(default_factory=dict)
    operators: Collection[str] = ()
    device: str = ""

    @classmethod
    def of(cls, regression: Regression, attribution: Attribution | None, facts: Iterable[str]) -> "Clues":
        """Return the clues of the metric, of the kernels that changed most, and of facts that differ."""
        weights: defaultdict[str, float] = defaultdict(float)
        if area := area_of(regression.series.metric.name):
            weights[area] += 1
        names: list[str] = []
        if attribution and not weights:
            slower = [one for one in attribution.changes if one.change_us > 0 and one.cause != "unchanged"]
            whole_us = sum(one.change_us for one in slower) or 1.0
            for one in slower:
                weights[_COLUMNS.get(one.cause, one.cause)] += one.change_us / whole_us
            slower.sort(key=lambda one: -one.change_us)
            names = [name for one in slower[:5] for name in (*one.kernel.origins, one.kernel.name)]
        if not weights:
            weights["unknown"] = 1
        if "triton" in facts:
            weights["pin"] = 1
        operators = frozenset(re.findall(r"[a-z]{3,}", " ".join(names).lower())) - {*_COMMON.split()}
        return cls(weights, operators, regression.series.experiment.device)


_COLUMNS = {"appeared": "moved", "vanished": "moved", "faster": "slower"}
_OF_METRIC = (
    ("compile", "compil|_compile_|cache"),
    ("breaks", "break|graphs|calls_captured|recompil"),
    ("accuracy", "accura|tolerance"),
    ("memory", "mem|compression_ratio"),
)


def area_of(metric: str) -> str:
    """Return what a metric tells of, a column of `areas.csv`: compile, breaks, accuracy or memory; '' of the
    kernels."""
    return next((column for column, words in _OF_METRIC if re.search(words, metric)), "")


@dataclass
class RankedCommit:
    commit: Commit
    score: float = 0.0
    why: str = ""

    @property
    def touched(self) -> list[str]:
        """Return what it touches, tests and documents last."""
        return sorted(self.commit.touched, key=lambda path: path.startswith(_QUIET))


RANKED = DataTable[RankedCommit](
    """sha:str=commit.sha repo:str=commit.repo title:str=commit.title author:str=commit.author
    date=commit.date touched:list[str]=commit.touched score:float why:str"""
)


def of_range(base: str, head: str) -> list[Commit]:
    """Return the commits after `base` up to `head`, newest first, as far as they are known: 1 statement. A
    hash may be shortened."""
    return fetch_models(
        Commit,
        "",
        {"base": base, "head": head, "end": f"{head}g", "most": _MOST},
        rows="""
            WITH RECURSIVE line AS (
                (SELECT c.*, 1 AS place FROM hud_commit c WHERE sha >= %(head)s AND sha < %(end)s LIMIT 1)
                UNION ALL
                SELECT c.*, place + 1 FROM line
                JOIN hud_commit c ON (c.sha, c.repo) = (line.parent, line.repo)
                WHERE NOT starts_with(c.sha, %(base)s) AND place < %(most)s
            ) SELECT * FROM line ORDER BY place""",
    )


def rank(commits: Sequence[Commit], clues: Clues) -> list[RankedCommit]:
    """Return the commits, the most likely cause first; equal ones stay in their order."""
    return sorted((_ranked(commit, clues) for commit in commits), key=lambda one: -one.score)


def _ranked(commit: Commit, clues: Clues) -> RankedCommit:
    touched = [path for path in commit.touched if not path.startswith(_QUIET) or "pin" in path]
    if elsewhere := _OF_DEVICE.get(clues.device):
        touched = [path for path in touched if not elsewhere.search(path)]
    best, area = 0.0, ""
    for row in _AREAS:
        weight = sum(float(row[column] or 0) * share for column, share in clues.weights.items())
        if weight > best and any(row["pattern"].search(path) for path in touched):
            best, area = weight, row["area"]
    words = set(re.findall(r"[a-z]{3,}", " ".join([commit.title, *touched]).lower()))
    named = sorted(words & set(clues.operators)) if best else []
    # of a commit that touches much, each area says less
    score = (best + (_NAMED if named else 0.0)) / (1 + len(touched) / 40)
    why = area + (f"; names {', '.join(named[:3])}" if named else "")
    return RankedCommit(commit, round(score, 3), why)
