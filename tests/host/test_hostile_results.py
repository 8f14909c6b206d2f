"""A benchmark writes what it wants into its folder: the host stays up and delivers the task's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runner.host.agent import Agent, Attachment
from runner.host.client import Hud, Lease
from runner.host.spool import Folder
from runner.launch import results
from runner.launch.launch import launch
from runner.schema.records import Environment
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import interpreters, task_files
from tests.host.fake_hud import KEY, FakeHud, FakeTask
from tests.support.records import task_record

SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
OK = "import json; open('outcome.json', 'w').write(json.dumps({'status': 'ok'}))\n"
GOOD = json.dumps(task_record(SPEC)) + "\n"
OTHER = json.dumps({**task_record(SPEC), "model": {"name": "gemv", "origins": ["micro"]}}) + "\n"


@pytest.fixture(autouse=True)
def _known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: Environment(torch="2.0", cpu="a CPU"))


@dataclass
class Bed:
    """A claimed task, and the HUD that it is delivered to."""

    fake: FakeHud
    task: FakeTask
    lease: Lease
    data: Path

    def run(self, code: str) -> TaskOutcome:
        """Run the benchmark and deliver what it left, as a worker does."""
        folder = Folder.create(self.data, self.lease)
        outcome = launch(SPEC, folder.path, command=[sys.executable, "-c", code])
        folder.end(outcome)
        folder.deliver(Hud(self.fake.url, KEY))
        return outcome

    @property
    def own(self) -> list[dict[str, Any]]:
        """The records that reached the HUD as results of the task: unmarked, with values."""
        found = [one for one in self.task.records.values() if "benchmark_values" in one["metric"]]
        return [one for one in found if "unexpected" not in (one["metric"].get("extra_info") or {})]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    fake = FakeHud()
    task = fake.add(**SPEC.to_json())
    lease = Hud(fake.url, KEY).claim(1, "n")
    assert lease
    yield Bed(fake, task, lease, tmp_path)
    fake.stop()


@pytest.mark.parametrize(
    "line",
    [
        OTHER,
        "[" * 100_000 + "\n",
        '{"a":' * 900 + "1" + "}" * 900 + "\n",
        GOOD.replace('"dynamic": false', '"dynamic": false, "x": ' + "[" * 100 + "]" * 100),
        GOOD.replace('"dynamic": false', '"dynamic": false, "x": NaN'),
        GOOD.replace('"dynamic": false', '"dynamic": false, "x": "\\u0000"'),
        GOOD.replace("layer_norm", "layer_norm" + "x" * 5_000_000),
        "x" * 9_000_000 + "\n",
        "\0\n",
    ],
)
def test_a_hostile_line_costs_no_other_line(bed: Bed, tmp_path: Path, line: str) -> None:
    (tmp_path / "line").write_text(line)
    code = (
        f"open('results.jsonl', 'w').write({GOOD!r} + open({str(tmp_path / 'line')!r}).read() + {GOOD!r})\n"
    )
    bed.run(code + OK)
    assert bed.task.state == "done"
    assert [one["model"]["name"] for one in bed.own] == ["layer_norm"]


@pytest.mark.parametrize("line", [OTHER, "{}\n", "\n", "1\n"])
def test_a_flood_of_lines_ends_the_reading(bed: Bed, tmp_path: Path, line: str) -> None:
    code = f"open('results.jsonl', 'w').write({GOOD!r} + {line!r} * 3_000_000)\n"
    if len(line) > 10:
        code = f"open('results.jsonl', 'w').write({GOOD!r} + {line!r} * 20_000)\n"
    outcome = bed.run(code + OK)
    assert (outcome.status, outcome.code) == ("failed", results.NO_RECORDS)
    assert (bed.task.state, len(bed.own)) == ("done", 1)
    assert len(outcome.unexpected) <= 1000


def test_what_is_over_the_limit_is_not_read(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("runner.launch.results", "runner.host.spool"):
        monkeypatch.setattr(f"{module}.MAX_RESULTS_BYTES", 40_000)
    lines = f"{GOOD!r}.replace('1.5', str(n)) for n in range(400)"
    outcome = bed.run(f"open('results.jsonl', 'w').write(''.join({lines}))\n" + OK)
    assert (outcome.status, outcome.code) == ("failed", results.NO_RECORDS)
    assert 10 < len(bed.own) < 400


PLACES = {
    "link": "import os; os.symlink({secret!r}, {name!r})\n",
    "endless": "import os; os.symlink('/dev/zero', {name!r})\n",
    "pipe": "import os; os.mkfifo({name!r})\n",
    "folder": "import os; os.mkdir({name!r})\n",
}


@pytest.mark.parametrize("name", ["results.jsonl", "outcome.json", "events.jsonl", "found.json", "log"])
@pytest.mark.parametrize("kind", PLACES)
def test_what_stands_in_the_place_of_a_file_is_not_read(
    bed: Bed, tmp_path: Path, kind: str, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(GOOD.replace("1.5", "666"))
    code = "import os; os.unlink('log')\n" if name == "log" else ""
    code += PLACES[kind].format(secret=str(secret), name=name)
    outcome = bed.run(code + (OK if name not in {"outcome.json", "found.json"} else ""))
    assert bed.task.state == "done"
    assert not bed.own
    assert b"666" not in bed.task.log
    assert secret.read_text() == GOOD.replace("1.5", "666")
    if name == "results.jsonl":
        assert (outcome.status, outcome.code) == ("failed", results.NO_RECORDS)


def test_artifacts_are_files_of_the_folder(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("secret")
    code = f"""import os
