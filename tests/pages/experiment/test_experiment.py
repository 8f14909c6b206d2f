"""An experiment's page: state, points, identity, other devices, the command, the data views."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import Experiment, Run, Stream
from hud.points import targets
from runner.schema.suite import TargetFraction
from tests.support.experiment_pages import read_page, text_of
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_environment,
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_upload,
    create_user,
    create_verdict,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
GPT_FAST = "memory_bandwidth(GB/s)"
FRACTION = TargetFraction(GPT_FAST, "layer_norm", "bfloat16", "mean", 0.55)
STATEMENTS = 22


def uploaded(experiment: Experiment, **fields: Any) -> Run:
    """A value as gpt-fast's script writes it, uploaded from a file."""
    run = create_run(
        source="pytorch-scripts",
        host_name="h200-a",
        provenance="Written by gpt_fast/benchmark.py on one NVIDIA H200.",
        upload=create_upload("gpt_fast.json"),
    )
    create_measurement(
        experiment, metric=GPT_FAST, value=2542.40, target=950, target_arch="a100-40gb", run=run, **fields
    )
    return run


@pytest.mark.parametrize("points", [1, 9])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, points: int
) -> None:
    experiment = create_experiment()
    now = timezone.now()
    for number in range(points):
        for owner in (experiment, create_experiment(arch="cpu-x86_64", device="cpu")):
            create_measurement(
                owner,
                samples=[1.0, 2.0],
                at=now - timedelta(days=number),
                environment=create_environment(torch=f"2.{number}"),
            )
    create_accelerator()
    with django_assert_num_queries(STATEMENTS):
        client.get(f"/experiments/{experiment.pk}/?stream=import")


def test_it_shows_the_value_its_targets_and_where_it_came_from(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "FRACTIONS", {FRACTION.metric: [FRACTION]})
    create_ceiling(4258.0)
    experiment = create_experiment()
    run = uploaded(experiment)
    text = text_of(client, experiment)
    assert "2542.40 GB/s" in text
    assert "above A100-40GB target 950" in text
    assert "H200 target 2342 GB/s (0.55 of the measured copy 4258): met" in text
    for words in ("gpt_fast/benchmark.py", "gpt_fast.json", "2.11.0+cu130", "580.159.04", "h200-a"):
        assert words in text
    assert f'<a href="/runs/{run.pk}/">' in text


def test_of_several_files_of_a_run_the_one_it_came_in_is_named(client: Client) -> None:
    experiment = create_experiment()
    run = uploaded(experiment)
    other = create_experiment(case="other")
    create_measurement(other, run=run, upload=create_upload("hf_infer_perf.json"))
    text = text_of(client, experiment)
    assert '<span class="file">gpt_fast.json</span>' in text
    assert "hf_infer_perf.json" not in text


def test_points_stand_in_the_order_of_the_series_and_say_what_changed() -> None:
    now = timezone.now()
    experiment = create_experiment()
    new = create_environment(torch="2.12.0", packages={"timm": "1.0.29"})
    create_measurement(experiment, value=2.0, at=now, environment=new)
    create_measurement(experiment, value=1.0, at=now - timedelta(days=1), environment=create_environment())
    page = read_page(experiment.pk)
    assert [one.value for one in page.histories[0]] == [1.0, 2.0]
    last, first = page.points
    assert first.changed == []
    assert "torch 2.11.0+cu130 → 2.12.0" in last.changed
    assert "timm unknown → 1.0.29" in last.changed
    assert not first.same_class  # timm's version is part of the class


def test_torch_is_the_subject_and_never_makes_another_class() -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, at=now - timedelta(days=1), environment=create_environment(torch="2.10.0"))
    create_measurement(experiment, at=now, environment=create_environment(torch="2.12.0"))
    page = read_page(experiment.pk)
    assert all(one.same_class for one in page.points)


def test_the_verdict_is_said_by_word_and_icon(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, value=2400, at=now - timedelta(days=2))
    middle = create_measurement(experiment, value=2200, at=now - timedelta(days=1))
    create_verdict(middle, "regressed", change=-0.083, noise=0.004, factor=20.8)
    create_measurement(experiment, value=2210, at=now)
    text = text_of(client, experiment)
    assert '#i-worse"/></svg> regressed −8.3 %' in text
    assert '#i-same"/></svg> unchanged' in text
    assert '#i-plus"/></svg> new' in text
    assert "noise 0.40 %, change 20.8 × noise" in text


