"""A run's page while it happens and afterwards."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hud.ingest import ingest
from hud.models import Audit, Point, Run, State, Stream, Task, Upload
from hud.pages.run import view
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled, Explanation
from runner.schema.suite import TaskSpec
from tests.support.factories import (
    GEMV,
    create_accelerator,
    create_artifact,
    create_ceiling,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_task,
    create_upload,
    create_user,
    create_verdict,
)
from tests.support.pages import html_of, page_of
from tests.support.records import as_lines, compiled_record

pytestmark = pytest.mark.django_db


def statements_of(client: Client, address: str) -> int:
    with CaptureQueriesContext(connection) as statements:
        assert client.get(address).status_code == 200
    return len(statements)


def test_it_takes_a_fixed_number_of_statements(client: Client, running: Run) -> None:
    addresses = [f"/runs/{running.pk}/", f"/runs/{running.pk}/live", f"/runs/{running.pk}.json", "/runs/"]
    create_measurement(create_experiment(case="first"), run=running)
    before = [statements_of(client, address) for address in addresses]
    for number in range(5):
        create_measurement(create_experiment(case=f"case_{number}"), run=running)
        create_run(upload=create_upload())
        create_artifact(running.tasks.get(position=0), f"kind_{number}", b"{}")
    assert [statements_of(client, address) for address in addresses] == before
    assert max(before) <= 25


def test_it_says_how_far_it_is(client: Client, running: Run) -> None:
    text = page_of(client, f"/runs/{running.pk}/")
    assert "1 of 3 tasks" in text
    assert "measure D=4096" in text
    assert "gemv int8, D=1024+4096" in text
    assert 'value="50"' in text  # (1 + 1/2 + 0) / 3
    assert f'data-poll="/runs/{running.pk}/live"' in text
    assert "Cancel</button>" not in text
    client.force_login(create_user())
    assert "Cancel</button>" in page_of(client, f"/runs/{running.pk}/")


def test_the_time_left_comes_from_past_tasks(client: Client) -> None:
    past = create_run()
    now = timezone.now()
    for seconds in (20, 30, 100):
        create_task(past, state="done", started=now - timedelta(seconds=seconds), finished=now)
    run = create_run("queued", device="cuda")
    create_task(run)
    create_task(run)
    assert "about 1 min 0 s left" in page_of(client, f"/runs/{run.pk}/")
    create_task(run, spec=GEMV)
    assert "no estimate yet" in page_of(client, f"/runs/{run.pk}/")


def test_a_waiting_run_says_its_place_in_the_queue(client: Client, running: Run) -> None:
    waiting = create_run("queued", device="cuda", arch="h200")
    create_task(waiting)
    text = page_of(client, f"/runs/{waiting.pk}/")
    assert "queue position 1" in text
    assert "ahead." not in text, "what runs is not queued"
    assert f'busy</span> with <a href="/runs/{running.pk}/">run {running.pk}</a>' in text
    assert "No start estimate yet." in text
    assert 'id="waits"' not in page_of(client, f"/runs/{running.pk}/")
    started = client.get(f"/api/v1/runs/{running.pk}").json()
    assert (started["waiting"], started["queue_position"], started["starts_in_s"]) == (None, None, None)


def test_a_waiting_run_says_what_keeps_each_accelerator_from_it(client: Client) -> None:
    waiting = create_run("queued", device="cuda", title="micro")
    create_task(waiting)
    text = page_of(client, f"/runs/{waiting.pk}/")
    assert "no host is attached; attach one with" in text
    assert "queue position" not in text
    create_accelerator(create_host("cpu-only"), arch="cpu-x86_64")
    assert "no attached host has device cuda; there are: cpu" in page_of(client, f"/runs/{waiting.pk}/")
    create_accelerator(create_host("silent", age_s=4000))
    create_accelerator(create_host("moves", drained=True, note="new rack"))
    resting = create_host("resting", paused_until=timezone.now() + timedelta(minutes=5))
    for name in ("cuda:0", "cuda:1"):
        create_accelerator(resting, name=name)
    create_accelerator(create_host("shared"), unavailable_reason="another process holds 3.2 GB")
    text = page_of(client, f"/runs/{waiting.pk}/live")
    assert "No matching accelerator is available." in text
    assert "queue position 1<" in text
    assert re.search(r"silent <span[^>]*><svg.*?</svg> lost</span> last heard <time", text)
    assert 'drained</span> <span class="reason">new rack</span>' in text
    assert text.count("<li>resting") == 1
    assert "paused</span> until <time" in text
    assert '<span class="reason">another process holds 3.2 GB</span>' in text
    create_accelerator(create_host("free"))
    text = page_of(client, f"/runs/{waiting.pk}/")
    assert "queue position 1: next" in text
    api = client.get(f"/api/v1/runs/{waiting.pk}").json()
    said = client.get(f"/runs/{waiting.pk}.json").json()["waiting"]
    for place in (*api["waiting"]["places"], *said["places"]):
        place |= {name: bool(place[name]) for name in ("since", "until")}  # the times are spelled differently
    assert api["waiting"] == said
    assert (api["queue_position"], api["starts_in_s"]) == (said["position"], said["starts_in_s"])
    assert (said["position"], said["starts_in_s"], said["lacking"]) == (1, 0.0, "")
    states = {place["name"]: place["state"] for place in said["places"]}
    assert states == {
        "free cuda:0": "idle",
        "moves": "drained",
        "resting": "paused",
        "shared cuda:0": "dirty",
        "silent": "lost",
    }


def test_what_the_results_of_a_run_differ_in_is_shown(client: Client) -> None:
    run = create_run()
    create_measurement(create_experiment(mode="inference"), run=run)
    assert '<span class="fact">' not in page_of(client, f"/runs/{run.pk}/")
    create_measurement(create_experiment(mode="training"), run=run)
    create_measurement(create_experiment(mode=""), run=run)
    text = page_of(client, f"/runs/{run.pk}/")
    for word in ("inference", "training", "unknown mode"):
        assert f'<span class="fact">{word}</span>' in text


def names_of(client: Client, address: str) -> list[str]:
    """Return the cases on a run's page, from above."""
    text = page_of(client, address)
    return re.findall(r'<tr><th scope="row"><a [^>]*>([^<[]*)', text)