for kind in ("good", "link", "pipe", "folder"): os.makedirs(f"artifacts/{{kind}}")
open("artifacts/good/a", "w").write("kept")
os.symlink({str(tmp_path / "elsewhere" / "secret")!r}, "artifacts/link/a")
os.symlink({str(tmp_path / "elsewhere")!r}, "artifacts/elsewhere")
os.mkfifo("artifacts/pipe/a")
os.mkdir("artifacts/folder/a")
open("results.jsonl", "w").write({GOOD!r})
"""
    bed.run(code + OK)
    assert (bed.task.state, list(bed.task.artifacts.values())) == ("done", [b"kept"])


@pytest.mark.parametrize(
    "spoil",
    [
        {"lease.json": "[" * 100_000},
        {"lease.json": '{"task": 5, "accelerator": "cpu"}'},
        {"outcome.json": "[" * 100_000},
        {"outcome.json": '{"status": "ok", "seconds": "never"}'},
        {"outcome.json": '{"status": "great", "seconds": 1e999}'},
    ],
)
def test_a_spoilt_folder_does_not_hold_up_others(bed: Bed, tmp_path: Path, spoil: dict[str, str]) -> None:
    """Left by dead workers; the agent delivers them in the order of their names."""
    spoilt = Folder.create(tmp_path, replace(bed.lease, task="0" * 8 + bed.lease.task[8:]))
    spoilt.release()
    for name, text in spoil.items():
        (spoilt.path / name).write_text(text)
    good = Folder.create(tmp_path, bed.lease)
    (good.path / "results.jsonl").write_text(GOOD)
    good.end(TaskOutcome("ok"))
    good.release()
    agent = Agent(Attachment(bed.fake.url, "here", KEY), tmp_path, {}, pythons={}, labels={})
    agent._deliver()
    assert (bed.task.state, len(bed.own)) == ("done", 1)


def test_a_refusal_by_the_hud_fails_the_task(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = [{"pointer": "", "reason": "the record does not belong to the task: its time is 1970"}]
    monkeypatch.setattr(bed.fake, "_results", lambda _task, _body: {"stored": 0, "skipped": skipped})
    bed.run(f"open('results.jsonl', 'w').write({GOOD!r})\n" + OK)
    assert (bed.task.end["status"], bed.task.end["code"]) == ("failed", "results_refused")
    assert "its time is 1970" in bed.task.end["reason"]


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert task_files.read_object(tmp_path / "file") == {}
    for name in ("link", "missing", ""):
        with pytest.raises(OSError, match=r"link|missing|regular"):
            task_files.open_file(tmp_path / name)
    (tmp_path / "file").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="deep"):
        task_files.read_object(tmp_path / "file")