def test_a_point_the_judge_has_not_looked_at_is_not_called_unchanged(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, at=timezone.now() - timedelta(days=1))
    create_measurement(experiment, judged=False)
    assert "not judged yet" in text_of(client, experiment)


def test_a_point_without_a_number_is_shown_as_what_it_is(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, at=timezone.now() - timedelta(days=1))
    missing = create_measurement(experiment, value=None, status="oom", code="eager_1st_run_OOM")
    create_verdict(missing, "failed")
    text = text_of(client, experiment)
    assert "<code>eager_1st_run_OOM</code>" in text
    assert "</svg> failed" in text


def test_the_chosen_metric_stands_in_the_url(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, metric="device_latency_ms", value=0.0073)
    create_measurement(experiment, value=2542.4)
    assert "<h3>Memory bandwidth, device time" in text_of(client, experiment)
    chosen = text_of(client, experiment, "?metric=device_latency_ms")
    assert "<h3>Latency, device time (graph replay)" in chosen
    assert "0.0073 ms" in chosen
    assert 'class="notice warning"' in text_of(client, experiment, "?metric=nonsense")


def test_only_as_many_points_as_asked_and_the_page_says_so(client: Client) -> None:
    experiment = create_experiment()
    now = timezone.now()
    for number in range(5):
        create_measurement(experiment, value=100 + number, at=now + timedelta(minutes=number))
    text = text_of(client, experiment, "?points=2")
    assert 'href="?points=1000&amp;stream=import"' in text
    assert "104.0" in text
    assert "102.0" not in text


