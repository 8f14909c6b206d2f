"""Static files: all of ours, one of the plotly wheel, the application's served by the application itself."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django import Settings

from tests.support.servers import ROOT, Hud


def test_the_plotly_wheel_gives_one_file(settings: Settings, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path
    call_command("collectstatic", "--noinput", "--verbosity=0")
    assert [path.name for path in (tmp_path / "plotly").rglob("*")] == ["plotly.min.js"]
    ours = [path.relative_to(ROOT / "static") for path in (ROOT / "static").rglob("*") if path.is_file()]
    assert ours
    assert all((tmp_path / path).is_file() for path in ours)


@pytest.mark.django_db(transaction=True)
def test_the_web_serves_plotly_itself(live_hud: Hud) -> None:
    with urllib.request.urlopen(f"{live_hud.url}/static/plotly/plotly.min.js") as response:
        assert response.read(200).startswith(b"/**\n* plotly.js")


def test_queues_of_any_name_speak_json() -> None:
    from django.conf import settings

    assert settings.RQ_QUEUES["accelerator-7"]["SERIALIZER"] == "rq.serializers.JSONSerializer"
    assert list(settings.RQ_QUEUES) == ["default"]
