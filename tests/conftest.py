"""What every test may ask for. Servers start when the first test needs them, and end with the session."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from hud.models import Accelerator, Heartbeat
from runner.system import machine
from tests import soak
from tests.support.claims import attach
from tests.support.servers import (
    EmbeddedServer,
    Hud,
    MigratedCluster,
    RedisServer,
    nobody_else_asks,
    quick_postgres,
)
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TESTS = Path(__file__).resolve().parent
POSTGRES_MAJOR = int(os.environ.get("TEST_POSTGRES") or 18)
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Files that take longest, mostly waiting: they begin first, so that no worker is left alone with one of them
LONGEST = (
    "test_faults.py",
    "test_up.py",
    "test_replica.py",
    "test_every_page.py",
    "test_browser_rerun.py",
    "test_torchdynamo.py",
    "test_gpt_fast.py",
    "test_two_hosts.py",
    "test_two_nodes.py",
    "test_two_versions.py",
    "test_network.py",
    "test_cli.py",
    "test_add.py",
    "test_cache.py",
    "test_operators.py",
    "test_api_fuzz.py",
    "test_data_views.py",
    "test_roles.py",
    "test_browser_pages.py",
    "test_disk_and_clock.py",
    "test_deploy.py",
    "test_agent.py",
    "test_life.py",
    "test_gpu.py",
    "test_repeats.py",
    "test_web_killed.py",
    "test_slow_clients.py",
    "test_micro.py",
    "test_graph_facts.py",
    "test_import_processes.py",
    "test_migrations.py",
    "test_months.py",
    "test_checks.py",
    "test_stalled_senders.py",
    "test_export.py",
    "test_xla.py",
    "test_imports.py",
    "test_regressions.py",
    "test_embedded.py",
    "test_backup.py",
    "test_bucket.py",
    "test_formats.py",
    "test_worker.py",
    "test_launch.py",
    "test_torchdynamo_models.py",
)
FAULT_FIGURE = "seconds from the fault: "  # begins the name of a property that a test of faults records
# For stages with fresh caches and few kernels: to precompile inductor's headers takes longer than they save
NO_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
STARTED_WITH = frozenset(machine.changing_variables())
NO_BROWSER = "chromium is not installed (Debian: apt-get install chromium)"


@pytest.fixture(autouse=True)
def _variables_as_at_the_start() -> Iterator[None]:
    """A suite that is run in the tests' own process sets variables there, by which a task is known."""
    yield
    for name in set(machine.changing_variables()) - STARTED_WITH:
        del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked soak run only where they are asked for by `-m`. The longest files come first."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    if "soak" in config.getoption("-m"):
        items.sort(key=lambda item: not item.get_closest_marker("alone"))
        return
    chosen = [item for item in items if not item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files beforehand, in each worker from another one on. In a fresh checkout pytest
    rewrites the asserts of every file, which takes a worker five seconds: so each does it for a part, and
    finds what the others made of the rest."""
    config = session.config
    if not hasattr(config, "workerinput") or [Path(name).resolve() for name in config.args] != [TESTS]:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    first = len(files) * number // count
    for path in (*files[first:], *files[:first]):
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest meets it again, and reports it
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Everything imported stays, so the garbage collector need not look through it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "browser" in report.keywords]
    if skipped:
        terminalreporter.section("BROWSER TESTS WERE SKIPPED", sep="!", red=True)
        terminalreporter.line(f"{len(skipped)} tests that drive a browser did not run: {NO_BROWSER}.")
    _print_fault_figures(terminalreporter)


def _print_fault_figures(terminalreporter: pytest.TerminalReporter) -> None:
    """They come from the workers with the reports of their tests."""
    rows = [
        (report.location[2], name.removeprefix(FAULT_FIGURE), seconds)
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, seconds in report.user_properties
        if name.startswith(FAULT_FIGURE)
    ]
    if rows:
        terminalreporter.section("seconds from the fault to the true state")
    for test, what, seconds in rows:
        terminalreporter.line(f"{test:<52} {what:<44} {seconds:7.1f}")


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the session as Ctrl-C does, so that servers and folders go. Imports make no garbage.
    Uploads of tests are none of the CI job that runs them."""
    gc.disable()
    if "soak" in config.getoption("-m"):
        config.pluginmanager.register(soak.Table())
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "CI_"))]:
        del os.environ[name]
    for number in (signal.SIGTERM, signal.SIGINT):  # which a shell's background jobs, and theirs, ignore
        signal.signal(number, signal.default_int_handler)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> soak.Figures:
    """Return what notes the figures of a test for the table of `make soak`."""
    return soak.Figures(request.node.user_properties)


