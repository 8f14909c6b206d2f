"""Faults run one after the other, at scaled-down times in `make test` and at the real ones in `make soak`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.conftest import FAULT_FIGURE
from tests.faults.installation.invariants import violations
from tests.faults.installation.site import SCALED, Site, Times
from tests.support.servers import Hud, RedisServer


@pytest.fixture(params=["scaled", pytest.param("real", marks=pytest.mark.soak)])
def times(request: pytest.FixtureRequest) -> Times:
    return SCALED if request.param == "scaled" else Times()


@pytest.fixture(scope="module")
def _kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[list[Site]]:
    """The installation that the tests of a file share, once there is one."""
    kept: list[Site] = []
    with django_db_blocker.unblock():
        yield kept
        _discard(kept)


def _is_forgiving(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("forgiving") is not None


def _discard(kept: list[Site]) -> None:
    for site in kept:
        site.close()
    kept.clear()
    call_command("flush", verbosity=0, interactive=False)


@pytest.fixture
def shared_site(
    request: pytest.FixtureRequest,
    _kept: list[Site],
    redis_server: RedisServer,
    times: Times,
    data: Path,
    tmp_path: Path,
) -> Iterator[Site]:
    """As `site`, and shared by the tests of a file, whose `_django_db_helper` empties no database. After a
    failure the next test gets a new one."""
    failed = request.session.testsfailed
    if _kept and _kept[0].times != times:
        _discard(_kept)
    if not _kept:
        database = (
            f"postgresql://hud@/{connection.settings_dict['NAME']}?host={connection.settings_dict['HOST']}"
        )
        _kept.append(Site(Hud(data, database), redis_server, times, tmp_path, lambda _what, _s: None))
        _kept[0].start()
    site = _kept[0]

    def figure(what: str, seconds: float) -> None:
        request.node.user_properties.append((FAULT_FIGURE + what, seconds))

    site.figure = figure
    sound = False
    try:
        site.have_tick(forgiving=_is_forgiving(request))
        yield site
        found = violations(
            controls=site.controls.values(), keys=site.keys.values(), folders=[site.folder, data]
        )
        assert not found, found
        if request.session.testsfailed == failed:
            site.begin_anew()
            sound = True
    finally:
        if not sound:
            _discard(_kept)


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    hud_process: Hud,
    redis_server: RedisServer,
    times: Times,
    tmp_path: Path,
) -> Iterator[Site]:
    """A running installation with one host, or none where the test is marked so. After the test the oracle
    is asked."""

    def figure(what: str, seconds: float) -> None:
        request.node.user_properties.append((FAULT_FIGURE + what, seconds))

    site = Site(hud_process, redis_server, times, tmp_path, figure)
    data = Path(settings.HUD_DATA)
    try:
        host = not request.node.get_closest_marker("no_host")
        site.start(host=host, forgiving=_is_forgiving(request))
        yield site
        found = violations(controls=site.controls.values(), keys=site.keys.values(), folders=[tmp_path, data])
        assert not found, found
    finally:
        site.close()
