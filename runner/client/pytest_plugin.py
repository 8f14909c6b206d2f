"""A plugin of pytest: with `--hud URL`, results of pytest-benchmark and of the fixture `hud_log` go to a HUD
when the session ends."""

from __future__ import annotations

import datetime
import json
import platform
from functools import partial
from typing import Any

import pytest

from . import HudError, WrongUsage, flush, log, upload
from .hud import Hud


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("compiler hud").addoption(
        "--hud", metavar="URL", help="send results there (key: HUD_KEY)"
    )


@pytest.fixture
def hud_log(request: pytest.FixtureRequest) -> Any:
    """Log a result of the test: `hud_log("latency", 1.2, unit="ms", direction="down")`."""
    is_sent = request.config.getoption("hud")
    return partial(log, request.node.name) if is_sent else lambda *_values, **_meaning: None


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    url = config.getoption("hud")
    if not url:
        return
    benchmarks = getattr(getattr(config, "_benchmarksession", None), "benchmarks", ())
    results = [benchmark.as_dict(include_data=True) for benchmark in benchmarks if benchmark]
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    about = {"machine_info": {"node": platform.node()}, "datetime": now.isoformat()}
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    try:
        hud = Hud(url)
        receipts = [flush(hud)]
        if results:
            body = json.dumps({**about, "benchmarks": results}, default=str).encode()
            receipts.append(upload(body, "pytest_benchmark.json", hud=hud, arch=platform.machine()))
        lines = [f"hud: stored {receipt['stored']} results" for receipt in receipts if receipt]
    except (HudError, WrongUsage) as error:  # results that are not sent fail no test
        lines = [f"hud: not sent: {error}"]
    for line in lines if reporter else ():  # a worker of xdist has none
        reporter.write_line(line)
