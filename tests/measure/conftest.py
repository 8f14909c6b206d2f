"""Begin each test of measuring without what the one before left in the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.measure.compiler.counters import blind


@pytest.fixture(autouse=True)
def nothing_blind() -> Iterator[None]:
    blind.clear()
    yield
    blind.clear()
