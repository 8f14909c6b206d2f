"""Static files: all of ours, one of the plotly wheel, the application's served by the application itself."""

from __future__ import annotations

import urllib.request

import pytest
from django.contrib.staticfiles import finders

from hud.server.staticfiles import ProjectFinder
from tests.support.servers import Hud


def test_the_plotly_wheel_gives_one_file() -> None:
    found = [storage.path(path) for path, storage in ProjectFinder().list(None)]
    assert [path for path in found if "package_data" in path] == [finders.find("plotly/plotly.min.js")]
    assert finders.find("plotly/widgetbundle.js") is None


@pytest.mark.django_db(transaction=True)
def test_the_web_serves_plotly_itself(live_hud: Hud) -> None:
    with urllib.request.urlopen(f"{live_hud.url}/static/plotly/plotly.min.js") as response:
        assert response.read(200).startswith(b"/**\n* plotly.js")


def test_queues_of_any_name_speak_json() -> None:
    from django.conf import settings

    assert settings.RQ_QUEUES["accelerator-7"]["SERIALIZER"] == "rq.serializers.JSONSerializer"
    assert list(settings.RQ_QUEUES) == ["default"]
