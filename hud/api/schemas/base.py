"""Errors, identities, and bodies that people write."""

from __future__ import annotations

from typing import Annotated, Any

from ninja import Schema
from pydantic import ConfigDict, Field

from hud.models.streams import NAME_PATTERN

Labels = dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=100)]]

StreamName = Annotated[str, Field(pattern=f"^({NAME_PATTERN})?$")]  # '': the default


class Error(Schema):
    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] = []


class StrictBody(Schema):
    """A body that people write: unknown keys are refused, and `true` or "1" is no 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class IdentityOut(Schema):
    """The identity of an experiment."""

    suite: str
    case: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool
