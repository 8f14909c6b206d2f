"""A benchmark that holds its accelerator: the faults of `tests/faults/gpu.py`, with and without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.system.machine import gpus
from tests.faults import gpu
from tests.faults.installation.site import Site
from tests.support.servers import ROOT

NO_GPU = "NO GPU: out of memory and spinning kernels were not tried on one"


@pytest.mark.django_db(transaction=True)
def test_an_orphan_keeps_its_accelerator(site: Site) -> None:
    fault = gpu.Fault("orphan")
    gpu.orphaned(gpu.Card(site), fault, orphan_s=180, end_it=site.times.scaled)
    for what, seconds in fault.seconds.items():
        site.figure(what, seconds)
    assert fault.good, fault


@pytest.mark.soak
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_whole_script(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not gpus():
        print(f"\n!!!!!!!! {NO_GPU} !!!!!!!!")
        pytest.skip(NO_GPU)
    command = [sys.executable, "-m", "tests.faults.gpu", str(tmp_path), "--device", device]
    variables = {name: value for name, value in os.environ.items() if name != "HUD_TEST_DATA"}  # its own
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
