"""The page of an experiment, as text and as data."""

from __future__ import annotations

from typing import Any

from django.test import Client

from hud.models import Experiment, Stream
from hud.pages.charts.choice import Choice
from hud.pages.experiment import query
from hud.pages.experiment.query import ExperimentPage
from tests.support.pages import page_of


def text_of(client: Client, experiment: Experiment, query: str = "") -> str:
    return page_of(client, f"/experiments/{experiment.pk}/{query}")


def read_page(pk: int, *, stream: str = "import", **choice: Any) -> ExperimentPage:
    return query.read(pk, Stream.objects.get(name=stream), Choice(**choice))