def test_the_result_stands_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create_ceiling(4258.0)
    run = create_run(commit="ca3512f0000000000000", branch="main")

    def add(case: str, verdict: str = "", **fields: Any) -> None:
        measured = create_measurement(create_experiment(case=case), run=run, **fields)
        if verdict:
            create_verdict(measured, verdict, change=-0.5, noise=0.01, factor=-50, level=100.0)

    add("a_quiet")
    add("b_quiet", metric="cold_compile_s", value=3.0)
    add("c_improved", "improved")
    add("d_failed", value=None, status="crashed", note="died")
    add("e_twice_as_slow", "regressed", metric="speedup", value=0.9)
    add("layer_norm", value=10.0)  # misses its target
    add("z_open", "inconclusive")
    worst_first = ["e_twice_as_slow", "d_failed", "layer_norm", "z_open", "c_improved", "a_quiet", "b_quiet"]
    address = f"/runs/{run.pk}/"
    assert names_of(client, address) == worst_first
    text = page_of(client, address)
    assert "Of 7 experiments: 1 regressed, 1 failed, 1 missed a target, 1 inconclusive, 1 improved." in text
    assert "e_twice_as_slow, Speedup −50.0 %" in text
    assert "1 experiment regressed</span>" in text.split("</h1>")[1][:400], "beside the state"
    (failed,) = (row for row in text.split("<tr") if ">d_failed<" in row)
    assert 'class="cause"' in failed
    assert "died" in failed.split('class="cause"')[1], "not among the numbers"
    assert names_of(client, f"{address}?show=failed") == ["d_failed"]
    assert names_of(client, f"{address}?q=quiet+-compile") == ["a_quiet"]
    assert names_of(client, f"{address}?sort=-experiment")[:2] == ["z_open", "layer_norm"]
    assert 'aria-sort="descending"' in page_of(client, f"{address}?sort=-experiment")
    monkeypatch.setattr(view, "SHOWN_POINTS", 3)
    assert names_of(client, address) == worst_first[:3]
    assert "1 to 3 of 7 shown" in page_of(client, address)
    assert names_of(client, f"{address}?page=3") == worst_first[6:]
    assert names_of(client, f"{address}?page=4") == []
    monkeypatch.setattr(view, "JSON_POINTS", 4)
    first = client.get(f"/runs/{run.pk}.json").json()
    assert (first["total"], first["next"], first["counts"]["missed"]) == (7, 2, 1)
    second = client.get(f"/runs/{run.pk}.json?page={first['next']}").json()
    assert [one["case"] for one in first["items"] + second["items"]] == worst_first
    assert second["next"] is None
    assert len(client.get(f"/runs/{run.pk}.csv").content.decode().splitlines()) == 8
    assert client.get(f"/runs/{run.pk}.json?sort=best").status_code == 400
    assert "1 value regressed</span>" in page_of(client, "/runs/")


