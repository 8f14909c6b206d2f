"""Faults run one after the other, at scaled-down times in `make test` and at the real ones in `make soak`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.conftest import FAULT_FIGURE
from tests.faults.installation.invariants import violations
from tests.faults.installation.site import SCALED, Site, Times
from tests.support.servers import Hud, RedisServer


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
        request.node.user_properties.append((FAULT_FIGURE + what, seconds))

    site = Site(hud_process, redis_server, times, tmp_path, figure)
    data = Path(settings.HUD_DATA)
    try:
        site.start()
        yield site
        found = violations(controls=site.controls.values(), keys=site.keys.values(), folders=[tmp_path, data])
        assert not found, found
    finally:
        site.close()
