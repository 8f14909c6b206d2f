"""Faults run one after the other, at scaled-down times in `make test` and at the real ones in `make soak`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.faults.invariants import violations
from tests.faults.site import SCALED, Site, Times
from tests.servers import Hud, RedisServer

_FIGURES: list[tuple[str, str, float]] = []


@pytest.fixture(params=["scaled", pytest.param("real", marks=pytest.mark.soak)])
def times(request: pytest.FixtureRequest) -> Times:
    return SCALED if request.param == "scaled" else Times()


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    hud_process: Hud,
    redis_server: RedisServer,
    times: Times,
    tmp_path: Path,
) -> Iterator[Site]:
    """A running installation with one host. After the test the oracle is asked."""

    def figure(what: str, seconds: float) -> None:
        _FIGURES.append((request.node.name, what, seconds))

    site = Site(hud_process, redis_server, times, tmp_path, figure)
    data = Path(settings.HUD_DATA)
    try:
        site.start()
        yield site
        found = violations(controls=site.controls.values(), keys=site.keys.values(), folders=[tmp_path, data])
        assert not found, found
    finally:
        site.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("seconds from the fault to the true state")
    for test, what, seconds in _FIGURES:
        terminalreporter.line(f"{test:<52} {what:<44} {seconds:7.1f}")
