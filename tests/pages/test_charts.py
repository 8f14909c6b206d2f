"""Figures: what Plotly takes, verdicts by symbol and colour, the target's line, names that stay names."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import pytest
from django.utils import timezone

from hud.models import Target
from hud.pages.experiment import charts, query
from hud.pages.experiment.query import History
from hud.templatetags.hud_tags import duration, figure, number, quantity, sparkline
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_metric,
    create_run,
    create_verdict,
)


def history_of(**fields: Any) -> History:
    page = query.read(create_experiment(**fields).pk)
    assert page
    assert page.history
    return page.history


def marks(drawn: charts.Figure) -> dict[str, charts.Figure]:
    return {trace["name"]: trace for trace in drawn["data"] if trace["mode"] == "markers"}


@pytest.mark.django_db
def test_a_history_is_a_figure_plotly_takes() -> None:
    now = timezone.now()
    for day in range(3):
        create_measurement(samples=[99.0, 100.0, 102.0], at=now - timedelta(days=day))
    create_measurement(value=None, status="oom", at=now + timedelta(days=1))
    drawn = charts.history(history_of())
    checked = go.Figure(drawn)  # raises for anything that is not in Plotly's schema
    assert {trace.type for trace in checked.data} == {"scatter"}
    json.dumps(drawn)
    assert drawn["layout"]["template"]["layout"]["margin"] == {"l": 64, "r": 16, "t": 16, "b": 40}
    assert charts.history(history_of()) == drawn  # what is built once is not changed


@pytest.mark.django_db
def test_each_verdict_has_its_own_symbol_and_colour() -> None:
    now = timezone.now()
    for day, verdict in enumerate(("improved", "regressed", "inconclusive")):
        create_verdict(create_measurement(at=now + timedelta(days=day)), verdict, change=0.1)
    shown = marks(charts.history(history_of()))
    looks = {name: (trace["marker"]["symbol"], trace["marker"]["color"]) for name, trace in shown.items()}
    assert looks["improved"] == ("triangle-up", charts.BETTER)
    assert looks["regressed"] == ("triangle-down", charts.WORSE)
    assert len(set(looks.values())) == len(looks) == 3


@pytest.mark.django_db
def test_the_bars_are_the_spread_of_the_samples() -> None:
    create_measurement(samples=[90.0, 100.0, 110.0])
    (trace,) = marks(charts.history(history_of())).values()
    assert trace["error_y"]["array"] == [pytest.approx(14.826)]
    assert trace["error_y"]["visible"]


@pytest.mark.django_db
def test_a_spread_wider_than_the_value_does_not_open_the_axis_below_zero() -> None:
    create_measurement(samples=[1.0, 4.0, 12.0])
    low, high = charts.history(history_of())["layout"]["yaxis"]["range"]
    assert low == 0.0
    assert high > 4.0 * 2


@pytest.mark.django_db
def test_the_target_of_the_arch_is_a_line_inside_the_chart() -> None:
    create_measurement(value=2542.4, target=950, target_arch="a100-40gb")
    assert "shapes" not in charts.history(history_of())["layout"]
    Target.objects.create(metric=create_metric(), value=3000)
    layout = charts.history(history_of())["layout"]
    assert layout["shapes"][0]["y0"] == 3000
    assert layout["annotations"][0]["text"] == "H200 target 3000 GB/s"
    low, high = layout["yaxis"]["range"]
    assert low < 2542.4
    assert high > 3000


@pytest.mark.django_db
def test_another_class_of_environment_is_drawn_hollow() -> None:
    now = timezone.now()
    create_measurement(at=now - timedelta(days=1), environment=create_environment(driver="570.1"))
    create_measurement(at=now)
    symbols = {name: trace["marker"]["symbol"] for name, trace in marks(charts.history(history_of())).items()}
    assert symbols == {"unchanged": "circle", "new, different environment": "star-open"}


@pytest.mark.django_db
def test_a_missing_value_is_drawn_and_says_why() -> None:
    create_measurement(value=100.0)
    create_measurement(value=None, status="oom", code="OOM", at=timezone.now() + timedelta(days=1))
    missing = marks(charts.history(history_of()))["no value"]
    assert missing["yaxis"] == "y2"
    assert "<b>OOM</b>" in missing["text"][0]


@pytest.mark.django_db
def test_a_point_leads_to_its_row() -> None:
    measurement = create_measurement()
    (trace,) = marks(charts.history(history_of())).values()
    assert trace["customdata"] == [f"#run-{measurement.run_id}"]


@pytest.mark.django_db
def test_names_never_become_markup() -> None:
    evil = '<a href="https://evil.example">x</a>'
    create_measurement(
        run=create_run(source=evil, host_name=evil), environment=create_environment(torch=evil)
    )
    text = json.dumps(charts.history(history_of()))
    assert "<a " not in text
    assert "&lt;a href" in text


@pytest.mark.django_db
def test_samples_are_thinned_and_plotly_takes_them() -> None:
    metric = create_metric()
    drawn = charts.samples([float(value) for value in range(2500)], metric)
    assert len(drawn["data"][0]["y"]) == 834
    assert drawn["data"][0]["x"][:2] == [1, 4]
    go.Figure(drawn)


def test_a_data_block_cannot_be_left() -> None:
    html = figure({"data": ["</script><script>alert(1)</script>&"]}, "chart", 'a "label"')
    assert "</script><script>" not in html
    assert "\\u003c/script\\u003e" in html
    assert "a &quot;label&quot;" in html


def test_a_sparkline_is_drawn_from_any_values() -> None:
    assert sparkline([]) == ""
    assert 'points="3.0,10.0"' in sparkline([5.0])
    line = sparkline([1.0, 2.0, 3.0])
    assert 'points="3.0,11.8 40.0,10.0 77.0,8.2"' in line, "at least eight times the noise between them"
    assert "last 3 values, 1 to 3, now 3" in line


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_bandwidth(GB/s)", 2542.4, "2542.40 GB/s"),
        ("speedup", 1.23456, "1.235 x"),
        ("graph_breaks", 3.0, "3"),
        ("peak_rss_bytes", 1_234_567_890.0, "1.23 GB"),
        ("device_latency_ms", 0.00001234, "1.23e-05 ms"),
        ("share_of_ceiling", 0.5624, "0.562"),
        ("device_latency_ms", 0.0, "0.0000 ms"),
        ("speedup", None, "—"),
    ],
)
def test_a_number_has_its_unit_and_precision(name: str, value: float | None, text: str) -> None:
    assert quantity(value, create_metric(name)) == text
    assert number(value, create_metric(name)) == text.partition(" ")[0] or "peak" in name


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (0.05, "0.1 s"),
        (42, "42 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 5 min"),
        (300_000, "3 days"),
    ],
)
def test_a_duration_in_words(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