def test_results_are_grouped_by_what_they_show(client: Client) -> None:
    """An experiment has one row in a group, which links to its other metrics; few of the unchanged follow."""
    run = create_run()
    for case, verdict, metrics in (
        ("a_worse", "regressed", ["speedup", "cold_compile_s", "warm_compile_s"]),
        ("b_new", "new", ["speedup", "cold_compile_s"]),
        *((f"quiet_{number}", "unchanged", ["speedup"]) for number in range(8)),
    ):
        experiment = create_experiment(case=case)
        for place, metric in enumerate(metrics):
            measured = create_measurement(experiment, metric=metric, value=1.0, run=run)
            create_verdict(measured, verdict, change=0.1, noise=0.01, factor=9.0 - place, level=1.1)
    address = f"/runs/{run.pk}/"
    assert names_of(client, address) == ["a_worse", "b_new", "b_new", *(f"quiet_{n}" for n in range(5))]
    text = page_of(client, address)
    assert re.findall(r'<tr class="fold">.*?show=(\w+)#results', text) == ["regressed", "new", "rest"]
    heads = re.findall(r'<tr class="fold">.*?<span class="dim">(.*?)</span>', text)
    assert heads == ["3 values of 1 experiment", "2 values of 1 experiment", "8 values of 8 experiments"]
    others = "?show=regressed&amp;q=a_worse#results"
    assert f'{others}" class="count" title="other metrics of this experiment">+2</a>' in text
    assert names_of(client, f"{address}?show=regressed&q=a_worse") == ["a_worse"] * 3
    assert len(names_of(client, f"{address}?show=rest")) == 8
    assert 'class="fold"' not in page_of(client, f"{address}?sort=-change")
    assert client.get(f"{address[:-1]}.json").json()["total"] == 13


def test_results_land_while_it_runs(client: Client, running: Run) -> None:
    assert "No results yet." in page_of(client, f"/runs/{running.pk}/live")
    create_measurement(samples=[2500.0, 2542.4, 2600.0], run=running)
    text = page_of(client, f"/runs/{running.pk}/live")
    assert "2542.4 GB/s" in text
    assert 'data-part="results"' in text


def test_polling_stops_when_the_run_has_ended(client: Client, running: Run) -> None:
    assert "X-Poll" not in client.get(f"/runs/{running.pk}/live")
    Run.objects.filter(pk=running.pk).update(state=State.LOST, finished=timezone.now(), reason="host silent")
    assert client.get(f"/runs/{running.pk}/live")["X-Poll"] == "stop"
    text = page_of(client, f"/runs/{running.pk}/")
    assert "data-poll" not in text
    assert "host silent" in text
    assert '#rerun">' in text
    assert "Cancel</button>" not in text


def test_it_is_polled_until_the_judge_has_spoken(client: Client) -> None:
    run = create_run()
    create_measurement(value=1.0, at=run.order_time - timedelta(days=1))
    waits = create_measurement(value=1.0, run=run, judged=False)
    assert "data-poll=" in page_of(client, f"/runs/{run.pk}/")
    assert "X-Poll" not in client.get(f"/runs/{run.pk}/live")
    create_verdict(waits, "unchanged")
    assert client.get(f"/runs/{run.pk}/live")["X-Poll"] == "stop"
    Point.objects.update(verdict_code=None)
    Run.objects.filter(pk=run.pk).update(finished=timezone.now() - timedelta(hours=1))
    assert client.get(f"/runs/{run.pk}/live")["X-Poll"] == "stop", "a judge that is away is not waited for"


