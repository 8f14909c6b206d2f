"""An experiment's page: history, targets, siblings, provenance, the command, the rerun form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import Experiment, Run, Target, Task
from hud.pages import targets
from hud.pages.experiment import compilation_charts, query
from runner.schema.targets import TargetFraction
from tests.support.compilations import compiled, kernel, mobilenet, store
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_metric,
    create_run,
    create_upload,
    create_user,
    create_verdict,
)

pytestmark = pytest.mark.django_db
STATEMENTS = 13
OF_COMPILATIONS = 3  # further ones
GPT_FAST = "memory_bandwidth(GB/s)"
FRACTION = TargetFraction(GPT_FAST, "layer_norm", "bfloat16", "mean", 0.55)


def text_of(client: Client, experiment: Experiment, query: str = "") -> str:
    response = client.get(f"/experiments/{experiment.pk}/{query}")
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


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
        client.get(f"/experiments/{experiment.pk}/")


def test_it_shows_the_value_its_targets_and_where_it_came_from(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "FRACTIONS", (FRACTION,))
    create_ceiling(4258.0)
    experiment = create_experiment()
    run = uploaded(experiment)
    text = text_of(client, experiment)
    assert "2542.40 GB/s" in text
    assert "A100-40GB target 950: met" in text
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
    assert '<span class="file">hf_infer_perf.json</span>' in text_of(client, other)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "gpt_fast.json" in page
    assert "hf_infer_perf.json" in page


def test_the_target_is_the_operators_then_a_fraction_then_the_records_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, metric = create_experiment(), create_metric(GPT_FAST)

    def own() -> str:
        target = targets.Targets.read().own(experiment, metric, 950, "h200")
        return target.name if target else ""

    assert own() == "H200 target 950 GB/s"
    monkeypatch.setattr(targets, "FRACTIONS", (FRACTION,))
    assert own() == "H200 target 950 GB/s"  # no ceiling was measured
    for copy_gbps in (4000.0, 4258.0, 4300.0):
        create_ceiling(copy_gbps)
    assert own() == "H200 target 2342 GB/s (0.55 of the measured copy 4258)"
    Target.objects.create(metric=metric, arch="h200", value=2400, note="agreed")
    assert own() == "H200 target 2400 GB/s (agreed)"
    Target.objects.create(metric=metric, arch="h200", case="layer_norm", size="mean", fraction=0.5)
    assert own() == "H200 target 2129 GB/s (0.5 of the measured copy 4258)"


def test_a_target_of_another_arch_judges_nothing() -> None:
    experiment, metric = create_experiment(), create_metric(GPT_FAST)
    (shown,) = targets.Targets.read().of(experiment, metric, 950, "a100-40gb")
    assert not shown.own
    assert shown.verdict(900, "up") == "A100-40GB target 950: missed"
    assert targets.Targets.read().own(experiment, metric, 950, "a100-40gb") is None


@pytest.mark.parametrize(
    ("direction", "value", "met"),
    [
        ("up", 950, "met"),
        ("up", 949, "missed"),
        ("down", 950, "met"),
        ("down", 951, "missed"),
        ("none", 1, "none"),
    ],
)
def test_a_target_is_met_in_the_metrics_direction(direction: str, value: float, met: str) -> None:
    assert targets.AppliedTarget(950, "target 950", own=True).met_by(value, direction) == met


def test_points_stand_in_the_order_of_the_series_and_say_what_changed() -> None:
    now = timezone.now()
    experiment = create_experiment()
    new = create_environment(torch="2.12.0", packages={"timm": "1.0.29"})
    create_measurement(experiment, value=2.0, at=now, environment=new)
    create_measurement(experiment, value=1.0, at=now - timedelta(days=1), environment=create_environment())
    page = query.read(experiment.pk)
    assert page
    assert page.history
    assert [point.median for point in page.history.points] == [1.0, 2.0]
    first, last = page.history.points
    assert first.changed == []
    assert "torch 2.11.0+cu130 → 2.12.0" in last.changed
    assert "timm unknown → 1.0.29" in last.changed
    assert not first.same_class  # timm's version is part of the class


def test_torch_is_the_subject_and_never_makes_another_class() -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, at=now - timedelta(days=1), environment=create_environment(torch="2.10.0"))
    create_measurement(experiment, at=now, environment=create_environment(torch="2.12.0"))
    page = query.read(experiment.pk)
    assert page
    assert page.history
    assert all(point.same_class for point in page.history.points)


def test_the_verdict_is_said_by_word_and_icon(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, value=2400, at=now - timedelta(days=2))
    middle = create_measurement(experiment, value=2200, at=now - timedelta(days=1))
    create_verdict(middle, "regressed", change=-0.083, noise=0.004, factor=20.8)
    create_measurement(experiment, value=2210, at=now)
    text = text_of(client, experiment)
    assert '<span class="icon" aria-hidden="true">▼</span> regressed -8.3%' in text
    assert '<span class="icon" aria-hidden="true">=</span> unchanged' in text
    assert '<span class="icon" aria-hidden="true">+</span> new' in text
    assert "noise 0.40%, change 20.8 × noise" in text


def test_a_point_the_judge_has_not_looked_at_is_not_called_unchanged(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, at=timezone.now() - timedelta(days=1))
    create_measurement(experiment, judged=False)
    assert "not judged yet" in text_of(client, experiment)


def test_a_point_without_a_number_is_shown_as_what_it_is(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, at=timezone.now() - timedelta(days=1))
    create_measurement(experiment, value=None, status="oom", code="eager_1st_run_OOM")
    text = text_of(client, experiment)
    assert "<code>eager_1st_run_OOM</code>" in text
    assert "</span> failed" in text


def test_the_chosen_metric_stands_in_the_url(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, metric="device_latency_ms", value=0.0073)
    create_measurement(experiment, value=2542.4)
    assert '<h2 id="history">Memory bandwidth, device time' in text_of(client, experiment)
    chosen = text_of(client, experiment, "?metric=device_latency_ms")
    assert '<h2 id="history">Latency, device time (graph replay)' in chosen
    assert "0.0073 ms" in chosen
    assert 'class="notice warning"' in text_of(client, experiment, "?metric=nonsense")


def test_only_as_many_points_as_asked_and_the_page_says_so(client: Client) -> None:
    experiment = create_experiment()
    now = timezone.now()
    for number in range(5):
        create_measurement(experiment, value=100 + number, at=now + timedelta(minutes=number))
    text = text_of(client, experiment, "?points=2")
    assert 'href="?points=1000"' in text
    assert "104.0" in text
    assert "102.0" not in text


def test_the_table_holds_the_newest_rows_until_somebody_asks_for_all(client: Client) -> None:
    experiment = create_experiment()
    now = timezone.now()
    for number in range(53):
        create_measurement(experiment, at=now + timedelta(minutes=number))
    assert text_of(client, experiment).count('<tr id="run-') == 50
    assert 'href="?table=all#points"' in text_of(client, experiment)
    assert text_of(client, experiment, "?table=all").count('<tr id="run-') == 53


def test_the_same_on_another_device_stands_in_its_own_section(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment, value=2542.4)
    sibling = create_experiment(arch="cpu-x86_64", device="cpu")
    create_measurement(sibling, metric="call_bandwidth_gbps", samples=[17.0, 18.5, 19.0])
    text = text_of(client, experiment)
    section = text[text.index('<h2 id="siblings">') :]
    assert f'<a href="/experiments/{sibling.pk}/?metric=call_bandwidth_gbps">cpu-x86_64</a>' in section
    assert "18.5 GB/s" in section
    assert f'data-figure="chart-sibling-{sibling.pk}"' in section
    assert "18.5 GB/s" not in text[: text.index('<h2 id="siblings">')]


def test_other_shapes_are_linked_and_no_siblings(client: Client) -> None:
    experiment = create_experiment()
    create_measurement(experiment)
    shape = create_experiment(knobs={"D": 1024})
    create_measurement(shape)
    text = text_of(client, experiment)
    assert f'<a href="/experiments/{shape.pk}/?metric=device_bandwidth_gbps">layer_norm[D=1024]</a>' in text
    assert 'id="siblings"' not in text


def test_the_command_that_reproduces_it(client: Client) -> None:
    shape = create_experiment(knobs={"D": 1024})
    assert (
        "python -m runner run micro --case &#x27;layer_norm[D=1024]&#x27; --mode inference --dtype bfloat16"
        " --backend inductor --device cuda"
    ) in text_of(client, shape)
    foreign = create_experiment(suite="huggingface", case="Bert")
    text = text_of(client, foreign)
    assert 'id="command"' not in text
    assert 'name="place"' not in text


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


def test_a_rerun_is_requested_and_its_page_opened(client: Client) -> None:
    experiment = create_experiment()
    accelerator = create_accelerator()
    client.force_login(create_user())
    answer = client.post(
        f"/experiments/{experiment.pk}/rerun",
        {"place": f"{accelerator.host_id}:cuda:h200", "repeats": "2", "caches": "kept"},
    )
    run = Run.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/runs/{run.pk}/"
    asked = run.request
    assert (asked.host, asked.arch, asked.requested_by, asked.experiment) == (
        accelerator.host,
        "h200",
        "olga",
        experiment,
    )
    assert Task.objects.filter(run=run).count() == 2
    assert f'<a href="/runs/{run.pk}/">Run {run.pk}</a>' in text_of(client, experiment)


def test_a_visitor_logs_in_first_and_finds_the_form_as_it_was(client: Client) -> None:
    experiment = create_experiment()
    host = create_accelerator(create_host("first")).host
    other = create_accelerator(create_host("second"))
    create_user()
    answer = client.post(
        f"/experiments/{experiment.pk}/rerun", {"place": f"{other.host_id}:cuda:h200", "repeats": "3"}
    )
    assert answer.status_code == 302
    assert not Run.objects.exists()
    address = urlsplit(answer["Location"])
    assert address.path == "/login/"
    back = parse_qs(address.query)["next"][0]
    answer = client.post("/login/", {"username": "olga", "password": "open sesame", "next": back})
    assert answer["Location"] == back
    text = " ".join(client.get(back.split("#")[0]).content.decode().split())
    assert f'<option value="{other.host_id}:cuda:h200" selected>' in text
    assert f'<option value="{host.pk}:cuda:h200" selected>' not in text
    assert 'name="repeats" value="3"' in text


def test_places_of_the_same_arch_come_first_and_only_those_that_offer_the_suite(client: Client) -> None:
    experiment = create_experiment()
    laptop = create_accelerator(create_host("laptop"), arch="cpu-x86_64")
    gpu = create_accelerator(create_host("gpu"))
    create_accelerator(create_host("old"), suites=("ceilings",))
    create_accelerator(create_host("left", detached_at=timezone.now()))
    page = query.read(experiment.pk)
    assert page
    assert [place.key for place in page.places] == [
        "any:cuda:h200",
        f"{gpu.host_id}:cuda:h200",
        "any:cpu:cpu-x86_64",
        f"{laptop.host_id}:cpu:cpu-x86_64",
    ]


@pytest.mark.parametrize(
    "wishes",
    [
        {"place": "999:cuda:h200", "repeats": "1"},
        {"place": "", "repeats": "1"},
        {"place": "any:cuda:h200", "repeats": "0"},
        {"place": "any:cuda:h200", "repeats": "many"},
        {"place": "any:cuda:h200\0", "repeats": "10000000000000000000000"},
        {},
    ],
)
def test_a_rerun_that_cannot_be_is_refused_with_words(client: Client, wishes: dict[str, str]) -> None:
    experiment = create_experiment()
    create_accelerator()
    client.force_login(create_user())
    answer = client.post(f"/experiments/{experiment.pk}/rerun", wishes)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()
    assert not Run.objects.exists()


def test_a_rerun_without_any_host_says_so(client: Client) -> None:
    client.force_login(create_user())
    answer = client.post(
        f"/experiments/{create_experiment().pk}/rerun", {"place": "any:cuda:h200", "repeats": "1"}
    )
    assert answer.status_code == 422
    assert "no host is attached" in answer.content.decode()


def test_a_rerun_of_a_case_the_catalogue_does_not_have_says_so(client: Client) -> None:
    create_accelerator()
    client.force_login(create_user())
    for fields in ({"suite": "huggingface", "case": "Bert"}, {"case": "no_such_kernel"}):
        experiment = create_experiment(**fields)
        answer = client.post(
            f"/experiments/{experiment.pk}/rerun", {"place": "any:cuda:h200", "repeats": "1"}
        )
        assert answer.status_code == 422
        assert (
            fields["case"] in answer.content.decode() or fields.get("suite", "?") in answer.content.decode()
        )
    assert not Run.objects.exists()


def test_a_run_of_several_processes_is_one_point_their_median(client: Client) -> None:
    experiment, run = create_experiment(), create_run()
    create_measurement(experiment, value=50.0, at=run.order_time - timedelta(days=1))
    for process, samples in enumerate(([99.0, 100.0, 101.0], [299.0, 300.0], [200.0, 201.0, 199.0])):
        create_measurement(experiment, samples=samples, run=run, repeat=process)
    page = query.read(experiment.pk)
    assert page
    assert page.history
    newest = page.history.newest
    assert newest
    assert len(page.history.points) == 2
    assert (newest.median, newest.n, newest.processes) == (200.0, 8, 3)
    assert len(page.samples) == 8
    assert page.metrics[0].median == 200.0
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
    assert "1 of 4 processes gave no number; known to ±0 %; known to ±1 %; and 2 more like these" in text


@pytest.mark.parametrize(("high", "noisy"), [(100.5, False), (115.0, True)])
def test_a_value_of_noisy_samples_is_marked(client: Client, high: float, noisy: bool) -> None:
    """device_bandwidth_gbps: a change of 3 % counts."""
    experiment = create_experiment()
    create_measurement(experiment, samples=[100.0, high, 200 - high])
    for text in (text_of(client, experiment), client.get("/suites/micro/").content.decode()):
        assert ("</span> noisy" in text) is noisy


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
        client.get(f"/experiments/{experiment.pk}/")


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
    page = query.read(experiment.pk)
    assert page
    figure = compilation_charts.of_kernel(page.compilations.marks, create_metric())
    shapes = {trace["marker"]["symbol"]: len(trace["x"]) for trace in figure["data"] if "marker" in trace}
    assert sorted(shapes.values()) == [2, 3]
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
    page = query.read(experiment.pk)
    assert page
    assert page.compilations.table is None  # there is one point
    figure = compilation_charts.of_model(page.compilations.marks)
    (measured,) = (trace for trace in figure["data"] if trace.get("name") == "compilation")
    (expected,) = (trace for trace in figure["data"] if trace.get("name") == "expected from its choices")
    assert measured["y"] == pytest.approx([1.05 * value for value in expected["y"]])
    lost = [kernel.lost_us for kernel in page.compilations.chosen]
    assert lost == sorted(lost, reverse=True)
    assert len(lost) == 16
    assert client.get(f"/experiments/{experiment.pk}/").status_code == 200
