"""What a test of measuring leaves in its process, which the next one must not meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.measure.compiler.counters import blind


@pytest.fixture(autouse=True)
def nothing_blind() -> Iterator[None]:
    blind.clear()
    yield
    blind.clear()
