"""Points of several processes, and compilations with their choices."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.pages.experiment import view as state
from tests.support.compilations import compiled, kernel, mobilenet, store
from tests.support.experiment_pages import read_page, text_of
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_run,
)

pytestmark = pytest.mark.django_db
STATEMENTS = 21
OF_COMPILATIONS = 3  # further ones


def test_a_run_of_several_processes_is_one_point_their_median(client: Client) -> None:
    experiment, run = create_experiment(), create_run()
    create_measurement(experiment, value=50.0, at=run.order_time - timedelta(days=1))
    for process, samples in enumerate(([99.0, 100.0, 101.0], [299.0, 300.0], [200.0, 201.0, 199.0])):
        create_measurement(experiment, samples=samples, run=run, repeat=process)
    page = read_page(experiment.pk)
    assert page.newest
    newest = page.newest
    assert len(page.histories[0]) == 2
    assert (newest.value, newest.samples, newest.processes) == (200.0, 8, 3)
    assert len(page.origin.samples) == 8
    assert page.metrics[0].value == 200.0
    text = text_of(client, experiment)
    assert "in 3 processes" in text
    assert "spread of 3 processes" in text
    for address in ("/suites/micro/", "/suites/micro.json", f"/experiments/{experiment.pk}.json"):
        assert "200.0" in client.get(address).content.decode(), address


def test_a_process_without_a_number_does_not_hide_the_others(client: Client) -> None:
    experiment, run = create_experiment(), create_run()
    for process, value in enumerate((100.0, 102.0, None, 101.0)):
        status, words = "crashed" if value is None else "ok", f"known to ±{process} %"
        create_measurement(experiment, value=value, run=run, repeat=process, status=status, note=words)
    text = text_of(client, experiment)
    assert "101.0 GB/s" in text
    assert 'title="1 of 4 processes gave no number; known to ±2 %"' in text


@pytest.mark.parametrize(("high", "noisy"), [(100.5, False), (115.0, True)])
def test_a_value_of_noisy_samples_is_marked(client: Client, high: float, noisy: bool) -> None:
    """device_bandwidth_gbps: a change of 3 % counts."""
    experiment = create_experiment()
    create_measurement(experiment, samples=[100.0, high, 200 - high])
    for text in (text_of(client, experiment), client.get("/suites/micro/").content.decode()):
        assert ("</svg> noisy" in text) is noisy


@pytest.mark.parametrize("points", [2, 5])
def test_compilations_take_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, points: int
) -> None:
    experiment = create_experiment()
    for day in range(points):
        run = create_run(order_time=timezone.now() - timedelta(days=day))
        for repeat, found in enumerate(mobilenet()[:3]):
            store(found, experiment=experiment, run=run, repeat=repeat)
            create_measurement(experiment, run=run, repeat=repeat)
    with django_assert_num_queries(STATEMENTS + OF_COMPILATIONS):
        client.get(f"/experiments/{experiment.pk}/?stream=import")


def test_each_compilation_is_shown_with_its_choice_and_how_often_that_came(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    configs = ("XBLOCK=1", "XBLOCK=1", "XBLOCK=8", "XBLOCK=1", "XBLOCK=8")
    for day in range(2):
        run = create_run(order_time=now - timedelta(days=1 - day))
        for repeat in range(3 - day):
            config = configs[3 * day + repeat]
            time_us = 20.0 if config == "XBLOCK=8" else 10.0
            store(
                compiled(kernel("mv", time_us, config=config)), experiment=experiment, run=run, repeat=repeat
            )
            about: dict[str, Any] = {
                "run": run,
                "environment": create_environment(gpu_uuid="GPU-1"),
                "repeat": repeat,
            }
            create_measurement(experiment, value=1e4 / time_us, **about)
            create_measurement(experiment, metric="same_choice_ratio", value=1.01, **about)
    found = client.get(f"/experiments/{experiment.pk}.json").json()
    assert [(one["config"], one["value"]) for one in found["compilations"]] == [
        (config, 500.0 if config == "XBLOCK=8" else 1000.0) for config in configs
    ]
    assert {one["same_choice_ratio"] for one in found["compilations"]} == {1.01}
    (chosen,) = found["choices"]
    assert chosen["lost_us"] == pytest.approx(2 * 10.0 / 5)
    assert [(one["config"], one["n"]) for one in chosen["choices"]] == [("XBLOCK=1", 3), ("XBLOCK=8", 2)]
    page = read_page(experiment.pk)
    canvas = state.canvas_of(page)
    assert [(one.text, one.n) for one in canvas.legend] == [("XBLOCK=1", 3), ("XBLOCK=8", 2)]
    assert sorted(canvas.shapes.values()) == [0, 1]
    text = text_of(client, experiment)
    assert (text.count('href="#m-0" x='), text.count('href="#m-1" x=')) == (3, 2)
    assert re.findall(r">([0-9]+ of [0-9]+)</text>", text) == ["3 of 5", "2 of 5"], "at the edge, best first"
    assert page.compilations.table
    assert page.compilations.table.verdict[0] == "autotuner's draw"


def test_a_model_shows_what_its_choices_let_expect(client: Client) -> None:
    experiment = create_experiment()
    run = create_run()
    for repeat, found in enumerate(mobilenet()):
        store(found, experiment=experiment, run=run, repeat=repeat)
        about: dict[str, Any] = {
            "run": run,
            "environment": create_environment(gpu_uuid="GPU-1"),
            "repeat": repeat,
        }
        create_measurement(experiment, metric="same_choice_ratio", value=1.05, **about)
    page = read_page(experiment.pk)
    assert page.compilations.table is None  # there is one point
    expected = state.canvas_of(page).expected
    busy_us = [mark.busy_us for mark in page.compilations.marks]
    assert busy_us == pytest.approx([1.05 * 1e3 * value for value in expected.values()])
    lost = [kernel.lost_us for kernel in page.compilations.chosen]
    assert lost == sorted(lost, reverse=True)
    assert len(lost) == 16
    assert client.get(f"/experiments/{experiment.pk}/").status_code == 200
