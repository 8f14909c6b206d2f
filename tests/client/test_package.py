"""The client as a wheel of its own, without anything else of this project: logs, uploads, frames, pytest."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runner.client as compiler_hud
from hud.accounts.keys import create_key
from hud.models import Metric, Point, Run
from runner.client.hud import Hud
from tests.support import servers

FOLDER = servers.ROOT / "runner" / "client"
CI_JOB = {"GITHUB_SHA": "ab" * 20, "GITHUB_REF_NAME": "main", "GITHUB_RUN_ID": "7"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the wheel."""
    folder = tmp_path_factory.mktemp("client")
    source = shutil.copytree(FOLDER, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([sys.executable, "-m", "pip", *words, str(folder / "site"), str(source)], check=True)
    return folder / "site"


@pytest.fixture
def environment(live_hud: servers.Hud, installed: Path) -> dict[str, str]:
    key = create_key(name="ci", scopes=["read", "upload", "run"], who="t")[1]
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}
    return {**own, "HUD_URL": live_hud.url, "HUD_KEY": key, **CI_JOB}


def run(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_it_needs_only_the_standard_library_and_python_3_9() -> None:
    extras = {
        "pandas": "__init__.py",
        "pyarrow": "__init__.py",
        "mcp": "mcp_server.py",
        "pytest": "pytest_plugin.py",
    }
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in (name.partition(".")[0] for name in names):
                assert name in sys.stdlib_module_names or extras.get(name) == path.name, f"{path}: {name}"


def test_what_a_program_logs_is_stored_at_its_end(environment: dict[str, str], tmp_path: Path) -> None:
    program = """
import sys
import compiler_hud
assert not {"runner", "pandas", "pytest"} & sys.modules.keys()
compiler_hud.log("attention", "my_latency", [1.5, 1.6, 1.7], unit="ms", direction="down", heads=8)
compiler_hud.log("attention", "my_rate", 3.0, unit="GB/s", direction="up")
"""
    for attempt in ("1", "2"):  # equal bytes of two attempts are two points
        ended = run(["-c", program], {**environment, "GITHUB_RUN_ATTEMPT": attempt}, tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
    points = Point.objects.filter(series__metric__name="my_latency").select_related(
        "run", "series__experiment"
    )
    assert [(point.value, point.samples) for point in points] == [(1.6, 3)] * 2
    assert {(point.run.commit, point.series.experiment.case) for point in points} == {
        ("ab" * 20, "attention")
    }
    assert points[0].series.experiment.knobs == {"heads": 8}
    assert Metric.objects.filter(unit="GB/s", direction="up", name="my_rate").exists()


def test_a_hud_that_is_away_does_not_fail_the_program(environment: dict[str, str], tmp_path: Path) -> None:
    nowhere = {**environment, "HUD_URL": "nowhere"}
    ended = run(["-c", "import compiler_hud; compiler_hud.log('a', 'b', 1.0)"], nowhere, tmp_path)
    assert ended.returncode == 0
    assert "1 logged results were not sent" in ended.stderr


def test_pytest_sends_its_benchmarks_and_logs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_speed.py").write_text(
        "def test_sum(benchmark):\n    benchmark(sum, range(100))\n"
        "def test_own(hud_log):\n    hud_log('own_latency', 2.5, unit='ms', direction='down')\n"
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-max-time=0.01"]
    ended = run([*words, "--hud", environment["HUD_URL"]], environment, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = {"own_latency": "test_own", "time_median_s": "test_speed.py::test_sum"}
    stored = Point.objects.filter(series__metric__name__in=names)
    cases = stored.values_list("series__metric__name", "series__experiment__case", "run__commit")
    assert set(cases) == {(metric, case, "ab" * 20) for metric, case in names.items()}
    runs = Run.objects.count()
    assert run(words, environment, tmp_path).returncode == 0  # without --hud nothing is sent
    assert Run.objects.count() == runs


def test_measurements_are_a_frame_with_units(
    environment: dict[str, str], live_hud: servers.Hud, monkeypatch: pytest.MonkeyPatch
) -> None:
    hud = Hud(live_hud.url, environment["HUD_KEY"])
    for name, value in CI_JOB.items():
        monkeypatch.setenv(name, value)
    for case, latency_ms in (("a", 1.0), ("b", 2.0)):
        compiler_hud.log(case, "own_latency", latency_ms, unit="ms", direction="down")
    assert compiler_hud.flush(hud)["stored"] == 2
    assert compiler_hud.flush(hud) == {}
    frame = compiler_hud.frame(hud, metric="own_latency")
    assert dict(zip(frame["case"], frame["value"], strict=True)) == {"a": 1.0, "b": 2.0}
    assert frame.attrs["units"] == {"own_latency": "ms"}
    assert set(frame["unit"]) == {"ms"}
    assert compiler_hud.regressions(hud=hud) == []
    run_id = f"run:{Run.objects.get().pk}"
    assert compiler_hud.compare(run_id, run_id, hud=hud, metric="own_latency")["counts"]["matched"] == 2
    assert compiler_hud.gate(run_id, run_id, hud=hud, metric="own_latency").status == 0


def test_the_notebook_runs(environment: dict[str, str], tmp_path: Path) -> None:
    cells = json.loads((servers.ROOT / "docs" / "client.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    asserts = """
assert {size: round(change, 2) for size, change in changes.items()} == {1024: 0.2, 4096: 0.2}
assert units == {"softmax_latency": "ms"}, units
"""
    without_ci = {name: value for name, value in environment.items() if name not in CI_JOB}
    ended = run(["-c", f"{program}\n{asserts}"], without_ci, tmp_path)
    assert ended.returncode == 0, ended.stderr
