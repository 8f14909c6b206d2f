"""Charts: where marks, levels and targets stand, names that stay names; numbers as text."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import Experiment, SeriesState, Target
from hud.pages.charts import drawing, scale
from hud.pages.charts.choice import Choice
from hud.pages.charts.drawing import Canvas
from hud.pages.charts.lines import lines_of
from hud.pages.charts.multiples import Chart, Multiples, Spot
from hud.pages.tags import sparkline
from hud.tables.formatting import duration, number, quantity
from hud.tables.html import json_block
from tests.support.experiment_pages import read_page
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_metric,
    create_run,
    create_verdict,
)


def chart_of(experiment: Experiment) -> tuple[str, Chart, Canvas]:
    """The chart of an experiment's first metric."""
    page = read_page(experiment.pk)
    canvas = Canvas(page.charts.slots, page.choice)
    row = page.charts.rows[0]
    return str(drawing.chart(row, canvas, tall=True)), row, canvas


@pytest.mark.django_db
def test_each_compilation_is_a_mark_inside_its_chart() -> None:
    experiment, now = create_experiment(), timezone.now()
    for day in range(3):
        run = create_run(order_time=now - timedelta(days=2 - day))
        for repeat, value in enumerate((99.0, 100.0 + day, 102.0)):
            create_measurement(experiment, value=value, run=run, repeat=repeat)
    create_measurement(experiment, value=None, status="oom", at=now + timedelta(days=1))
    drawn, _row, canvas = chart_of(experiment)
    (path,) = re.findall(r'<path class="dots" d="([^"]+)"', drawn)
    marks = re.findall(r"M([\d.]+) ([\d.]+)h", path)
    assert len(marks) == 9
    assert all(0 <= float(x) <= 1000 and 0 <= float(y) <= scale.TALL for x, y in marks)
    xs = [float(x) for x, _y in marks]
    assert xs == sorted(xs)
    assert drawn.count('href="#m-cross"') == 1
    assert canvas.xs == [125.0, 375.0, 625.0, 875.0]


def test_days_without_a_result_are_marked_where_most_days_have_one() -> None:
    now = timezone.now()

    def gaps(*days: int) -> list[tuple[int, str]]:
        slots = [Spot(now - timedelta(days=day), run) for run, day in enumerate(days)]
        canvas = Canvas(slots, Choice())
        return [
            (round(one.x), one.text) for one in lines_of(Multiples(slots), [], canvas) if one.kind == "gap"
        ]

    assert gaps(8, 7, 6, 5, 5, 2, 1, 0) == [(625, "2 days without a result")]
    assert gaps(30, 20, 10, 9, 5, 0) == []
    assert gaps(5, 1, 0) == []


@pytest.mark.django_db
def test_level_noise_and_target_are_lines_and_a_far_target_does_not_stretch_the_axis(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    for day in range(3):
        measured = create_measurement(experiment, value=2500.0 + day, at=now - timedelta(days=2 - day))
        level = {"level": 2500.5, "noise": 0.01} if day else {}
        create_verdict(measured, "unchanged" if day else "new", **level)
    SeriesState.objects.create(
        series=measured.series,
        class_key=measured.environment.class_key,
        level={"values": [2500.0, 2501.0], "start": (now - timedelta(days=1)).isoformat()},
        run=measured.run,
        environment=measured.environment,
        order_time=measured.order_time,
        recent=[],
    )
    Target.objects.create(metric=create_metric(), value=2450)
    drawn, row, _canvas = chart_of(experiment)
    assert row.point.level == 2500.5
    assert row.point.noise == pytest.approx(0.01)
    assert 'class="level" d="M333.3' in drawn, "the level begins with its first run"
    assert 'class="target"' in drawn
    points = client.get(f"/api/v1/series/{experiment.pk}/device_bandwidth_gbps").json()["points"]
    assert [point["level"] for point in points] == [None, 2500.5, 2500.5]
    Target.objects.update(value=9000)
    drawn, _row, _canvas = chart_of(experiment)
    assert 'class="target"' not in drawn
    assert "↑ H200 target 9000" in drawn


@pytest.mark.django_db
def test_the_ceiling_and_the_best_run_are_lines() -> None:
    """A single compilation that is faster is no run; a branch tries something out."""
    experiment, now = create_experiment(), timezone.now()
    for day, value in enumerate((2400.0, 2450.0, 2430.0, 2440.0, 2420.0)):
        run = create_run(order_time=now - timedelta(days=9 - day))
        for repeat in range(3):
            create_measurement(experiment, value=value + 40 * (repeat - 1), run=run, repeat=repeat)
    create_measurement(experiment, value=2480.0, run=create_run(branch="trial", order_time=now))
    create_measurement(experiment, metric="share_of_ceiling", value=0.55, run=run)
    drawn, row, _canvas = chart_of(experiment)
    assert row.best == 2450.0
    assert 'class="best"' in drawn
    assert row.ceiling == pytest.approx(2420 / 0.55)
    assert "↑ ceiling 4400" in drawn
    assert 'path class="ceiling"' not in drawn, "it does not stretch the axis"


@pytest.mark.django_db
def test_names_never_become_markup(client: Client) -> None:
    evil = '</script><a href="https://evil.example">x</a>'
    experiment, now = create_experiment(), timezone.now()
    for minute, torch in enumerate((evil, "2.12")):
        create_measurement(
            experiment,
            run=create_run(
                source=evil, host_name=evil, commit="<b>x", order_time=now + timedelta(minutes=minute)
            ),
            environment=create_environment(torch=torch, driver=f"{minute}{evil}"),
        )
    text = client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "evil.example" in text
    assert '<a href="https://evil' not in text
    assert "<b>x" not in text


@pytest.mark.django_db
def test_samples_are_thinned() -> None:
    drawn = drawing.samples([float(value) for value in range(2500)], create_metric(), "median")
    (path,) = re.findall(r'<path class="dots" d="([^"]+)"', drawn)
    assert 300 < path.count("M") <= 400


def test_a_data_block_cannot_be_left() -> None:
    html = json_block('{"data": ["</script><script>alert(1)</script>&"]}', "details")
    assert "</script><script>" not in html
    assert "\\u003c/script\\u003e" in html


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
        ("speedup", 1.23456, "1.235 ×"),
        ("graph_breaks", 3.0, "3"),
        ("peak_rss_bytes", 1_234_567_890.0, "1.23 GB"),
        ("device_latency_ms", 0.00001234, "1.23e-05 ms"),
        ("share_of_ceiling", 0.5624, "56.2 %"),
        ("same_choice_ratio", 1.0002, "100.02 %"),
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
