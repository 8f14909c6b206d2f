"""Compilations as pages read them: a fixed number of queries, whatever there is."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from hud.models import Experiment
from hud.pages import compilations
from tests.judging.test_compilation_metrics import compiled, night

pytestmark = pytest.mark.django_db


def test_the_newest_compilations_are_those_of_the_default_branch() -> None:
    night(0, 0, 1)
    last = night(1, 2, 3, 0)
    night(2, 1, branch="slow")
    experiment = Experiment.objects.get().pk
    with CaptureQueriesContext(connection) as queries:
        found = compilations.newest(experiment, limit=4)
    assert len(queries) == 3
    assert [one.row.number for one in found] == [2, 1, 0, 1]
    assert [one.compiled for one in found] == [compiled(place) for place in (0, 3, 2, 1)]
    assert [one.row.run.pk for one in found[:3]] == [last] * 3
