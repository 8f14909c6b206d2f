"""Answer one question over files of the archive with DuckDB, in a process of its own: JSON comes from
standard input and goes to standard output.

It is started as a script, without this project's packages, settings and variables. It can read the folder of
the archive alone, write no file, and load no extension.
"""

import json
import resource
import sys
from typing import Any

# `classes` has that of each environment by its id: a join takes a quarter of the whole question
_POINTS = """
    SELECT series_id AS series, list_extract($classes, environment_id) AS class,
        epoch_us(order_time) AS time_us, run_id AS run, environment_id AS environment, value, verdict, change
    FROM read_parquet($files)
    WHERE value IS NOT NULL AND status = 0 AND quality IS NULL AND NOT rerun
        AND list_contains($branches, branch) AND order_time >= make_timestamptz($since_us)
"""
# `worse`: the relative change, above 0 for the worse; bounded, as JSON knows no infinity
_WORSE = "greatest(least(sign * (after - before) / abs(before), 1e12), -1e12) AS worse"
_OWN = "WINDOW own AS (PARTITION BY series, class ORDER BY time_us, run)"
# whether a regression begins at a point: the judge calls those after it regressed, too
_STEPS = "verdict = $regressed AND lag(verdict) OVER own IS DISTINCT FROM $regressed AS steps"
_TOTALS = """count(*) AS series, count(*) FILTER (WHERE worse >= $least) AS worse,
    count(*) FILTER (WHERE worse <= -$least) AS better"""
QUESTIONS = {
    # of each series in each class of environments the medians of the first and of the last days
    "regressed": {
        "compared": f"""
            CREATE TEMP TABLE compared AS
            WITH points AS ({_POINTS}), ends AS (
                SELECT series, class, min(time_us) + $window_us AS first, max(time_us) - $window_us AS last
                FROM points GROUP BY ALL HAVING last >= first
            )
            SELECT *, {_WORSE} FROM (
                SELECT series, class, median(value) FILTER (WHERE time_us < first) AS before,
                    median(value) FILTER (WHERE time_us > last) AS after
                FROM points JOIN ends USING (series, class)
                WHERE time_us < first OR time_us > last GROUP BY series, class
            ) JOIN series USING (series) WHERE before <> 0
        """,
        "totals": f"SELECT {_TOTALS} FROM compared",
        "items": f"""
            WITH worst AS (
                SELECT * FROM compared WHERE worse >= $least ORDER BY worse DESC, series LIMIT $most
            ), steps AS (
                SELECT series, class, arg_max(run, size) AS run, arg_max(time_us, size) AS time_us FROM (
                    SELECT series, class, run, time_us, {_STEPS}, abs(value - lag(value) OVER own) AS size
                    FROM ({_POINTS}) SEMI JOIN worst USING (series, class) {_OWN}
                ) WHERE steps GROUP BY series, class
            )
            SELECT series, before, after, worse, run, time_us
            FROM worst LEFT JOIN steps USING (series, class) ORDER BY worse DESC, series
        """,
    },
    # medians of two sets of environments, by series and class
    "compared": {
        "compared": f"""
            CREATE TEMP TABLE compared AS SELECT *, {_WORSE} FROM (
                SELECT series, class,
                    median(value) FILTER (WHERE list_contains($base, environment)) AS before,
                    median(value) FILTER (WHERE list_contains($head, environment)) AS after
                FROM ({_POINTS}) WHERE list_contains($base || $head, environment) GROUP BY series, class
            ) JOIN series USING (series) WHERE before <> 0 AND after IS NOT NULL
        """,
        "totals": f"""
            SELECT part, {_TOTALS},
                exp(avg(-sign * ln(after / before)) FILTER (WHERE after / before > 0)) - 1 AS mean_gain
            FROM compared GROUP BY GROUPING SETS ((), (part)) ORDER BY part NULLS FIRST
        """,
        "items": """
            SELECT series, before, after, worse FROM compared WHERE abs(worse) >= $least
            ORDER BY abs(worse) DESC, series LIMIT $most
        """,
    },
    # points that are worse than the one before by more than a limit
    "flagged": {
        "compared": f"""
            CREATE TEMP TABLE compared AS SELECT *, {_WORSE} FROM (
                SELECT series, sign, run, time_us, value AS after, lag(value) OVER own AS before,
                    lead(value) OVER own AS next, {_STEPS}
                FROM ({_POINTS}) JOIN series USING (series) {_OWN}
            ) WHERE before <> 0
        """,
        "totals": """
            SELECT strftime(make_timestamp(time_us), '%Y-%m') AS month, count(*) AS points,
                count(*) FILTER (WHERE worse >= $least) AS flagged,
                count(*) FILTER (WHERE worse >= $least AND sign * (next - before) / abs(before) < $least)
                    AS returned,
                count(*) FILTER (WHERE worse >= $least AND steps) AS both,
                count(*) FILTER (WHERE steps) AS regressed
            FROM compared GROUP BY GROUPING SETS ((), (month)) ORDER BY month NULLS FIRST
        """,
        "items": """
            SELECT series, before, after, worse, run, time_us, coalesce(steps, false) AS judged
            FROM compared WHERE worse >= $least ORDER BY worse DESC, series, run LIMIT $most
        """,
    },
}


def answer(asked: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the totals and of the items of a question."""
    import duckdb  # noqa: PLC0415 - below the limits

    database = duckdb.connect(config={"threads": 2, "memory_limit": f"{asked['memory_mib']}MiB"})
    database.execute("SET enable_progress_bar = false")  # after 2 s it would go to standard output
    database.execute(f"SET temp_directory = ''; SET allowed_directories = {[asked['folder']]}")
    database.execute("SET enable_external_access = false; SET lock_configuration = true")
    columns = asked["series"]
    fields = ", ".join(f"unnest(${name}::INTEGER[]) AS {name}" for name in columns)
    database.execute(f"CREATE TEMP TABLE series AS SELECT {fields}", columns)
    rows = {}
    for name, statement in QUESTIONS[asked["question"]].items():
        named = {key: value for key, value in asked["parameters"].items() if f"${key}" in statement}
        result = database.execute(statement, named)
        names = [column[0] for column in result.description or ()]
        rows[name] = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    return rows


def main() -> None:
    """Answer what standard input asks, under limits on processor time and memory, without writing a file."""
    asked = json.load(sys.stdin)
    for limit, most in (
        (resource.RLIMIT_CPU, asked["limit_s"]),
        (resource.RLIMIT_DATA, (asked["memory_mib"] + 512) * 2**20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    json.dump(answer(asked), sys.stdout)


if __name__ == "__main__":
    main()
