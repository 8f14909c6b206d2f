"""The row that an address or a body names by its id."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model

from hud.problems import Problem

_Row = TypeVar("_Row", bound=Model)
_IDS = 2**31  # beyond them PostgreSQL would refuse the question itself


def row_of(kind: type[_Row], pk: int) -> _Row:
    """Raises Problem where there is none."""
    found = kind._default_manager.filter(pk=pk).first() if pk < _IDS else None
    if found is None:
        raise Problem(404, f"no {kind._meta.verbose_name} has the id {pk}")
    return found
