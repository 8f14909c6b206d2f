"""The MCP server over stdio: thirty triage questions with known answers, asked by a script through its tools
alone; sizes; the same answers in a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from hud.accounts.keys import create_key
from hud.judging import judge
from hud.models import Experiment, Point, Run
from runner.__main__ import main
from runner.client.answers import MOST_BYTES
from tests.bench import nights
from tests.support import servers

MOST_SCHEMA_BYTES, MOST_TOOLS, MOST_CALLS = 6000, 8, 10
CUDAGRAPHS, MAX_AUTOTUNE, AOT = "inductor_cudagraphs", "inductor_max_autotune", "inductor_aot_inductor"
Rows = list[dict[str, Any]]


class Agent:
    """A script that has nothing but the tools."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self.calls = 0

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        answer = await self._session.call_tool(tool, arguments)
        text = answer.content[0].text  # type: ignore[union-attr]
        assert not answer.is_error, text
        assert len(text.encode()) <= MOST_BYTES
        found: dict[str, Any] = json.loads(text)
        assert found["link"].startswith("http")
        return found

    async def rows(self, tool: str, **arguments: Any) -> Rows:
        """Return all rows, page by page."""
        rows: Rows = []
        while True:
            answer = await self.ask(tool, **arguments, offset=len(rows))
            same = answer.get("same_in_all_rows", {})
            rows += [same | dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
            if "none after" in answer["left_out"]:
                return rows

    async def experiment(self, suite: str, case: str, backend: str) -> int:
        rows = await self.rows("experiment", suite=suite, case=case, backend=backend, metric="speedup")
        return int(rows[0]["experiment"])

    async def history(self, suite: str, case: str, backend: str, metric: str) -> Rows:
        experiment = await self.experiment(suite, case, backend)
        return await self.rows("points", experiment=experiment, metric=metric)


@asynccontextmanager
async def session(url: str, key: str) -> AsyncIterator[ClientSession]:
    """A session with the server as an agent starts it."""
    arguments = ["-m", "runner", "mcp", "--hud", url, "--key", key]
    command = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(servers.ROOT))
    async with stdio_client(command) as (reader, writer), ClientSession(reader, writer) as opened:
        await opened.initialize()
        yield opened


async def _of(agent: Agent, tool: str, column: str, _where: Any = None, **arguments: Any) -> list[Any]:
    """Return a column of the rows that a condition holds for."""
    rows = await agent.rows(tool, **arguments)
    return [row[column] for row in rows if _where is None or _where(row)]


def _day(run: Run) -> str:
    return f"{run.order_time:%Y-%m-%dT%H:%M}"


