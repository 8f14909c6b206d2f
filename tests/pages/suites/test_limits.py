"""The limits: kernels far from what the card reaches, and the cost of unlucky choices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.judging.choices import AT_LEAST
from hud.models import IMPORT, Experiment, Stream
from runner.schema.replay import with_operands
from tests.support.compilations import compiled, kernel, mobilenet, store
from tests.support.factories import create_ceiling, create_experiment, create_measurement, create_run
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
STATEMENTS = 10  # one of them finds the streams


@pytest.fixture(autouse=True)
def front() -> None:
    """Make the stream of the runs that tests create the one of an address without a stream."""
    Stream.objects.update_or_create(name=IMPORT, defaults={"is_front": True})


@pytest.fixture
def model() -> Experiment:
    """A model on a card that copies 4,000 GB/s and multiplies bfloat16 at 800 TFLOP/s."""
    create_ceiling(4000.0)
    product = create_experiment(suite="ceilings", case="matmul", knobs={}, backend="eager")
    create_measurement(product, metric="matmul_tflops", value=800.0)
    model = create_experiment(case="model", knobs={})
    kernels = (
        kernel("copies", 30.0, bytes=80_000_000),  # 20 µs at the ceiling
        kernel("multiplies", 50.0, bytes=40_000_000, flops=16_000_000_000, kind="template"),  # 20 µs
        kernel("reads", 9.0, bytes=40_000_000),  # faster than a copy
        kernel("unknown", 11.0, kind="library"),
    )
    old = create_run(order_time=timezone.now() - timedelta(days=1))
    store(compiled(kernel("copies", 900.0, bytes=8)), experiment=model, run=old)
    store(compiled(*kernels, gaps_us=7.0), experiment=model)
    return model


def test_kernels_are_ranked_by_their_distance_from_the_ceiling(client: Client, model: Experiment) -> None:
    found = client.get("/limits.json").json()
    assert found["ceilings"]["copy_gbps"] == 4000.0
    assert [(row["kernel"], row["lost_us"], row["bound"]) for row in found["items"]] == [
        ("multiplies", pytest.approx(30.0), "compute"),
        ("copies", pytest.approx(10.0), "memory"),
        ("reads", 0.0, "memory"),
    ]
    (line,) = found["models"]
    assert line["experiment"] == model.pk
    assert (line["busy_us"], line["gaps_us"], line["lost_us"]) == (100.0, 7.0, pytest.approx(40.0))
    assert line["covered"] == pytest.approx(0.89)
    assert found["without_formula"] == [
        {"kernel": "unknown", "kind": "library", "time_us": 11.0, "experiments": 1}
    ]
    assert client.get("/limits/").status_code == 200
    assert client.get("/limits.json?dtype=float32").json()["items"] == []
    assert client.get("/limits/?arch=b200").status_code == 200


def test_kernels_that_run_alone_are_offered_where_operands_are_stored(
    client: Client, model: Experiment
) -> None:
    link = 'download="kernels.json"'
    assert client.get("/api/v1/kernels?arch=h200").json()["items"] == []
    assert link not in page_of(client, "/limits/")
    code = with_operands("triton", [["bfloat16", [64], [1]]], [64])
    newest = create_run(order_time=timezone.now() + timedelta(days=1))
    store(compiled(kernel("copies", 30.0, bytes=80)), experiment=model, run=newest, code={"copies": code})
    (item,) = client.get("/api/v1/kernels?arch=h200").json()["items"]
    assert item["name"] == "copies"
    assert link in page_of(client, "/limits/")
    Experiment.objects.update(arch="b200")
    assert link not in page_of(client, "/limits/?arch=h200")


def test_its_links_lead_to_the_code_of_a_kernel(client: Client, model: Experiment) -> None:
    text = page_of(client, "/limits/")
    address = text.partition('<th scope="row"><a href="')[2].partition("#")[0].replace("&amp;", "&")
    assert address.startswith("/code/?stream=import&base=run")
    assert client.get(address).status_code == 200


def test_device_time_is_shown_by_line_and_by_class(client: Client, model: Experiment) -> None:
    mlp, norm = "gpt2.py:214 Block.MLP.forward", "gpt2.py:30 Norm.forward"
    assert client.get("/limits.json").json()["lines"] == []  # nothing is known
    fused = kernel("fused", 20.0, bytes=40_000_000, lines=(mlp, norm))
    alone = kernel("alone", 8.0, lines=("gpt2.py:220 Block.MLP.forward",))
    for case in "ab":
        found = compiled(fused, alone, kernel("copy", 3.0, kind="copy"))
        store(found, experiment=create_experiment(case=case))

    def lines(query: str = "") -> dict[str, tuple[Any, ...]]:
        rows = client.get(f"/limits.json{query}").json()["lines"]
        return {row["line"]: tuple(row.values())[1:] for row in rows if "gpt2" in row["line"]}

    assert lines() == {
        mlp: (20.0, pytest.approx(10.0), 2, 2),
        alone.lines[0]: (16.0, None, 2, 2),
        norm: (20.0, pytest.approx(10.0), 2, 2),
    }
    assert lines("?by=class") == {
        "gpt2.py Block.MLP": (36.0, pytest.approx(10.0), 4, 2),
        "gpt2.py Norm": (20.0, pytest.approx(10.0), 2, 2),
    }
    page = page_of(client, "/limits/?by=class")
    assert "gpt2.py Block.MLP" in page
    assert "by=class" in page


def test_regret_is_the_newest_value_of_each_experiment(client: Client, model: Experiment) -> None:
    other = create_experiment(case="other")
    store(compiled(kernel("mm", 5.0)), experiment=other)
    for days, value in ((1, 0.5), (0, 0.1)):
        at = timezone.now() - timedelta(days=days)
        create_measurement(model, metric="autotune_regret", value=value, at=at)
    of_compilations: dict[str, Any] = {"spread": 0.069, "n": 12, "note": AT_LEAST}
    create_measurement(other, metric="autotune_regret", value=0.2, **of_compilations)
    found = client.get("/limits.json").json()["autotune_regret"]
    names = ("case", "regret", "low", "high", "compilations", "note")
    assert [tuple(line[name] for name in names) for line in found] == [
        ("other", 0.2, pytest.approx(0.131), pytest.approx(0.269), 12, AT_LEAST),
        ("model", 0.1, None, None, None, None),
    ]
    assert "costs 15 %" in page_of(client, "/limits/")


def test_what_another_stream_has_changes_nothing(client: Client, model: Experiment) -> None:
    create_measurement(model, metric="autotune_regret", value=0.1)
    before = client.get("/limits.json").content
    about: dict[str, Any] = {
        "stream": Stream.objects.create(name="laptop"),
        "order_time": timezone.now(),
    }
    store(compiled(kernel("copies", 900.0, bytes=8)), experiment=model, run=create_run(**about))
    create_measurement(model, metric="autotune_regret", value=0.9, run=create_run(**about))
    copy = Experiment.objects.get(suite="ceilings", case="copy")
    create_measurement(copy, value=1.0, run=create_run(**about))
    assert client.get("/limits.json").content == before
    (line,) = client.get("/limits.json?stream=laptop").json()["autotune_regret"]
    assert line["regret"] == 0.9


def test_without_ceilings_it_says_so(client: Client) -> None:
    assert client.get("/limits/").status_code == 200
    store(mobilenet()[0])
    answer = client.get("/limits/")
    assert b"No ceilings were measured" in answer.content
    assert client.get("/limits.json").json()["items"] == []


@pytest.mark.parametrize("models", [1, 4])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, model: Experiment, django_assert_num_queries: Any, models: int
) -> None:
    for number in range(models):
        store(mobilenet()[0], experiment=create_experiment(case=f"model {number}"))
    with django_assert_num_queries(STATEMENTS):
        client.get("/limits/?stream=import")
