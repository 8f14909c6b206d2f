"""Cursors: what the last row of a page is sorted by, at which the next page begins."""

import re
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_MOST = 2**31 - 1
_ID, _TIME = "[0-9]{1,10}", r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?Z"
_POINT = f"{_TIME}_{_ID}_{_ID}"


def cursor_to(*values: datetime | int) -> str:
    """Return the cursor of a row."""
    texts = (str(value) if isinstance(value, int) else value.astimezone(UTC).isoformat() for value in values)
    return "_".join(texts).replace("+00:00", "Z")


def _read(text: str, *, form: str, least: int = 1) -> tuple[Any, ...]:
    """Return the values of a cursor; '' has none. Raise ValueError."""
    if text and not re.fullmatch(form, text):
        raise ValueError("it is no `next` of an earlier answer")
    parts = text.split("_") if text else []
    values = tuple(datetime.fromisoformat(part) if "T" in part else int(part) for part in parts)
    if any(not least <= value <= _MOST for value in values if isinstance(value, int)):
        raise ValueError(f"it has a number that is not from {least} to {_MOST}")
    return values


def _read_id(text: str, *, least: int = 1) -> int | None:
    return next(iter(_read(text, form=_ID, least=least)), None)


def _schema(form: str) -> WithJsonSchema:
    about = {"description": "`next` of the page before", "default": ""}
    return WithJsonSchema({"type": "string", "pattern": f"^({form})?$", **about})


_DEFAULT = Field(validate_default=True)
IdCursor = Annotated[Any, _DEFAULT, BeforeValidator(_read_id), _schema(_ID)]
IdCursorFrom0 = Annotated[Any, _DEFAULT, BeforeValidator(partial(_read_id, least=0)), _schema(_ID)]
PointCursor = Annotated[Any, _DEFAULT, BeforeValidator(partial(_read, form=_POINT)), _schema(_POINT)]
