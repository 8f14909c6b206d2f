"""The exporters that stand in torch.compile's place."""

from __future__ import annotations

import pytest
import torch
import torch._inductor

from runner.suites.torchdynamo import backends


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