def test_the_times_of_a_run_are_live(client: Client, running: Run) -> None:
    text = page_of(client, f"/runs/{running.pk}/live")
    assert 'data-part="about"' in text
    assert "<dt>Started</dt>" in text
    assert "<dt>Ended</dt>" not in text
    Run.objects.filter(pk=running.pk).update(state=State.SUCCEEDED, finished=timezone.now())
    assert "<dt>Ended</dt>" in page_of(client, f"/runs/{running.pk}/live")


def test_every_file_of_a_run_shows_its_receipt(client: Client) -> None:
    run = create_run(upload=create_upload("first.json"), source="ci")
    skipped = [{"pointer": "", "line": 4, "reason": "no metric"}]
    receipt = {"stored": 7, "duplicates": 2, "skipped": skipped, "run_ids": [run.pk]}
    second = create_upload("second.json", parameters={"suite": "micro"}, stream=run.stream)
    Upload.objects.filter(pk=second.pk).update(receipt=receipt)
    create_measurement(run=run, upload=second)
    text = page_of(client, f"/runs/{run.pk}/")
    assert '<td class="file">first.json</td> <td>v3</td>' in text
    assert '<td class="num">7</td> <td class="num">2</td>' in text
    assert "line 4: no metric" in text
    assert re.search("<dt>suite</dt> ?<dd>micro</dd>", text)


def test_cancel_needs_a_login_and_is_asked_once(client: Client, running: Run) -> None:
    page = f"http://testserver/runs/{running.pk}/"
    answer = client.post(f"/runs/{running.pk}/cancel", headers={"referer": page})
    assert answer["Location"] == f"/login/?next=/runs/{running.pk}/"
    assert Run.objects.get().cancel_asked is None
    client.force_login(create_user())
    for _ in range(2):
        answer = client.post(f"/runs/{running.pk}/cancel", follow=True)
    text = html_of(answer)
    assert Run.objects.get().cancel_asked
    assert 'id="cancel-asked"' in text
    assert "Cancel</button>" not in text
    assert client.get(f"/runs/{running.pk}/cancel").status_code == 405


def test_an_upload_shows_its_receipt(client: Client) -> None:
    upload = create_upload("results.json")
    upload.receipt = {
        "stored": 3,
        "duplicates": 1,
        "skipped": [{"line": 7, "reason": "the record has no metric"}],
    }
    upload.save()
    run = create_run(upload=upload, source="pytorch-scripts", title="", provenance="by hand")
    text = page_of(client, f"/runs/{run.pk}/")
    assert '<td class="num">3</td> <td class="num">1</td> <td><details><summary>1' in text
    assert "line 7: the record has no metric" in text
    assert "results.json" in text
    assert "by hand" in text


def test_repeats_are_shown_by_process(client: Client) -> None:
    run = create_run()
    for process in (0, 1):
        create_measurement(value=1000.0 + process, run=run, repeat=process)
    text = page_of(client, f"/runs/{run.pk}/")
    assert "2 processes" in text
    assert "1000.5 GB/s" in text
    items = client.get(f"/runs/{run.pk}.json").json()["items"]
    assert [(one["processes"], one["value"], one["stream"]) for one in items] == [(2, 1000.5, "import")]


def test_the_run_before_it_is_of_its_stream_and_no_rerun(client: Client) -> None:
    now = timezone.now()
    about = {"title": "nightly", "source": "ci"}
    first, second = (create_run(order_time=now - timedelta(days=day), **about) for day in (4, 0))
    again = create_run(order_time=now - timedelta(days=1), experiment=create_experiment(), **about)
    foreign = create_run(
        order_time=now - timedelta(days=2), stream=Stream.objects.create(name="laptop"), **about
    )
    for run in (first, again, foreign, second):
        create_measurement(run=run)
    text = page_of(client, f"/runs/{second.pk}/")
    assert re.findall(r"base=run:(\d+)", text) == [str(first.pk)]
    assert 'href="/?stream=import"' in text
    assert f'href="/experiments/{create_experiment().pk}/?stream=import&amp;metric=' in text
    assert "base=run:" not in page_of(client, f"/runs/{foreign.pk}/")


