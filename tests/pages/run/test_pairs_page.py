"""Two environments measured in turn: asked for by the API and the form, shown on the pages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.ingest import deliveries, ingest
from hud.ingest.export import export
from hud.judging import judge
from hud.judging.compare import ab_runs
from hud.models import Accelerator, Measurement, Point, Run, RunRequest, Task
from hud.pages.run import query
from hud.pages.run.results import ResultFilters
from hud.points import read as points
from hud.runs import tasks
from runner.formats.parameters import Parameters
from runner.schema.draws import LEAST_DRAWS
from runner.schema.suite import TaskSpec
from runner.suites import suite_of
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_accelerator,
    create_environment,
    create_experiment,
    create_measurement,
    create_run,
    create_user,
)
from tests.support.records import as_lines, task_record


@pytest.fixture
def key() -> str:
    return create_key(name="k", scopes=["run", "read"], who="test")[1]


@pytest.fixture
def accelerator() -> Accelerator:
    found = create_accelerator(arch="cpu-x86_64")
    found.catalog = {"suites": ["micro"], "pythons": ["default", "tuned"]}
    found.save()
    return found


def ask(client: Client, key: str, **body: Any) -> Any:
    said = {"suite": "micro", "cases": ["gemv"], "device": "cpu", **body}
    return client.post(
        "/api/v1/runs",
        json.dumps(said),
        content_type="application/json",
        headers={"authorization": f"Bearer {key}"},
    )


@pytest.mark.django_db
def test_a_run_names_two_environments(client: Client, key: str, accelerator: Accelerator) -> None:
    answer = ask(client, key, environment="tuned", base_environment="default")
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.interpreter, run.base_interpreter) == ("tuned", "default")
    assert run.tasks.count() == 2 * LEAST_DRAWS  # gemv has two dtypes
    refused = ask(client, key, environment="tuned", base_environment="nightly")
    assert refused.status_code == 422
    assert "an interpreter called nightly; there are: default, tuned" in refused.json()["detail"]


@pytest.mark.django_db
def test_an_environment_is_tried_against_itself(client: Client, key: str, accelerator: Accelerator) -> None:
    options = {"epilogue_fusion": False, "max_fusion_size": 8}
    answer = ask(client, key, cases=["layer_norm"], new_options=options)
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.interpreter, run.base_interpreter) == ("default", "default")
    assert run.request.candidate_options == options
    assert run.tasks.count() == LEAST_DRAWS
    claimed = tasks.claim(accelerator=accelerator, nonce="n")
    assert claimed
    assert claimed.run.request.candidate_options == options
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "default with epilogue_fusion=off, max_fusion_size=8 against default" in text
    refused = ask(client, key, new_options={"epilogue_fusion": 1, "max_fusion_size": 8, "threads": 1})
    assert refused.status_code == 422
    pointers = [fault["pointer"] for fault in refused.json()["errors"]]
    assert pointers == ["/new_options/epilogue_fusion", "/new_options/threads"]


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    ("asked", "tasks_of_each", "caches"),
    [
        ({"draws": 4, "repeats": 2}, 4, "pinned"),
        ({"pairs": "auto"}, 3, "pinned"),
        ({"pairs": 5}, 5, "pinned"),
        ({"draws": 3, "pairs": 8}, 3, "pinned"),
        ({"caches": "fresh"}, 5, "fresh"),
        ({"caches": "fresh", "repeats": 7}, 7, "fresh"),
        ({"caches": "fresh", "compilations": 6}, 6, "fresh"),
        ({"caches": "kept"}, 5, "kept"),
    ],
)
@pytest.mark.django_db
def test_draws_pairs_and_caches_of_a_comparison(
    client: Client,
    key: str,
    asked: dict[str, Any],
    tasks_of_each: int,
    caches: str,
) -> None:
    answer = ask(client, key, cases=["layer_norm"], base_environment="tuned", **asked)
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["id"])
    assert [(task.repeat, task.caches) for task in run.tasks.order_by("position")] == [
        (number, caches) for number in range(tasks_of_each)
    ]
    assert run.request.caches == caches


@pytest.mark.parametrize(
    "wrong",
    [
        {"draws": 2},
        {"draws": 21},
        {"pairs": 2},
        {"pairs": "many"},
        {"draws": 5, "pairs": 4},
        {"draws": 3, "caches": "fresh"},
        {"caches": "fresh", "repeats": 4},
        {"caches": "fresh", "compilations": 3},
        {"caches": "kept", "repeats": 2},
        {"caches": "kept", "pairs": 4},
        {"compilations": 2},
        {"pinned": "run:1/experiment:1"},
        {"draws": 3, "base_environment": ""},
    ],
)
@pytest.mark.django_db
def test_a_comparison_that_cannot_be_is_refused(
    client: Client, key: str, accelerator: Accelerator, wrong: dict[str, Any]
) -> None:
    answer = ask(client, key, **{"cases": ["layer_norm"], "base_environment": "tuned", **wrong})
    assert (answer.status_code, Run.objects.exists()) == (422, False)
    assert answer.json()["errors"]


REPORTED = {
    "max_autotune": "bool",
    "memory_pool": ["none", "outputs"],
    "cpu_gpu_bw": "float",
    "trace.enabled": "bool",
}


def reports(accelerator: Accelerator, python: str, options: dict[str, Any]) -> None:
    accelerator.host.facts = {"pythons": {python: {"inductor_options": options}}}
    accelerator.host.save()


@pytest.mark.django_db
def test_an_option_is_taken_by_the_host_whose_interpreter_reports_it(
    client: Client, key: str, accelerator: Accelerator
) -> None:
    other = create_accelerator(arch="cpu-x86_64")
    other.catalog = accelerator.catalog
    other.save()
    reports(accelerator, "tuned", REPORTED)
    options = {"max_autotune": True, "memory_pool": "outputs", "cpu_gpu_bw": 1.5}
    asked = {"cases": ["layer_norm"], "environment": "tuned", "new_options": options}
    answer = ask(client, key, host=accelerator.host.name, **asked)
    assert answer.status_code == 201, answer.content
    assert RunRequest.objects.get(pk=answer.json()["id"]).candidate_options == options
    anywhere, elsewhere = ask(client, key, **asked), ask(client, key, host=other.host.name, **asked)
    default = ask(client, key, host=accelerator.host.name, **{**asked, "environment": "default"})
    for refused in (anywhere, elsewhere, default):
        assert refused.status_code == 422
        pointers = {fault["pointer"] for fault in refused.json()["errors"]}
        assert pointers == {f"/new_options/{name}" for name in options}
    reports(other, "tuned", REPORTED)
    assert ask(client, key, **asked).status_code == 201, "every host that may take it reports it"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace.enabled", True),
        ("memory_pool", "heap"),
        ("cpu_gpu_bw", "fast"),
        ("max_autotune", 1),
        ("aot_inductor.output_path", "/tmp/x"),
    ],
)
def test_a_forbidden_option_is_refused_even_where_a_host_reports_it(
    client: Client, key: str, accelerator: Accelerator, name: str, value: object
) -> None:
    reports(accelerator, "default", {**REPORTED, "aot_inductor.output_path": ["/tmp/x"]})
    refused = ask(client, key, host=accelerator.host.name, cases=["layer_norm"], new_options={name: value})
    assert refused.status_code == 422
    assert [fault["pointer"] for fault in refused.json()["errors"]] == [f"/new_options/{name}"]


@pytest.mark.django_db
def test_the_form_takes_what_the_host_reports(client: Client, accelerator: Accelerator) -> None:
    experiment = create_experiment(device="cpu", arch="cpu-x86_64", knobs={"D": 256})
    client.force_login(create_user())
    asked = {
        "place": f"{accelerator.host.pk}:cpu:cpu-x86_64",
        "repeats": "5",
        "new_options": "max_autotune=on, memory_pool=outputs",
    }
    wrong = client.post(f"/experiments/{experiment.pk}/rerun", asked)
    assert (wrong.status_code, list(wrong.context["form"].errors)) == (422, ["new_options"])
    reports(accelerator, "default", REPORTED)
    assert client.post(f"/experiments/{experiment.pk}/rerun", asked).status_code == 302
    assert RunRequest.objects.get().candidate_options == {"max_autotune": True, "memory_pool": "outputs"}


def test_what_inductor_does_not_compile_takes_no_options() -> None:
    def fits(suite: str, case: str, backend: str, dtype: str = "float32") -> bool:
        task = TaskSpec(suite, case, "inference", dtype, backend, "cpu")
        return suite_of(suite).takes_inductor_options(task)

    assert fits("micro", "gemv", "inductor")
    assert fits("huggingface", "DistillGPT2", "inductor_no_cudagraphs_freezing")
    assert fits("timm", "resnet18", "inductor_aot_inductor")
    assert not fits("huggingface", "DistillGPT2", "aot_eager")
    assert not fits("xla", "any", "inductor")


def pair_record(spec: TaskSpec, side: str, number: int, value: float, torch: str) -> dict[str, Any]:
    pair = {"number": number, "side": side, "base": "default", "new": "tuned"}
    return task_record(
        spec,
        metric={"name": "call_bandwidth_gbps", "benchmark_values": [value]},
        runners=[{"name": "gpu-1", "extra_info": {"pair": pair}}],
        dependencies={"torch": {"version": torch, "sha": torch}},
    )


@pytest.mark.django_db
def test_both_sides_land_in_one_run_and_its_page_compares_them(
    client: Client, key: str, accelerator: Accelerator
) -> None:
    answer = ask(
        client, key, cases=["layer_norm"], environment="tuned", base_environment="default", caches="fresh"
    )
    run = Run.objects.get(pk=answer.json()["id"])
    for number in range(5):
        task = tasks.claim(accelerator=accelerator, nonce=f"n{number}")
        assert task
        assert task.token
        spec = TaskSpec.from_json(task.spec)
        body = as_lines(
            pair_record(spec, "base", 99, 1000.0 + number, "2.9.0"),
            pair_record(spec, "new", 99, 1100.0 + number, "2.13.0"),
        )
        deliveries.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
        tasks.finish(uid=task.uid, token=task.token, host=accelerator.host, status="ok", code="", reason="")
    processes = Measurement.objects.filter(run=run).order_by("repeat", "side").values_list("repeat", "side")
    assert list(processes) == [(pair, side) for pair in range(5) for side in (0, 1)]
    run.refresh_from_db()
    assert run.commit == "2.13.0"
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "tuned against default" in text
    (bars,) = re.findall(r'class="pair-bars".*?</svg>', text, re.DOTALL)
    assert bars.count("<rect") == 1 + 5  # the zone of no change, and a bar for each pair
    assert bars.count("+10.0 %") + bars.count("+9.9 %") + bars.count("+10 %") == 5  # in words, too
    twin = client.get(f"/runs/{run.pk}.json").json()
    assert {row["side"] for row in twin["items"]} == {"base", "new"}
    (line,) = twin["pairs"]
    assert line["change"] == pytest.approx(0.1, abs=0.005)
    assert line["p"] < 0.01
    assert (line["verdict"], line["better"]) == ("confirmed", True)
    rows = client.get(f"/runs/{run.pk}.csv?table=pairs").content.decode().splitlines()
    assert len(rows) == 2
    assert "A/B comparison</span>" in text
    assert {row["verdict"] for row in twin["items"]} == {"in_pairs"}
    assert verdicts_of(run) == 0


def verdicts_of(run: Run) -> int:
    """Verdicts of its measurements: what a run tries out is no regression."""
    Run.objects.filter(pk=run.pk).update(state="succeeded", finished=timezone.now())
    judge.process_pending()
    return Point.objects.filter(run=run).count()


@pytest.mark.django_db
def test_what_a_person_measured_in_pairs_can_be_uploaded() -> None:
    spec = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu")
    records = [
        pair_record(spec, side, number, value, torch)
        for number in range(5)
        for side, value, torch in (("base", 1000.0 + number, "2.9.0"), ("new", 1000.5 + number, "2.13.0"))
    ]
    receipt = ingest(as_lines(*records), Parameters())
    assert (receipt.stored, len(receipt.run_ids)) == (10, 1)
    run = Run.objects.get(pk=receipt.run_ids[0])
    assert run.is_ab
    (line,) = ab_runs.read(run)[0]
    assert (line.word, line.count) == ("dismissed", 5)
    exported = b"".join(export("v3", {}))
    Run.objects.all().delete()
    again = ingest(exported, Parameters())
    run = Run.objects.get(pk=again.run_ids[0])
    assert (run.interpreter, run.base_interpreter) == ("tuned", "default")
    assert ab_runs.METRIC.rows(ab_runs.read(run)[0]) == [ab_runs.METRIC.row(line)]


@pytest.mark.django_db
def test_the_kernels_of_both_sides_are_compared(client: Client) -> None:
    run = create_run(interpreter="nightly", base_interpreter="stable")
    experiment = create_experiment()
    environment = create_environment()
    for number in range(6):
        for side, factor in enumerate((1.0, 1.05)):
            config = "XBLOCK=1024" if number % 2 else "XBLOCK=512"
            time_us = (100 if number % 2 else 150) * factor * (1 + 0.001 * number)
            drawn = [kernel("mul", time_us, config=config), kernel("add", 50 * factor)]
            extra = [kernel("new", 1.0)] * side
            store(
                compiled(*drawn, *extra),
                experiment=experiment,
                run=run,
                environment=environment,
                repeat=number,
                side=side,
            )
    (line,) = client.get(f"/runs/{run.pk}.json").json()["kernels"]
    assert (line["equal_choices"], line["other_frequencies"]) == ("inconclusive", "cannot_tell")
    assert line["change"] is line["coverage"] is None  # nothing was pinned
    assert (line["base_compilations"], line["new_compilations"]) == (6, 6)
    assert (line["only_base"], line["only_new"]) == ([], ["new"])
    assert line["choice_low"] < line["choice_ratio"] < line["choice_high"]
    assert line["choice_p"] == 1.0  # both sides drew alike
    assert "Kernels of both sides" in client.get(f"/runs/{run.pk}/").content.decode()


TUNED = "--base-python stable=PATH --python tuned=PATH --new-opt epilogue_fusion=off"


@pytest.mark.parametrize(
    ("request_fields", "interpreters", "expected"),
    [
        (
            {"selection": {"draws": 3, "repeats": 2}},
            ("default", "default"),
            "--new-opt epilogue_fusion=off --draws 3 --repeats 2",
        ),
        (
            {"selection": {"draws": 3}, "candidate_options": {}},
            ("default", "default"),
            "--base-python default=PATH --draws 3",
        ),
        (
            {"caches": "fresh", "selection": {"repeats": 7}},
            ("tuned", "stable"),
            f"{TUNED} --repeats 7 --caches fresh",
        ),
    ],
)
@pytest.mark.django_db
def test_a_comparison_is_run_by_hand_as_a_comparison(
    accelerator: Accelerator, request_fields: Any, interpreters: tuple[str, str], expected: str
) -> None:
    run = create_run(interpreter=interpreters[0], base_interpreter=interpreters[1], state="succeeded")
    options = {"caches": "pinned", "candidate_options": {"epilogue_fusion": False}, **request_fields}
    RunRequest.objects.update_or_create(run=run, defaults=options)
    spec = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu")
    Task.objects.create(run=run, position=0, spec=spec.to_json())
    page = query.read(run.pk, ResultFilters(), 10)
    assert page.commands == [f"{spec.command()} {expected}"]


@pytest.mark.django_db
def test_what_is_tried_out_is_not_the_newest_value() -> None:
    nightly = create_measurement(value=100.0)
    tried = create_run(interpreter="tuned", base_interpreter="default")
    create_measurement(value=50.0, run=tried, side=1)
    assert points.latest([nightly.series_id])[nightly.series_id].value == 100.0
    nightly.run.delete()
    assert points.latest([nightly.series_id]) == {}