def test_the_table_holds_the_newest_rows_and_leads_to_all_older_ones(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    for number in range(73):
        create_measurement(experiment, at=now + timedelta(minutes=number // 3))  # three runs of each commit
    query: str | None = ""
    shown: list[list[str]] = []
    while query is not None:
        text = text_of(client, experiment, query)
        shown.append(re.findall('<tr id="run-([0-9]+)"', text))
        assert "of 73" in text
        older = re.search(r'href="([^"]*before=[^"]*)#points">Older', text)
        query = html.unescape(older[1]) if older else None
    assert [len(rows) for rows in shown] == [20, 50, 3]
    runs = [int(run) for rows in shown for run in rows]
    assert runs == sorted(runs, reverse=True)
    assert len(set(runs)) == 73
    assert text_of(client, experiment, "?table=all").count('<tr id="run-') == 50
    assert 'class="notice warning"' in text_of(client, experiment, "?before=never")


def test_pickers_lead_to_the_nearest_other_experiment(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, value=2542.4)
    sibling = create_experiment(arch="cpu-x86_64", device="cpu")
    create_measurement(sibling, metric="call_bandwidth_gbps", samples=[17.0, 18.5, 19.0])
    shape = create_experiment(knobs={"D": 1024})
    far = create_experiment(dtype="float16", knobs={"D": 1024})
    for one in (shape, far):
        create_measurement(one)
    page = read_page(experiment.pk)
    found = {
        picker.name: [(one.text, one.experiment, not one.also) for one in picker.options]
        for picker in page.pickers
    }
    assert found["arch"] == [("cpu-x86_64", sibling.pk, True)]
    assert found["D"] == [("1024", shape.pk, True)]
    assert found["dtype"] == [("float16", far.pk, False)]
    text = text_of(client, experiment)
    assert f'href="/experiments/{shape.pk}/?stream=import&amp;metric=device_bandwidth_gbps"' in text
    section = text[text.index('<h2 id="siblings">') :]
    assert (
        f'<a href="/experiments/{sibling.pk}/?stream=import&amp;metric=call_bandwidth_gbps">cpu-x86_64</a>'
        in section
    )
    assert "18.5 GB/s" in section


def test_backends_stand_side_by_side_and_are_overlaid_by_the_url(client: Client) -> None:
    now, pages = timezone.now(), {}
    for backend, value in (("inductor", 2.0), ("aot_eager", 0.8), ("cudagraphs", 1.1)):
        pages[backend] = create_experiment(suite="timm", case="m", knobs={}, backend=backend)
        for day in range(3):
            at = now - timedelta(days=day)
            create_measurement(pages[backend], metric="device_speedup", value=value, at=at)
    own, other = pages["inductor"], pages["aot_eager"]
    page = read_page(own.pk, overlay=str(other.pk))
    assert [(one.backend, cells[0].value) for one, cells in page.backends if cells[0]] == [
        ("inductor", 2.0),
        ("aot_eager", 0.8),
        ("cudagraphs", 1.1),
    ]
    assert len(page.charts.rows[0].overlays[other.backend]) == 3
    text = text_of(client, own, f"?overlay={other.pk}")
    assert text.count('class="overlay o0 s4"') == 1, "aot_eager has its colour here too"
    assert 'href="?stream=import#history" class="overlay-box" role="checkbox" aria-checked="true"' in text
    assert f'href="?overlay={other.pk}%2C{pages["cudagraphs"].pk}&amp;stream=import#history"' in text
    assert client.get(f"/experiments/{own.pk}.json").json()["backends"][1]["value"] == 0.8


def test_another_branch_is_shown_and_never_the_newest(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    create_measurement(experiment, value=2500.0, at=now - timedelta(days=1))
    other = create_run(branch="pr/7", order_time=now)
    create_measurement(experiment, value=1200.0, run=other)
    page = read_page(experiment.pk)
    assert page.newest
    assert page.newest.value == page.metrics[0].value == 2500.0
    assert [one.value for one in page.histories[0]] == [2500.0, 1200.0]
    branch = read_page(experiment.pk, branch="pr/7")
    assert branch.newest
    assert branch.newest.value == branch.metrics[0].value == 1200.0
    assert "pr/7" in text_of(client, experiment)


def measured_daily(*values: float) -> Experiment:
    """An experiment with a value a day, the last one yesterday."""
    experiment = create_experiment(suite="timm", case="m", knobs={})
    for days, value in enumerate(reversed(values), 1):
        at = timezone.now() - timedelta(days=days)
        create_measurement(experiment, metric="device_speedup", value=value, at=at)
    return experiment


def test_a_rerun_is_marked_and_shapes_neither_newest_nor_best_nor_trend(client: Client) -> None:
    experiment = measured_daily(2.0, 2.1, 2.2, 2.1, 2.05)
    again = create_run(experiment=experiment)
    create_measurement(experiment, metric="device_speedup", value=9.9, run=again)
    page = read_page(experiment.pk)
    assert page.newest
    assert page.newest.value == page.metrics[0].value == page.charts.rows[0].point.value == 2.05
    assert page.charts.rows[0].best == 2.2
    assert [one.point.rerun for one in page.points] == [True, *[False] * 5]
    text = text_of(client, experiment)
    assert text.count('class="dots rerun"') == text.count('<i class="dot rerun">') == 1
    assert 'baseline">rerun</span>' in text
    suite = page_of(client, "/suites/timm/")
    assert "last 5 values, 2 to 2.2, now 2.05" in suite
    assert "9.900" not in suite
    items = client.get(f"/experiments/{experiment.pk}.json").json()["items"]
    assert [(one["value"], one["rerun"], one["stream"]) for one in items[-2:]] == [
        (2.05, False, "import"),
        (9.9, True, "import"),
    ]
    assert [one["value"] for one in client.get("/suites/timm.json").json()["items"]] == [2.05]


def test_only_a_rerun_is_shown_as_what_there_is(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, value=4.0, run=create_run(experiment=experiment))
    assert "4.0" in text_of(client, experiment)
    assert [one["value"] for one in client.get("/suites/micro.json").json()["items"]] == [4.0]


def test_another_stream_changes_nothing_and_has_a_page_of_its_own(client: Client) -> None:
    experiment = measured_daily(2.0, 2.1, 2.2)
    addresses = [
        f"{path}{data}?stream=import"
        for path in (f"/experiments/{experiment.pk}", "/suites/timm", "/suites")
        for data in ("/", ".json", ".csv")
    ]

    def answers() -> list[str]:
        texts = [client.get(address).content.decode() for address in addresses]
        texts = [re.sub(r'<nav class="streams".*?</nav>', "", text, flags=re.DOTALL) for text in texts]
        return [re.sub(r'name="csrfmiddlewaretoken" value="[^"]*"', "", text) for text in texts]

    before = answers()
    laptop = Stream.objects.create(name="laptop")
    run = create_run(stream=laptop, host_name="my-laptop", branch="main")
    for metric in ("device_speedup", "cold_compile_s"):
        create_measurement(experiment, metric=metric, value=77.7, run=run)
    for fields in ({"backend": "eager"}, {"arch": "b200"}, {"case": "other"}):
        other = create_experiment(**{"suite": "timm", "case": "m", "knobs": {}, **fields})
        create_measurement(other, metric="device_speedup", value=88.8, run=run)
    assert answers() == before
    there = text_of(client, experiment, "?stream=laptop")
    assert "77.700 ×" in there
    assert "2.200 ×" not in there
    assert f'href="/experiments/{other.pk}/?stream=laptop"' in page_of(client, "/suites/timm/?stream=laptop")
    assert "88.8" in text_of(client, other), "the only stream that has it"
    assert client.get(f"/experiments/{other.pk}/?stream=nobody").status_code == 404


def test_a_point_judged_against_another_stream_says_so(client: Client) -> None:
    experiment = create_experiment()
    nightly = Stream.objects.get_or_create(name="nightly")[0]
    measured = create_measurement(experiment, value=2400.0)
    judged = {"level": 2500.0, "noise": 0.01, "change": -0.04}
    create_verdict(measured, "unchanged", level_stream=nightly, **judged)
    assert "against nightly: 2500.0 GB/s ± 1.00 %" in text_of(client, experiment)
    metric = measured.series.metric.name
    for address in (
        f"/experiments/{experiment.pk}.json",
        f"/runs/{measured.run_id}.json",
        f"/suites/{experiment.suite}.json",
        f"/api/v1/series/{experiment.pk}/{metric}",
    ):
        answer = client.get(f"{address}?stream={measured.run.stream.name}").json()
        (row,) = answer.get("points") or answer["items"]
        assert (row["level"], row["level_stream"]) == (2500.0, "nightly"), address


def test_the_state_names_the_regression_its_commits_and_what_a_person_can_do(client: Client) -> None:
    experiment, now = create_experiment(), timezone.now()
    runs = [
        create_run(commit=f"{number}" * 12, order_time=now - timedelta(days=9 - number))
        for number in range(6)
    ]
    points = [
        create_measurement(experiment, value=2500.0 if place < 4 else 2200.0, run=run)
        for place, run in enumerate(runs)
    ]
    create_regression(points[4], before=2500.0, change=-0.12, factor=23.0, points=2, last_good_run=runs[3])
    page = read_page(experiment.pk)
    assert page.charts.active
    assert page.charts.rows[0].regression == page.charts.active
    text = text_of(client, experiment)
    assert "3333333..4444444" in text
    assert "23 × noise" in text
    assert "2500.0 → 2200.0 GB/s" in text
    (moved,) = re.findall(r'<path class="dots moved" d="([^"]+)"', text)
    assert moved.count("M") == 2
    decide = f'open={page.charts.active.pk}">'
    assert decide in text
    assert "Decide" not in text
    client.force_login(create_user())
    assert "Decide" in text_of(client, experiment)


def test_charts_have_a_row_for_each_headline_metric_and_follow_the_url(client: Client) -> None:
    experiment, now = create_experiment(suite="timm", case="m", knobs={}), timezone.now()
    for day in range(4):
        run = create_run(order_time=now - timedelta(days=day), host_name="h200-a")
        for metric, value in (
            ("device_speedup", 2.0),
            ("gpu_busy_ms", 3.0 + day),
            ("cold_compile_s", 12.0),
            ("warm_compile_s", 4.0),
            ("graph_breaks", 0.0),
            ("kernel_count", 80.0),
        ):
            create_measurement(experiment, metric=metric, value=value, run=run)
    page = read_page(experiment.pk, metric="gpu_busy_ms")
    assert [row.metric.name for row in page.charts.rows] == [
        "gpu_busy_ms",
        "device_speedup",
        "cold_compile_s",
    ]
    assert page.charts.rows[2].beside
    assert page.charts.rows[2].beside.metric.name == "warm_compile_s"
    assert [row.metric.name for row in page.charts.strips] == ["graph_breaks"]
    assert len(page.charts.slots) == 4
    for query in ("?scale=log", "?scale=relative", "?axis=date&marks=medians", "?from=2020-01-01&points=2"):
        text = text_of(client, experiment, query)
        assert 'class="plot"' in text
    first = page.charts.slots[2].time.isoformat().replace("+00:00", "Z")
    zoomed = client.get(f"/experiments/{experiment.pk}.json?from={first}").json()
    assert len(zoomed["items"]) == 2


def test_the_command_that_reproduces_it(client: Client) -> None:
    shape = create_experiment(knobs={"D": 1024})
    assert (
        "python -m runner run micro --case &#x27;layer_norm[D=1024]&#x27; --mode inference --dtype bfloat16"
        " --backend inductor --device cuda"
    ) in text_of(client, shape)
    assert "python -m runner reproduce micro --case &#x27;layer_norm[D=1024]&#x27;" in text_of(client, shape)
    ceiling = create_experiment(suite="ceilings", case="copy", backend="eager", knobs={})
    text = text_of(client, ceiling)
    assert "python -m runner run ceilings" in text
    assert 'id="file-command"' not in text, "no graph of it is captured"
    foreign = create_experiment(suite="huggingface", case="Bert")
    text = text_of(client, foreign)
    assert 'id="command"' not in text
    assert 'name="place"' not in text


def test_operations_of_a_profile_are_a_table_the_slowest_first(client: Client) -> None:
    experiment = create_experiment(suite="xla", case="llama", backend="openxla")
    assert 'id="operators"' not in text_of(client, experiment)
    for operation, time_s in (("aten::nonzero", 0.001), ("aten::_local_scalar_dense", 0.2)):
        for metric, value in (("self_cpu_time_s", time_s), ("num_of_calls", 3.0)):
            create_measurement(experiment, metric=f"xla_unlowered_ops.{operation}.{metric}", value=value)
    create_measurement(experiment, metric="per_iter_time", value=0.5)
    text = text_of(client, experiment)
    table = text[text.index('id="operators"') : text.index('id="metrics"')]
    assert re.findall(r"aten::\w+", table) == ["aten::_local_scalar_dense", "aten::nonzero"]
    assert "Unlowered" in table
    metrics = text[text.index('id="metrics"') :]
    assert "per_iter_time" in metrics
    assert "aten::" not in metrics, "each number stands once"


def test_an_experiment_without_measurements_says_so(client: Client) -> None:
    assert 'id="history"' not in text_of(client, create_experiment())


@pytest.mark.parametrize("pk", ["0", "99999", "99999999999999999999999"])
def test_no_such_experiment(client: Client, pk: str) -> None:
    assert client.get(f"/experiments/{pk}/").status_code == 404
    assert client.get(f"/experiments/{pk}.json").status_code == 404
    client.force_login(create_user())
    assert client.post(f"/experiments/{pk}/rerun").status_code == 404


def test_the_twins_hold_points_of_all_devices(client: Client) -> None:
    experiment = create_experiment()
    uploaded(experiment)
    create_measurement(create_experiment(arch="cpu-x86_64", device="cpu"), metric=GPT_FAST, value=18.0)
    answer = client.get(f"/experiments/{experiment.pk}.json").json()
    assert [(item["arch"], item["value"]) for item in answer["items"]] == [
        ("h200", 2542.4),
        ("cpu-x86_64", 18.0),
    ]
    first = answer["items"][0]
    assert (first["record_target"], first["record_target_arch"]) == (950, "a100-40gb")
    assert first["target"] is None
    assert answer["environments"][first["environment"]]["driver"] == "580.159.04"
    lines = client.get(f"/experiments/{experiment.pk}.csv").content.decode().splitlines()
    assert len(lines) == 3
