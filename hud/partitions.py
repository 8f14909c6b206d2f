"""Partitions of the two large tables: measurements by run id, points by quarter.

`manage.py partition` switches them on. The table of before becomes the first partition, and its rows stay
where they are. `tick` makes further ones ahead. What lies behind them is in `…_later` and moves once its
partition is made, so that nothing is refused; beside a DEFAULT in its place, PostgreSQL could not read the
points of a series partition by partition.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import OperationalError, transaction

from hud.sql import execute, fetch_tuples

logger = logging.getLogger(__name__)
# Who wants to read or write waits behind it. Less than `deadlock_timeout`: no statement of theirs is ended
_LOCK_MS = 900
_MOST_AT_ONCE = 3  # partitions: a clock that is years ahead would make hundreds


@dataclass(frozen=True)
class LargeTable:
    name: str
    key: str
    newest: str  # SQL: up to where there have to be partitions
    bound_after: str  # SQL: the first bound after a value

    def bound(self) -> str | None:
        """Return where its partitions end and `…_later` begins; None where it has none."""
        rows = fetch_tuples(
            r"""SELECT substring(pg_get_expr(relpartbound, oid) FROM 'FROM \(''?([^'')]+)')
            FROM pg_class WHERE oid = to_regclass(%s)""",
            [f"{self.name}_later"],
        )
        return rows[0][0] if rows else None

    def next_bound(self, bound: str | None = None) -> str | None:
        """Return where the partition ends that has to follow `bound`, the first one without it; None where
        there are enough."""
        start = f"'{bound}'" if bound else self.newest
        after = f"SELECT ({self.bound_after.format(start)})::text WHERE {start} <= {self.newest}"
        return next((str(end) for (end,) in fetch_tuples(after)), None)


POINTS = LargeTable(
    "hud_point",
    "order_time",
    "(now() + interval '31 days')",
    # each costs every page planning time, which shows with many more than these
    "date_trunc('quarter', {}::timestamptz, 'UTC') + interval '3 months'",
)
MEASUREMENTS = LargeTable(
    "hud_detailedmeasurement",
    "run_id",
    "(SELECT coalesce(max(id), 0) + 20000 FROM hud_run)",
    "({}::int / 20000 + 1) * 20000",
)
TABLES = (POINTS, MEASUREMENTS)
_INDEXES = """
    SELECT i.indexrelid::regclass::text, CASE WHEN c.oid IS NULL THEN pg_get_indexdef(i.indexrelid)
        ELSE format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', i.indrelid::regclass, c.conname,
            pg_get_constraintdef(c.oid)) END
    FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = i.indrelid
    WHERE i.indrelid = %s::regclass
"""
_VIEWS = """
    SELECT DISTINCT ev_class::regclass::text, pg_get_viewdef(ev_class)
    FROM pg_depend JOIN pg_rewrite r ON r.oid = objid
    WHERE classid = 'pg_rewrite'::regclass AND refobjid = %s::regclass
"""


@contextmanager
def briefly() -> Iterator[None]:
    """Run a transaction that gives up where it had to wait for a lock. Raise OperationalError."""
    with transaction.atomic():
        execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        yield


def partition(table: LargeTable) -> None:
    """Make a table the first partition of one that takes its name, its keys, its indexes and its views."""
    name, first = table.name, f"{table.name}_first"
    with briefly():
        indexes, views = (dict(fetch_tuples(statement, [name])) for statement in (_INDEXES, _VIEWS))
        execute(f"LOCK TABLE {', '.join([*views, name])} IN ACCESS EXCLUSIVE MODE")  # as readers lock them
        bound = table.next_bound()
        statements = [
            *(f"DROP VIEW {view}" for view in views),
            *(f"ALTER INDEX {index} RENAME TO {index}_first" for index in indexes),
            f"ALTER TABLE {name} RENAME TO {first}",
            f"""CREATE TABLE {name} (LIKE {first} INCLUDING ALL EXCLUDING INDEXES)
            PARTITION BY RANGE ({table.key})""",
            *indexes.values(),
            f"CREATE TABLE {name}_later PARTITION OF {name} FOR VALUES FROM ('{bound}') TO (MAXVALUE)",
            _move(table, first, f">= '{bound}'"),
            f"ALTER TABLE {name} ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ('{bound}')",
            *(f"CREATE VIEW {view} AS {definition.rstrip(';')}" for view, definition in views.items()),
        ]
        execute(";\n".join(statements))


def make_ahead(table: LargeTable) -> list[str]:
    """Make the partitions that a table needs soon, if it has any; return their names."""
    name, later, made = table.name, f"{table.name}_later", list[str]()
    while len(made) < _MOST_AT_ONCE and (bound := table.bound()) and (end := table.next_bound(bound)):
        made.append(f"{name}_{bound.partition(' ')[0].replace('-', '_')}")
        with briefly():
            statements = (
                f"ALTER TABLE {name} DETACH PARTITION {later}",
                f"CREATE TABLE {made[-1]} PARTITION OF {name} FOR VALUES FROM ('{bound}') TO ('{end}')",
                _move(table, later, f"< '{end}'"),
                f"ALTER TABLE {name} ATTACH PARTITION {later} FOR VALUES FROM ('{end}') TO (MAXVALUE)",
            )
            execute(";\n".join(statements))
    return made


def of_runs() -> list[tuple[str, str]]:
    """Return the partitions of measurements, with their bounds."""
    return fetch_tuples(
        """SELECT inhrelid::regclass::text, pg_get_expr(relpartbound, inhrelid)
        FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %s::regclass ORDER BY 1""",
        [MEASUREMENTS.name],
    )


def _move(table: LargeTable, source: str, which: str) -> str:
    """Return SQL that moves rows of a table that is no partition now into theirs."""
    return f"""WITH moved AS (DELETE FROM {source} WHERE {table.key} {which} RETURNING *)
        INSERT INTO {table.name} SELECT * FROM moved"""  # noqa: S608 — constants  # nosec B608


def look_after() -> None:
    """Make what is needed next of tables that have partitions, and let the planner know of each as a whole
    what autovacuum finds out of its partitions alone."""
    for table in filter(LargeTable.bound, TABLES):
        try:
            make_ahead(table)
        except OperationalError as error:
            logger.warning("partitions are made tomorrow: %s", error)
        known = "SELECT FROM pg_stat_user_tables WHERE last_analyze > now() - %s::interval AND relname = %s"
        if not fetch_tuples(known, ["7 days", table.name]):
            execute(f"ANALYZE {table.name}")
