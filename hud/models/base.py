"""The abstract base of all models."""

from enum import StrEnum
from typing import Any

from django.db import models


def choices_of(states: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the values of an enumeration with their titles, as a field takes them."""
    return [(state.value, state.value.replace("_", " ").title()) for state in states]


class NamedRow(models.Model):
    """A row that logs and Django's admin pages name by its kind and id."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"


class Real(models.FloatField):  # type: ignore[type-arg]  # not subscriptable when it runs
    """A number of 4 bytes, with 7 digits."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 — Django's signature
        return "real"
