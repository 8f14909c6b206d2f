"""The page of an experiment, as text and as data."""

from __future__ import annotations

from typing import Any

from django.test import Client

from hud.models import Experiment
from hud.pages.experiment import query
from hud.pages.experiment.history import Range
from hud.pages.experiment.query import ExperimentPage


def text_of(client: Client, experiment: Experiment, query: str = "") -> str:
    response = client.get(f"/experiments/{experiment.pk}/{query}")
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def read_page(
    pk: int, *, points: int = query.DEFAULT_POINTS, branch: str = "", **asked: Any
) -> ExperimentPage:
    page = query.read(pk, Range(points, branch), **asked)
    assert page
    return page