@pytest.fixture(scope="session")
def data() -> Path:
    """The session's HUD_DATA."""
    folder: Path = settings.HUD_DATA
    return folder


@pytest.fixture(scope="session")
def inductor_cache(data: Path) -> dict[str, str]:
    """Variables for kernels that were compiled once for all workers of the session, and for headers that
    were: inductor keeps these below TMPDIR."""
    session = data.parent if os.environ.get("PYTEST_XDIST_WORKER") else data
    folder = Path(os.environ.get("RUNNER_TEST_CACHE") or session / "inductor")
    folder.mkdir(exist_ok=True)
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TMPDIR": str(folder)}


@pytest.fixture
def inductor_here(inductor_cache: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let inductor work in the tests' own process with that cache; what dynamo compiled is forgotten."""
    from torch._inductor import codecache

    from runner.measure.timing.compile_time import forget_compiles

    for name, value in inductor_cache.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    headers = Path(codecache.default_cache_dir()) / "precompiled_headers"
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(headers))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(headers / "locks"))
    yield
    forget_compiles()


@pytest.fixture(scope="session")
def _migrated(data: Path) -> MigratedCluster | None:
    """The database that the workers of a session share, where there are several."""
    return MigratedCluster(data.parent) if os.environ.get("PYTEST_XDIST_WORKER") else None


@pytest.fixture(scope="session")
def postgres_server(data: Path, _migrated: MigratedCluster | None) -> Iterator[EmbeddedServer]:
    if _migrated:
        _migrated.fetch(data / "pg")
    server = EmbeddedServer(lambda: quick_postgres(data, POSTGRES_MAJOR), data / "postgres.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: EmbeddedServer) -> None:
    """pytest-django asks for this before it creates the test database."""


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """True, since a worker may have copied its database, and all of it goes with the session's folder."""
    return True


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    data: Path,
    postgres_server: EmbeddedServer,
    _migrated: MigratedCluster | None,
) -> None:
    """Extend pytest-django's own: the first worker hands the migrated database on."""
    if _migrated and _migrated.missing:
        with django_db_blocker.unblock():
            connection.close()
        postgres_server.stop()
        _migrated.store(data / "pg")
        postgres_server.start()


@pytest.fixture(scope="session")
def _redis_of_session(data: Path) -> Iterator[RedisServer]:
    server = RedisServer(data)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis_of_session: RedisServer) -> RedisServer:
    """The Redis of settings.REDIS_URL, running. A test may `kill`, `wipe` and `start` it."""
    if not _redis_of_session.running:
        _redis_of_session.start()
    return _redis_of_session


@pytest.fixture
def hud_process(data: Path, transactional_db: None) -> Iterator[Hud]:
    """The web application under gunicorn, not started yet: `start(HUD_LEASE_S="2")`, `kill`, `stop`."""
    hud = Hud(data, _test_database())
    yield hud
    hud.stop()


def _test_database() -> str:
    return f"postgresql://hud@/{connection.settings_dict['NAME']}?host={connection.settings_dict['HOST']}"


@pytest.fixture(scope="module")
def _web_of_file(data: Path, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Hud]:
    hud = Hud(data, _test_database())
    yield hud
    hud.stop()
    with django_db_blocker.unblock():
        Heartbeat.objects.all().delete()  # sent after the last test had emptied the tables


@pytest.fixture
def live_hud(_web_of_file: Hud, transactional_db: None, redis_server: RedisServer) -> Iterator[Hud]:
    """The web application under gunicorn, answering at `live_hud.url`; the tests of a file share it."""
    if not _web_of_file.running:
        _web_of_file.start()
    yield _web_of_file
    wait_for(nobody_else_asks, "the end of the requests, before the tables are emptied")


@pytest.fixture
def accelerator(db: None) -> Accelerator:
    """The accelerator of the attached host h1, with which `tests/support/claims.py` claims."""
    return attach("h1")


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("/usr/bin/chromium", "chromium", "google-chrome"))), None)
    if path is None:
        if os.environ.get("BROWSER_REQUIRED") == "1":
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # a busy machine is no failure
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # playwright's event loop runs in the tests' thread
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """Headless Chromium. Tests that use it are marked `browser`."""
    return _chromium


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page. The test fails where a script of the page raised an error."""
    context: Any = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors, f"scripts of the page failed: {errors}"


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, caches and temporary files of one test, and nothing of this machine's environment."""
    monkeypatch.setenv("RUNNER_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("HUD_URL", "HUD_KEY", "RUNNER_CEILINGS", "HUD_MAX_BODY_BYTES"):
        monkeypatch.delenv(name, raising=False)
