"""The allocator's history, an artifact that is kept beside the numbers."""

import contextlib
import pickle
from collections.abc import Iterator

import torch

_MOST_EVENTS = 100_000


@contextlib.contextmanager
def memory_history() -> Iterator[None]:
    """Record what the CUDA allocator does."""
    torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def memory_snapshot() -> bytes:
    """Return the recorded history as a pickle for https://pytorch.org/memory_viz."""
    return pickle.dumps(torch.cuda.memory._snapshot())