def questions(  # noqa: C901 - a list of small scripts
    runs: list[Run],
) -> dict[str, tuple[Callable[[Agent], Any], Any]]:
    """Return each question as a script, and its answer, known from how the nights were made."""
    newest, base, head = runs[-1], f"run:{runs[-4].pk}", f"run:{runs[-1].pk}"

    def series(case: str, suite: str, backend: str, metric: str, run: Run = newest) -> Point:
        experiment = Experiment.objects.get(suite=suite, case=case, backend=backend)
        return Point.objects.get(series__experiment=experiment, series__metric__name=metric, run=run)

    def regressed(column: str, suite: str, metric: str = "device_speedup", **more: Any) -> Callable[..., Any]:
        async def script(agent: Agent) -> set[Any]:
            is_metric = lambda row: row["metric"] == metric  # noqa: E731
            return set(await _of(agent, "regressions", column, is_metric, suite=suite, **more))

        return script

    def text(pattern: str, tool: str, **arguments: Any) -> Callable[..., Any]:
        async def script(agent: Agent) -> str:
            found = re.search(pattern, (await agent.ask(tool, **arguments))["answer"])
            return found[1] if found else ""

        return script

    def newest_value(column: str, suite: str, case: str, metric: str, backend: str) -> Callable[..., Any]:
        async def script(agent: Agent) -> Any:
            arguments = {"suite": suite, "case": case, "backend": backend, "metric": metric}
            exact = lambda row: row["metric"] == metric  # noqa: E731
            return (await _of(agent, "experiment", column, exact, **arguments))[0]

        return script

    def compared(columns: str, **arguments: Any) -> Callable[..., Any]:
        async def script(agent: Agent) -> set[Any]:
            rows = await agent.rows("compare", base=base, head=head, **arguments)
            return {tuple(row[name] for name in columns.split()) for row in rows}

        return script

    def table(column: str, suite: str, backend: str, metric: str) -> Callable[..., Any]:
        async def script(agent: Agent) -> Any:
            named = (suite, backend, metric)
            rows = await agent.rows("overview")
            return next(row for row in rows if (row["suite"], row["backend"], row["metric"]) == named)[column]

        return script

    async def by_how_much(agent: Agent) -> float:
        return float(*await regressed("change_percent", "huggingface", case="model_03")(agent))

    async def torchbench_since(agent: Agent) -> int:
        history = await agent.history("torchbench", "model_09", CUDAGRAPHS, "accuracy")
        return int(next(row["run"] for row in history if row["value"] is not None))

    async def missing_night(agent: Agent) -> set[int]:
        history = await agent.history("timm", "model_07", CUDAGRAPHS, "device_speedup")
        return {*(await _of(agent, "runs", "id"))} - {row["run"] for row in history}

    async def best_night(agent: Agent) -> int:
        history = await agent.history("timm", "model_00", CUDAGRAPHS, "device_speedup")
        return int(max(history, key=lambda row: row["value"])["run"])

    async def fastest_backend(agent: Agent) -> str:
        rows = await agent.rows("experiment", suite="torchbench", case="model_01", metric="device_speedup")
        return str(max(rows, key=lambda row: row["value"])["backend"])

    async def always_failing(agent: Agent) -> set[str]:
        rows = await agent.rows("experiment", suite="timm", case="model_04", metric="accuracy")
        return {row["backend"] for row in rows if row["status"] != "ok"}

    async def ever_passed(agent: Agent) -> bool:
        history = await agent.history("timm", "model_04", AOT, "accuracy")
        return any(row["status"] == "ok" for row in history)

    async def opened(agent: Agent) -> bool:
        (number, *_more) = await _of(agent, "regressions", "id", suite="timm", case="model_01")
        return "open" in await _of(agent, "regressions", "after", regression=number)

    async def found_by_text(agent: Agent) -> bool:
        rows = await agent.rows("experiment", text="model_11")
        return any("huggingface" in row["about"] for row in rows if row["kind"] == "case")

    best_run = max(
        runs, key=lambda run: series("model_00", "timm", CUDAGRAPHS, "device_speedup", run).value or 0
    )
    quiet = series("model_00", "huggingface", CUDAGRAPHS, "device_speedup")
    slowest = newest_value("backend", "torchbench", "model_01", "cold_compile_s", AOT)
    commits = {(runs[-3].commit[:12], runs[-2].commit[:12])}

    async def range_of(agent: Agent) -> set[tuple[str, str]]:
        rows = await agent.rows("regressions", suite="huggingface", case="model_03")
        return {(row["base_commit"], row["head_commit"]) for row in rows if "speedup" in row["metric"]}

    return {
        "newest run": (text(r"Newest run (\d+)", "overview"), str(newest.pk)),
        "its commit": (lambda agent: _of(agent, "runs", "commit"), [run.commit[:12] for run in runs[::-1]]),
        "its host": (lambda agent: _of(agent, "runs", "host", since="2020-01-01"), ["b200-a"] * len(runs)),
        "how many runs": (text(r"^(\d+) runs", "runs", stream="nightly"), str(len(runs))),
        "slower in huggingface": (regressed("case", "huggingface"), {"model_03", "model_11"}),
        "since when": (regressed("since", "huggingface"), {_day(runs[-2])}),
        "between which commits": (range_of, commits),
        "for how many points": (regressed("points", "huggingface"), {2}),
        "in which run": (regressed("run", "huggingface"), {runs[-2].pk}),
        "by how much": (by_how_much, pytest.approx(-12, abs=1)),
        "slower in timm": (regressed("case", "timm"), {"model_01", "model_02", "model_05"}),
        "with which backend": (regressed("backend", "timm"), {CUDAGRAPHS}),
        "compile time of whom": (regressed("backend", "huggingface", "cold_compile_s"), {MAX_AUTOTUNE}),
        "of how many models": (regressed("case", "huggingface", "cold_compile_s"), set(CASES)),
        "was torchbench model_05 slower": (regressed("case", "torchbench", case="model_05"), set()),
        "newly failing": (compared("suite case", verdict="failed"), {("torchbench", "model_09")}),
        "how it fails": (compared("status", verdict="failed"), {("timed_out",)}),
        "how many matched": (
            text(r"(\d+) matched", "compare", base=base, head=head),
            str(Experiment.objects.count()),
        ),
        "memory worse": (compared("case", metric="compression_ratio", verdict="regressed"), set()),
        "last good run": (torchbench_since, runs[-3].pk),
        "fails in timm": (always_failing, {AOT}),
        "ever passed": (ever_passed, False),
        "night without model_07": (missing_night, {runs[-10].pk}),
        "best night": (best_night, best_run.pk),
        "fastest backend": (fastest_backend, MAX_AUTOTUNE),
        "value": (
            newest_value("value", "huggingface", "model_00", "device_speedup", CUDAGRAPHS),
            pytest.approx(quiet.value, rel=1e-4),
        ),
        "noise": (
            newest_value("noise_percent", "huggingface", "model_00", "device_speedup", CUDAGRAPHS),
            pytest.approx(100 * (quiet.noise or 0), abs=0.01),
        ),
        "unit": (newest_value("unit", "timm", "model_00", "compiled_peak_memory_bytes", AOT), "B"),
        "better": (newest_value("direction", "timm", "model_00", "compression_ratio", AOT), "up"),
        "passing": (table("passed", "torchbench", CUDAGRAPHS, "device_speedup"), 9),
        "did it open": (opened, True),
        "found by text": (found_by_text, True),
        "a backend": (slowest, AOT),
    }


