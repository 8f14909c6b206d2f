"""The files of `deploy/` name what there is: processes, settings, metrics; nginx passes on what it should."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from django.test import Client
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.nginx import nginx, status_of
from tests.support.servers import ROOT, Hud

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
BACKGROUND = ("tick", "judge", "imports")


def lines(path: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", path.read_text(), re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    paths = [tmp_path / unit.name for unit in UNITS]
    for unit, path in zip(UNITS, paths, strict=True):
        text = unit.read_text().replace("/opt/compiler-hud/.venv/bin/", f"{ROOT}/.venv/bin/")
        path.write_text(text.replace("/opt/compiler-hud", str(ROOT)))
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_units_and_services_start_every_process() -> None:
    compose = (DEPLOY / "compose" / "compose.yaml").read_text()
    for name in BACKGROUND:
        unit = DEPLOY / "systemd" / f"compiler-hud-{name}.service"
        assert lines(unit, "ExecStart") == [f"/opt/compiler-hud/.venv/bin/python manage.py {name}"]
        assert f"  {name}:\n    <<: *hud\n    command: python manage.py {name}\n" in compose
    web = (DEPLOY / "systemd" / "compiler-hud-web.service").read_text()
    assert "gunicorn -c python:hud.server.gunicorn_conf hud.wsgi" in web
    upgrade = lines(DEPLOY / "systemd" / "compiler-hud-upgrade.service", "ExecStart")
    assert [line.split()[2] for line in upgrade] == ["upgrade", "bootstrap", "collectstatic"]
    for unit in UNITS:
        for path in lines(unit, "EnvironmentFile"):
            assert (DEPLOY / f"{Path(path).name}.example").exists()


def needs(texts: Iterable[str]) -> dict[str, SpecifierSet]:
    """Return what requirements ask for here, by package."""
    requirements = [Requirement(text) for text in texts]
    here = [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {canonicalize_name(each.name): each.specifier for each in here}


def test_the_locked_packages_are_those_of_the_dashboard_with_what_they_need() -> None:
    wanted, _, of_the_runner = (ROOT / "requirements.txt").read_text().partition("\n# runner;")
    assert "torch" in of_the_runner, "no half without a beginning"
    lines_of = wanted.splitlines()
    wanted_here = needs(line for line in lines_of if line and not line.startswith("#"))
    entries = re.split(
        r"\n(?=\w)", (DEPLOY / "requirements.lock").read_text().partition("\n#    make lock\n")[2]
    )
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    locked = needs(entry.partition(" \\\n")[0] for entry in entries)
    missing: dict[str, object] = {
        name: version for name, version in wanted_here.items() if locked.get(name) != version
    }
    for name in locked:  # other releases may be installed here, but hardly with other packages
        with suppress(PackageNotFoundError):
            missing |= {need: name for need in needs(requires(name) or ()) if need not in locked}
    assert not missing, "make lock"


def test_every_setting_of_the_example_is_documented_or_read() -> None:
    documented = (ROOT / "docs" / "deploying.md").read_text() + (ROOT / "docs" / "hosts.md").read_text()
    for example in DEPLOY.glob("*.env.example"):
        for name in re.findall(r"^([A-Z_]+)=", example.read_text(), re.MULTILINE):
            assert name in documented or name in example.with_suffix("").name.upper() or name == "OPTIONS", (
                name
            )


def series_of(family: Metric) -> set[str]:
    """Return the names that a metric has in rules; those of a request come with the first one."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
    return {family.name + ending for ending in endings}


@pytest.mark.django_db
def test_alerts_ask_for_metrics_that_are_served() -> None:
    rules = re.findall(r"expr: (.*)", (DEPLOY / "prometheus" / "alerts.yaml").read_text())
    asked = {name for rule in rules for name in re.findall(r"hud_\w+", rule)}
    served = Client().get("/metrics").content.decode()
    assert len(asked) >= 4
    names = {name for family in text_string_to_metric_families(served) for name in series_of(family)}
    assert asked <= names, asked - names


@pytest.fixture
def proxy(live_hud: Hud, tmp_path: Path) -> Iterator[str]:
    with nginx(tmp_path, [live_hud]) as url:
        yield url


@pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx")
@pytest.mark.soak
def test_nginx_serves_pages_refuses_large_bodies_and_hides_no_metrics_from_its_machine(
    proxy: str, tmp_path: Path
) -> None:
    assert status_of(f"{proxy}/") == 200
    lines = [json.loads(line) for line in (tmp_path / "compiler-hud.json").read_text().splitlines()]
    assert ("/", 200, "GET") in {(line["path"], line["status"], line["method"]) for line in lines}
    assert status_of(f"{proxy}/metrics") == 200
    assert status_of(f"{proxy}/api/v1/results", b"x" * (81 * 2**20)) == 413
    with urllib.request.urlopen(f"{proxy}/readyz", timeout=20) as answer:
        assert json.load(answer)["components"]["database"] == "ok"
