"""The runner as a Django app, for `manage.py attach` only: no models, no database."""

from __future__ import annotations

from django.apps import AppConfig


class RunnerConfig(AppConfig):
    name = "runner"
    label = "runner"
    verbose_name = "Runner"
