"""The abstract base of all models."""

from __future__ import annotations

from django.db import models


class NamedRow(models.Model):
    """A row that logs and Django's admin pages name by its kind and id."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"
