"""The model's lines of kernels: a model with attention and a training step, compiled for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import utils

from runner.measure.compiler.counters import modules
from runner.measure.kernels import lines, tuning
from runner.measure.kernels.produced import produced
from runner.measure.kernels.slots import Call, Graph
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.compilations import MOST_LINES
from runner.suites.torchdynamo.model import torchvision

_ENOUGH = 0.95
_FILE = "transformers/models/gpt2/modeling_gpt2.py"


@pytest.fixture(autouse=True)
def inductors_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a cache of its own, since the graphs of an older one may name files that are gone."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    level = torch._inductor.config.trace.provenance_tracking_level
    yield
    torch._inductor.config.trace.provenance_tracking_level = level


def test_nearly_all_kernels_of_a_training_step_are_on_a_line_of_the_model() -> None:
    torchvision()
    from transformers.models.gpt2 import modeling_gpt2

    config = modeling_gpt2.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    model = modeling_gpt2.GPT2LMHeadModel(config)
    tokens = torch.randint(64, (2, 16))
    call = torch.compile(lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss)
    tuning.watch()
    forget_compiles()
    call().backward()
    found = produced(modules()).compiled
    assert found.blind == {}
    assert any("backward" in kernel.name for kernel in found.kernels)
    assert sum(bool(kernel.lines) for kernel in found.kernels) >= _ENOUGH * len(found.kernels)
    named = dict(line.partition(" ")[::2] for kernel in found.kernels for line in kernel.lines)
    assert {"GPT2MLP.forward", "GPT2Block.forward", "GPT2Attention.forward"} <= set(named.values())
    text = Path(modeling_gpt2.__file__).read_text().splitlines()
    number = next(number for number, line in enumerate(text, 1) if "self.resid_dropout(" in line)
    assert named[f"{_FILE}:{number}"] == "GPT2Attention.forward"


def graph(*handles: str) -> Graph:
    return Graph(0, "inference", tuple(Call(one, True, (), (), handle=one) for one in handles))


def test_equal_graphs_have_their_stacks_in_the_order_of_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = [{"inductor_provenance": {f'{{"a:1": ["{name}"], "b:2": []}}'}} for name in ("first", "second")]
    noted.insert(1, {"inductor_provenance": {'{"a:1": ["alone"]}'}})
    metrics = [type("Metrics", (), facts)() for facts in [*noted, {}]]
    monkeypatch.setattr(utils, "get_compilation_metrics", lambda: metrics)
    stacks = lines.stacks_of([graph("a:1", "b:2"), graph("a:1"), graph(), graph("c:1"), graph("a:1", "b:2")])
    assert [found.get("a:1") for found in stacks] == [["first"], ["alone"], None, None, ["second"]]


def test_a_line_is_the_innermost_outside_torch_with_its_class(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("class A:\n    class B:\n        def f(self):\n            return 1\n\n\nx = 1\n")

    def stack(*frames: Any) -> str:
        return "".join(f'  File "{name}", line {line}, in f\n    code\n' for name, line in frames)

    torch_file = f"{Path(torch.__file__).parent}/nn/functional.py"
    texts = [
        stack((file, 7), (file, 4), (torch_file, 3)),
        stack((file, 4)),
        stack((file, 7)),
        "",
        stack(("/no", 1)),
    ]
    assert lines.lines_of(texts) == ("model.py:4 A.B.f", "model.py:7", "no:1")
    assert len(lines.lines_of(stack((file, line)) for line in range(40))) == MOST_LINES
