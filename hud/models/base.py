"""The abstract base of all models."""

from enum import StrEnum

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
