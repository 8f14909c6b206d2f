"""F12: hosts whose clocks are hours and months off: the hud's clock counts, and the page says so."""

from __future__ import annotations

import re
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from hud.models import Host, State
from tests.faults.installation.site import Site, only_task

pytestmark = pytest.mark.django_db(transaction=True)

HOUR_S, MONTH_S = 3600, 30 * 24 * 3600
SKEWED = Path(__file__).resolve().parent / "skewed"


def test_hosts_with_wrong_clocks(site: Site) -> None:
    began = timezone.now()
    skews_s = (HOUR_S, -MONTH_S) if site.times.scaled else (HOUR_S, -HOUR_S, MONTH_S, -MONTH_S)
    for skew_s in skews_s:
        name = f"skewed{skew_s}"
        site.attach(name, environment={"PYTHONPATH": str(SKEWED), "SKEW_S": str(skew_s)})
        run = site.request("layer_norm", labels={"host": name})
        (ended,) = site.wait_for_end(run)
        assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
        assert ended.started
        assert ended.finished
        assert began <= ended.order_time <= ended.started <= ended.finished <= timezone.now()
        host = Host.objects.get(name=name)
        assert host.clock_skew_s == pytest.approx(skew_s, abs=5)
        assert host.last_beat
        assert abs(host.last_beat - timezone.now()) < timedelta(seconds=60), "a beat is noted in our time"
        assert site.host_state(name) == "online"
        with urllib.request.urlopen(f"{site.hud.url}/hosts/", timeout=10) as page:
            said = re.search(rf">{name}<.*?its clock is (-?\d+) s off", page.read().decode(), re.DOTALL)
        assert said
        assert int(said[1]) == pytest.approx(skew_s, abs=5)
        site.hosts[name].stop()