CASES = [f"model_{number:02}" for number in range(12)]


def test_thirty_questions_are_answered_through_the_tools_alone(
    live_hud: servers.Hud, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = nights.generate(
        nights=14,
        cases={"huggingface": len(CASES), "timm": 8, "torchbench": 10},
        backends=[CUDAGRAPHS, MAX_AUTOTUNE, AOT],
        metrics=[
            *("device_speedup", "speedup", "accuracy", "cold_compile_s", "compression_ratio"),
            "compiled_peak_memory_bytes",
        ],
    )
    while judge.process_pending():
        pass
    key = create_key(name="agent", scopes=["read"], who="t")[1]
    asked = questions(runs)
    wrong: dict[str, Any] = {}

    async def ask_all() -> None:
        async with session(live_hud.url, key) as opened:
            tools = (await opened.list_tools()).tools
            schema = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
            assert len(tools) <= MOST_TOOLS
            assert len(schema.encode()) <= MOST_SCHEMA_BYTES
            for name, (script, expected) in asked.items():
                agent = Agent(opened)
                answer = await script(agent)
                if answer != expected or agent.calls > MOST_CALLS:
                    wrong[name] = answer, expected, agent.calls

    with ThreadPoolExecutor(1) as apart:  # a browser's test may have left a loop in this thread
        apart.submit(anyio.run, ask_all).result()
    assert len(asked) >= 30
    assert not wrong
    words = ["--hud", live_hud.url, "--key", key, "--suite", "timm", "--case", "model_01"]
    assert main(["query", "regressions", *words, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["query", "regressions", *words]) == 0
    shown = capsys.readouterr().out
    assert answer["answer"] in shown
    assert all(str(value) in shown for row in answer["rows"] for value in row)
