"""torch.compile as a cell has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config as inductor_config

from runner.catalog.suites.xla import Cell


def compiled(step: Callable[..., Any], cell: Cell, *, single_graph: bool) -> Callable[..., Any]:
    """The step itself where the cell has no dynamo. Inductor uses CUDA graphs on CUDA, as there."""
    if not cell.dynamo:
        return step
    torch._dynamo.reset()
    inductor_config.triton.cudagraphs = cell.accelerator == "cuda"
    call: Callable[..., Any] = torch.compile(step, backend=cell.dynamo, fullgraph=single_graph)
    return call