def test_a_warning_that_rows_share_is_said_once(client: Client) -> None:
    run = create_run()
    for case in "abc":
        create_measurement(create_experiment(case=case), run=run, note="the card was warm")
    create_measurement(create_experiment(case="d"), run=run, note="the card was cold")
    text = page_of(client, f"/runs/{run.pk}/")
    assert "3 of 4 rows: the card was warm" in text
    assert text.count('href="#note-1"') == 3
    assert text.count("the card was cold") == 1


def test_it_says_which_notes_its_compilations_could_not_take(client: Client) -> None:
    blind: list[dict[str, str]] = [
        {"choices": "AttributeError: <launchers>"},
        {"phases": "KeyError: 'x'"},
        {},
        {},
    ]
    ingest(
        as_lines(*(compiled_record(Compiled(blind=one), at) for at, one in enumerate(blind))), Parameters()
    )
    (run,) = Run.objects.all()
    text = page_of(client, f"/runs/{run.pk}/")
    assert "blind: choices — AttributeError: &lt;launchers&gt;; phases — KeyError" in text
    said = client.get(f"/runs/{run.pk}.json").json()["blind"]
    assert said == "blind: choices — AttributeError: <launchers>; phases — KeyError: 'x'"
    other = create_run("succeeded")
    assert client.get(f"/runs/{other.pk}.json").json()["blind"] == ""
    assert 'id="blind"' not in page_of(client, f"/runs/{other.pk}/")


def test_who_ran_it_again_is_linked_both_ways(client: Client) -> None:
    first = create_run("failed")
    again = create_run(retry_of=first)
    assert f'<a href="/runs/{again.pk}/">run {again.pk}</a>' in page_of(client, f"/runs/{first.pk}/")
    assert f'<a href="/runs/{first.pk}/">run {first.pk}</a>' in page_of(client, f"/runs/{again.pk}/")


def test_a_failure_is_explained_by_a_new_run(client: Client) -> None:
    accelerator = create_accelerator(suites=["huggingface"])
    of_model: dict[str, Any] = {"metric": "accuracy", "value": None, "status": "wrong"}
    experiment = create_experiment(suite="huggingface", case="DistillGPT2", knobs={})
    failed = create_run("failed", host=accelerator.host)
    measured = create_measurement(experiment, run=failed, note="differs", **of_model)
    place = f"/runs/{failed.pk}/explain"
    assert client.post(place)["Location"] == "/login/?next=/"
    client.force_login(create_user())
    assert place in page_of(client, f"/runs/{failed.pk}/")
    assert client.post(place, {"series": "x"}).status_code == 400
    assert client.post(place, {"series": 9999}).status_code == 404
    answer = client.post(place, {"series": measured.series_id})
    explaining = Run.objects.get(request__retry_of=failed)
    assert answer["Location"] == f"/runs/{explaining.pk}/"
    spec = TaskSpec.from_json(Task.objects.get(run=explaining).spec)
    assert spec.knobs == {"test": "accuracy", "explain": 900}
    assert Audit.objects.filter(action="run.request", subject=f"run {explaining.pk}").exists()
    note = f"{Explanation('inductor', 'lowerings', 1, 'relu').text()}; differs"
    create_measurement(experiment, run=explaining, note=note, **of_model)
    text = page_of(client, f"/runs/{failed.pk}/")
    assert "inductor, lowerings, number 1 (relu)</a>" in text
    assert place not in text


def test_a_failure_that_no_compiler_is_at_fault_for_has_no_explanation(client: Client) -> None:
    run = create_run("failed")
    for backend, status in (("inductor", "oom"), ("eager", "wrong")):
        one = create_experiment(suite="huggingface", case="DistillGPT2", knobs={}, backend=backend)
        measured = create_measurement(one, metric="accuracy", value=None, run=run, status=status)
    client.force_login(create_user())
    assert "/explain" not in page_of(client, f"/runs/{run.pk}/")
    client.post(f"/runs/{run.pk}/explain", {"series": measured.series_id})
    assert not Run.objects.filter(request__retry_of=run).exists()


@pytest.mark.parametrize(
    "address", ["/runs/9999/", "/runs/9999.json", "/runs/9999/live", "/api/v1/runs/9999/log"]
)
def test_no_such_run(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404
