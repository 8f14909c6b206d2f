"""`make soak`: one run of at most `SOAK_LIMIT_MINUTES`, with a table at its end of what each test took and
showed. Tests mostly wait, so several run at a time; one marked `alone` has the machine for itself."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT_MINUTES = float(os.environ.get("SOAK_LIMIT_MINUTES", "150"))
FIGURE = "figure"  # name of a property that the fixture `figure` records: what, value, limit
_OVER = "the time of the run is over"
_NAME, _WHAT, _VALUE, _LIMIT = 64, 44, 12, 10


class Figures:
    """Note what a test measures: each figure stands in the table, with its limit if it has one."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def note(
        self,
        what: str,
        value: float,
        unit: str = "",
        *,
        most: float | None = None,
        least: float | None = None,
    ) -> None:
        """Put a figure into the table, and fail if it is above `most` or below `least`."""
        limit = f"≤ {most:g}" if most is not None else f"≥ {least:g}" if least is not None else ""
        self._properties.append((FIGURE, (what, f"{value:.4g} {unit}".strip(), limit)))
        assert most is None or value <= most, (what, value)
        assert least is None or value >= least, (what, value)


@dataclass
class _Row:
    seconds: float = 0.0
    outcome: str = "passed"
    figures: list[tuple[str, str, str]] = field(default_factory=list)


class Table:
    """A plugin of pytest: once the time of the run is over, it begins no further test."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._started = time.monotonic()

    def pytest_runtest_setup(self) -> None:
        if self._minutes() > LIMIT_MINUTES:
            pytest.skip(_OVER)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        run = getattr(item.config, "workerinput", {}).get("testrunuid", os.getpid())
        with Path(tempfile.gettempdir(), f"soak-{run}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
            return (yield)

    def _minutes(self) -> float:
        return (time.monotonic() - self._started) / 60

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._rows.setdefault(report.nodeid.partition("::")[2], _Row())
        row.seconds += report.duration
        if report.outcome != "passed":
            row.outcome = "not run" if _OVER in str(report.longrepr) else report.outcome
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == FIGURE:
                row.figures.append(value)  # type: ignore[arg-type]
            elif isinstance(value, float):
                row.figures.append((name.partition(": ")[2], f"{value:.1f} s", ""))
        if not row.figures and (lines := report.capstdout.strip().splitlines()):
            row.figures.append((lines[-1], "", ""))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(
            row.outcome == "not run" for row in self._rows.values()
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("soak")
        terminalreporter.line(
            f"{'test':<{_NAME}} {'seconds':>8} {'outcome':<8} {'figure':<{_WHAT}} {'':>{_VALUE}} limit"
        )
        for name, row in self._rows.items():
            begin = f"{name[:_NAME]:<{_NAME}} {row.seconds:>8.1f} {row.outcome:<8}"
            for what, value, limit in row.figures or [("", "", "")]:
                line = f"{begin} {what:<{_WHAT}} {value:>{_VALUE}} {limit:<{_LIMIT}}"
                terminalreporter.line(line.rstrip())
                begin = " " * len(begin)
        outcomes = [row.outcome for row in self._rows.values()]
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in sorted({*outcomes}))
        terminalreporter.line(f"{self._minutes():.1f} of at most {LIMIT_MINUTES:g} minutes: {counts}")
