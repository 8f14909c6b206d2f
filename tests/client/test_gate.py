"""The gate over generated nights on a real server: all of its exits, pairs that decide, and Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hud.accounts.keys import create_key
from hud.judging import judge
from hud.models import Accelerator, Environment, Experiment, Run
from hud.runs import tasks
from runner import client as compiler_hud
from runner.__main__ import main
from runner.client.gate import CANNOT_TELL, Case, _decide
from runner.client.hud import Hud
from runner.schema.draws import pinned_repeat
from tests.bench import nights
from tests.support import servers
from tests.support.claims import end, in_thread
from tests.support.factories import create_accelerator, create_experiment, create_measurement
from tests.support.waiting import wait_for

BACKEND = "inductor_cudagraphs"
SLOWER = {"model_03": "DistillGPT2", "model_11": "T5Small"}  # as the suite calls them


@pytest.fixture
def runs(live_hud: servers.Hud) -> list[Run]:
    """Twelve nights of 12 models of huggingface, two of them 12 % slower in the last two nights, and of 3
    models of torchbench, which do not change."""
    found = nights.generate(
        nights=12,
        cases={"huggingface": 12, "torchbench": 3},
        backends=[BACKEND],
        metrics=["device_speedup"],
    )
    for case, name in SLOWER.items():
        Experiment.objects.filter(suite="huggingface", case=case).update(case=name)
    while judge.process_pending():
        pass
    return found


@pytest.fixture
def command(live_hud: servers.Hud) -> list[str]:
    return ["gate", "--hud", live_hud.url, "--key", create_key(name="ci", scopes=["read", "run"], who="t")[1]]


def attach(*runs: Run) -> Accelerator:
    """A host with the builds of these two nights."""
    accelerator = create_accelerator(arch="b200", suites=("huggingface",), pythons=("default", "old", "new"))
    torches = [Environment.objects.filter(point__run=run).distinct().get().torch for run in runs]
    facts = dict(zip(("old", "new"), ({"torch": torch} for torch in torches), strict=True))
    accelerator.host.facts = {"pythons": facts}
    accelerator.host.save()
    return accelerator


class Worker:
    """A host that measures both sides of whatever is requested, `factor` apart."""

    def __init__(self, accelerator: Accelerator, factor: float) -> None:
        self._accelerator, self._factor, self._stop = accelerator, factor, threading.Event()
        self._thread = in_thread(self._work)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            task = tasks.claim(accelerator=self._accelerator, nonce=str(number))
            if task is None:
                continue
            number += 1
            experiment = task.run.request.experiment or create_experiment(
                **{name: task.spec[name] for name in ("suite", "case", "mode", "dtype", "backend", "device")},
                arch="b200",
                knobs={},
            )
            for side, value in enumerate((10.0, 10.0 * self._factor)):
                for draw in (2 * task.repeat, 2 * task.repeat + 1):
                    create_measurement(
                        experiment,
                        metric="device_latency_ms",
                        value=value * (1 + 0.001 * (draw % 3)),
                        run=task.run,
                        side=side,
                        draw=draw,
                        repeat=pinned_repeat(draw, 0, repeated=False),
                    )
            end(task, self._accelerator)


@pytest.fixture
def worker(request: pytest.FixtureRequest, runs: list[Run]) -> Iterator[Worker]:
    working = Worker(attach(runs[-4], runs[-1]), request.param)
    yield working
    working.stop()


def refs(base: Run, head: Run) -> list[str]:
    return ["--base", base.commit, "--head", f"run:{head.pk}"]


def test_quiet_nights_pass_and_nothing_can_be_told_without_results(
    runs: list[Run], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command, *refs(runs[-1], runs[-2]), "--suite", "torchbench", "--format", "json"]
    assert main(words) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["answer"], verdict["counts"]["matched"], verdict["counts"]["pass"]) == ("pass", 3, 3)
    for base, filters in (("deadbeef", []), ("latest:main", ["--suite", "timm"]), ("2001-01-01", [])):
        assert main([*command, "--base", base, "--head", f"run:{runs[-1].pk}", *filters]) == 3


def test_logged_results_are_gated_by_their_direction(
    live_hud: servers.Hud,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = create_key(name="log", scopes=["upload"], who="t")[1]
    for commit, lost in (("a" * 40, 1.0), ("b" * 40, 2.0)):
        monkeypatch.setenv("GITHUB_SHA", commit)
        compiler_hud.log("attention", "lost widgets", lost, direction="down")
        compiler_hud.log("attention", "found widgets", lost)
        compiler_hud.flush(Hud(live_hud.url, key))
    while judge.process_pending():
        pass
    assert main([*command, "--base", "a" * 40, "--head", "b" * 40, "--format", "json"]) in {1, 3}
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert (case["metric"], case["answer"] == "pass") == ("lost widgets", False)


def test_a_regression_is_told_with_its_cases_and_permalinks(
    runs: list[Run], command: list[str], live_hud: servers.Hud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *refs(runs[-4], runs[-1])]) == 1
    text = capsys.readouterr().out
    slower = Experiment.objects.filter(case__in=SLOWER.values()).values_list("pk", flat=True)
    for pk in slower:
        assert f"]({live_hud.url}/experiments/{pk}/?metric=device_speedup)" in text
    assert f"{live_hud.url}/compare/?base=commit%3A{runs[-4].commit}&head=run%3A{runs[-1].pk}" in text
    assert "15 matched, 2 regressed" in text


@pytest.mark.parametrize(
    "words",
    [
        ["--base", "host:", "--head", "main"],
        ["--base", "environment:a", "--head", "environment:b"],
        ["--base", "environment:a", "--head", "main"],
        ["--base", "main", "--head", "main", "--suite", "a" * 100],
        ["--hud", "nowhere", "--base", "main", "--head", "main"],
    ],
)
def test_wrong_usage(command: list[str], words: list[str]) -> None:
    assert main([*command, *words]) == 2


def test_a_hud_that_is_away_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.client.hud.PATIENCE_S", 0.0)
    away = f"http://127.0.0.1:{servers.free_port()}"
    assert main(["gate", "--hud", away, "--key", "k", "--base", "main", "--head", "main"]) == 3


@pytest.mark.parametrize(
    ("worker", "status", "verdict"),
    [(1.0, 0, "dismissed"), (1.1, 1, "confirmed"), (0.9, 0, "confirmed")],
    indirect=["worker"],
)
def test_pairs_decide_where_a_host_has_both_builds(
    worker: Worker,
    runs: list[Run],
    command: list[str],
    *,
    status: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*refs(runs[-4], runs[-1]), "--suite", "huggingface", "--budget", "5", "--format", "json"]
    monkeypatch.setenv("GITHUB_SHA", "ab" * 20)
    assert main([*command, *words]) == status
    answer = json.loads(capsys.readouterr().out)
    measured = {case["case"]: case for case in answer["cases"] if case["run"]}
    assert measured.keys() == set(SLOWER.values())
    assert all(verdict in case["why"] for case in measured.values())
    asked = Run.objects.get(pk=measured["T5Small"]["run"])
    assert (asked.interpreter, asked.base_interpreter, asked.request.run_class) == ("new", "old", "ci")
    assert asked.commit == ""  # the job's is not what is measured


def test_a_report_is_one_file_and_has_every_experiment(
    runs: list[Run], command: list[str], capsys: pytest.CaptureFixture[str], live_hud: servers.Hud
) -> None:
    words = ["report", *command[1:], *refs(runs[-4], runs[-1])]
    assert main(words) == 0
    page = capsys.readouterr().out
    assert not re.findall(r"<(?:script|link|img)|url\(|@import", page)  # it opens offline
    assert not re.findall(r"<(?:script|link|img)|url\(|@import", page)  # it opens offline
    links = re.findall(r"href='([^']*)'", page)
    assert links == [f"{live_hud.url}/compare/?base=commit%3A{runs[-4].commit}&amp;head=run%3A{runs[-1].pk}"]
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == ["Means", "Regressed: 2", "Unchanged: 13", "Environment"]
    assert all(f"huggingface {name} " in page for name in SLOWER.values())
    assert main([*words, "--format", "md", "--suite", "huggingface"]) == 0
    assert capsys.readouterr().out.count("regressed") == 3  # in the sentence, and of two models


@pytest.mark.parametrize(("worker", "status"), [(1.0, 0), (1.1, 1)], indirect=["worker"])
def test_two_interpreters_of_a_host_are_measured(
    worker: Worker, command: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GITHUB_SHA": "ab" * 20, "GITHUB_REF": "refs/pull/7/merge"}.items():
        monkeypatch.setenv(name, value)
    sides = ["--base", "environment:old", "--head", "environment:new", "--dtype", "bfloat16"]
    words = [*command, *sides, "--suite", "huggingface", "--case", "T5Small", "--mode", "inference"]
    words += ["--opt", "batch_size=4", "--opt", "size=tiny"]
    assert main([*words, "--budget", "5"]) == status
    run = Run.objects.select_related("request").get(base_interpreter="old", interpreter="new")
    assert (run.commit, run.branch, run.request.pull_request) == ("ab" * 20, "pull/7", 7)
    assert {task.spec["knobs"]["batch_size"] for task in run.tasks.all()} == {4}
    assert main(words) == 3  # without a budget nothing is measured
    assert Run.objects.filter(base_interpreter="old").count() == 1


def test_runs_that_do_not_end_in_time_are_cancelled_and_the_stored_answer_stays(
    runs: list[Run], command: list[str]
) -> None:
    attach(runs[-4], runs[-1])
    assert main([*command, *refs(runs[-4], runs[-1]), "--budget", "0.05"]) == 1
    assert {run.state for run in Run.objects.filter(request__isnull=False)} == {"cancelled"}


def test_a_key_that_may_not_start_runs_is_told(
    runs: list[Run], live_hud: servers.Hud, capsys: pytest.CaptureFixture[str]
) -> None:
    attach(runs[-4], runs[-1])
    key = create_key(name="reader", scopes=["read"], who="t")[1]
    words = ["gate", "--hud", live_hud.url, "--key", key, *refs(runs[-4], runs[-1]), "--budget", "1"]
    assert main(words) == 1
    assert "scope run" in capsys.readouterr().out


def test_interrupted_it_cancels_what_it_started(runs: list[Run], command: list[str]) -> None:
    attach(runs[-4], runs[-1])
    words = [*command, *refs(runs[-4], runs[-1]), "--budget", "5"]
    process = subprocess.Popen([sys.executable, "-m", "runner", *words], cwd=servers.ROOT)
    wait_for(lambda: Run.objects.filter(request__isnull=False).count() == 2, "both runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert {run.state for run in Run.objects.filter(request__isnull=False)} == {"cancelled"}


def test_values_that_may_not_decide_say_why() -> None:
    item = {"experiment": 1, "metric": "compiled_latency_ms"}
    line = {**item, "is_of_running": True, "verdict": "inconclusive", "quality": "busy_cpu", "change": 0.01}
    line |= {"low": None, "high": None, "draws": 6, "pairs": 3, "better": None, "base": 1.0, "new": 1.01}
    case = Case(item, CANNOT_TELL)
    _decide(case, [line], [line])
    assert case.answer == CANNOT_TELL
    assert "busy cpu" in case.why
