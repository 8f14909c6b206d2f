"""The gate through the product, on a device of this machine: equal builds pass, planted slow ones are found.
For an idle machine. One takes six to ten minutes: `GATE_EQUAL=20 GATE_PLANTED=10` has all that a claim needs,
on the CPU, and with `GATE_DEVICE=0` on that GPU."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hud.accounts.keys import create_key
from hud.models import Accelerator, Host
from runner.__main__ import main
from runner.client.gate import STATUS
from tests.support.hosts import ANSWERS_FOR_COMPILE, HostProcess, ticking
from tests.support.servers import Hud
from tests.support.waiting import wait_for

EQUAL, PLANTED = int(os.environ.get("GATE_EQUAL", "0")), int(os.environ.get("GATE_PLANTED", "0"))
pytestmark = [
    pytest.mark.soak,
    pytest.mark.alone,
    pytest.mark.skipif(
        not EQUAL + PLANTED,
        reason="a gate takes six to ten minutes of an idle machine: ask with GATE_EQUAL and GATE_PLANTED",
    ),
]
DEVICE = os.environ.get("GATE_DEVICE", "cpu")
# a case, and a variable with which code for it is slower: without vectors, or not optimised by LLVM
CASE, SLOW = {
    "cpu": ("layer_norm --opt D=[64]", "ATEN_CPU_CAPABILITY=default"),
    "cuda": ("layer_norm --opt D=[16384]", "DISABLE_LLVM_OPT=1"),
}["cpu" if DEVICE == "cpu" else "cuda"]
GATE = ["--suite", "micro", "--case", *CASE.split(), "--budget", "40", "--format", "json"]


@pytest.fixture
def host(live_hud: Hud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostProcess]:
    """A host with a build, the same again, and one that compiles slower code."""
    _key, secret = create_key(name="host", scopes=["host"], who="test", host=Host.objects.create(name="here"))
    words = ["-m", "runner", "attach", "--hud", live_hud.url, "--key", secret, "--devices", DEVICE]
    for name, variables in (("base", ""), ("same", ""), ("slow", f",{SLOW}")):
        words += ["--python", f"{name}={sys.executable}{variables}"]
    (tmp_path / "sitecustomize.py").write_text(ANSWERS_FOR_COMPILE)
    words += ["--data", str(tmp_path / "agent")]
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK")  # of the tests' settings: no vectors, like the slow build
    process = HostProcess(tmp_path, words, {"PYTHONPATH": str(tmp_path)})
    tick = ticking(live_hud, tmp_path)
    process.start()
    wait_for(lambda: Accelerator.objects.filter(host__name="here").exists(), "the host's first beat")
    yield process
    process.stop()
    tick.stop()


def test_equal_builds_pass_and_planted_ones_are_found(
    live_hud: Hud, host: HostProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    key = create_key(name="ci", scopes=["read", "run"], who="t")[1]
    counts: dict[str, Counter[int]] = {"same": Counter(), "slow": Counter()}
    for name, times in (("slow", PLANTED), ("same", EQUAL)):
        sides = ["--base", "environment:base", "--head", f"environment:{name}"]
        for _time in range(times):
            status = main(["gate", "--hud", live_hud.url, "--key", key, *sides, *GATE])
            assert status in STATUS.values()
            counts[name][status] += 1
            cases = json.loads(capsys.readouterr().out)["cases"]
            with capsys.disabled():
                print(name, status, [(case["metric"], case["answer"], case["why"]) for case in cases])
    assert counts["same"][1] == 0
    assert counts["same"][0] >= 0.75 * EQUAL
    assert counts["slow"][1] == PLANTED
