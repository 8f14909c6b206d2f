"""The exporters that stand in torch.compile's place."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest
import torch
import torch._inductor

from runner.launch.failures import TaskFailure
from runner.measure.forked import run_stage
from runner.suites.torchdynamo import backends


def test_a_crash_of_aot_inductor_s_loader_names_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/opt/wrapped/c++")
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: None)
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", lambda *_, **__: "model.pt2")
    loader = "aoti_load_package"

    def exports() -> None:
        faulthandler.disable()  # pytest's own
        monkeypatch.setattr(torch._inductor, loader, lambda _: os.kill(os.getpid(), signal.SIGSEGV))
        backends._EXPORTERS["aot_inductor"](torch.nn.ReLU(), (), {})

    def crashes_later() -> None:
        faulthandler.disable()
        monkeypatch.setattr(torch._inductor, loader, lambda _: lambda: None)
        backends._EXPORTERS["aot_inductor"](torch.nn.ReLU(), (), {})
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(TaskFailure) as failed:
        run_stage("probe", exports, folder=tmp_path, timeout_s=20)
    assert (failed.value.status, failed.value.code) == ("crashed", "SIGSEGV")
    assert "was built by CXX=/opt/wrapped/c++" in str(failed.value)
    assert "--python NAME=PATH,CXX=/usr/bin/g++" in str(failed.value)
    with pytest.raises(TaskFailure) as failed:
        run_stage("probe", crashes_later, folder=tmp_path, timeout_s=20)
    assert str(failed.value) == "stage probe: its process was ended by SIGSEGV"


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "enable_aot_compile"),
    reason="requirements.txt allows torch from 2.6 on, and the older of them cannot compile ahead of time",
)
def test_aot_precompile_takes_torch_s_own_modules_too() -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(3, 8)
    with torch.no_grad(), torch._inductor.config.patch(compile_threads=1):
        call = backends._EXPORTERS["aot_precompile"](module, (x,), {})
        torch.testing.assert_close(call(x), module(x))
    torch._dynamo.reset()
