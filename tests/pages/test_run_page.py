"""A run's page while it happens and afterwards, and the list of runs."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hud.models import Artifact, Audit, Run, Series, State, Task, Upload
from hud.pages.run import view
from hud.pages.run.log import readable
from hud.pages.runs.query import PAGE_ROWS
from hud.runs import logs
from hud.templatetags.commit_tags import commit_range
from runner.schema.compilations import Explanation
from runner.schema.suite import TaskSpec
from tests.support.factories import (
    create_accelerator,
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

pytestmark = pytest.mark.django_db
GEMV = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cuda", knobs={"D": [1024, 4096]})


def text_of(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def write_log(task: Task, content: bytes) -> None:
    path = logs.log_path(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    Task.objects.filter(pk=task.pk).update(log_bytes=len(content))


@pytest.fixture
def running() -> Run:
    """One task done, one at work, one waiting."""
    accelerator = create_accelerator()
    run = create_run(
        "running", host=accelerator.host, device="cuda", arch="h200", experiment=create_experiment()
    )
    create_task(run, state="done", accelerator=accelerator, attempt=1)
    progress = {"phase": "measure", "done": 1, "total": 2, "label": "D=4096"}
    create_task(run, state="running", spec=GEMV, accelerator=accelerator, attempt=2, progress=progress)
    create_task(run)
    return run


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
    assert max(before) <= 20


def test_it_says_how_far_it_is(client: Client, running: Run) -> None:
    text = text_of(client, f"/runs/{running.pk}/")
    assert "1 of 3 tasks" in text
    assert "measure D=4096" in text
    assert "gemv int8, D=1024+4096" in text
    assert 'value="50"' in text  # (1 + 1/2 + 0) / 3
    assert f'data-poll="/runs/{running.pk}/live"' in text
    assert "Cancel</button>" not in text
    client.force_login(create_user())
    assert "Cancel</button>" in text_of(client, f"/runs/{running.pk}/")


def test_the_time_left_comes_from_past_tasks(client: Client) -> None:
    past = create_run()
    now = timezone.now()
    for seconds in (20, 30, 100):
        create_task(past, state="done", started=now - timedelta(seconds=seconds), finished=now)
    run = create_run("queued", device="cuda")
    create_task(run)
    create_task(run)
    assert "about 1 min 0 s left" in text_of(client, f"/runs/{run.pk}/")
    create_task(run, spec=GEMV)
    assert "no estimate yet" in text_of(client, f"/runs/{run.pk}/")


def test_a_waiting_run_says_its_place_in_the_queue(client: Client, running: Run) -> None:
    waiting = create_run("queued", device="cuda", arch="h200")
    create_task(waiting)
    text = text_of(client, f"/runs/{waiting.pk}/")
    assert "queue position 1" in text
    assert "1 run ahead." in text
    assert f'busy</span> with <a href="/runs/{running.pk}/">run {running.pk}</a>' in text
    assert "No start estimate yet." in text
    assert 'id="waits"' not in text_of(client, f"/runs/{running.pk}/")
    started = client.get(f"/api/v1/runs/{running.pk}").json()
    assert (started["waiting"], started["queue_position"], started["starts_in_s"]) == (None, None, None)


def test_a_waiting_run_says_what_keeps_each_accelerator_from_it(client: Client) -> None:
    waiting = create_run("queued", device="cuda", title="micro")
    create_task(waiting)
    text = text_of(client, f"/runs/{waiting.pk}/")
    assert "no host is attached; attach one with" in text
    assert "queue position" not in text
    create_accelerator(create_host("cpu-only"), arch="cpu-x86_64")
    assert "no attached host has device cuda; there are: cpu" in text_of(client, f"/runs/{waiting.pk}/")
    create_accelerator(create_host("silent", age_s=4000))
    create_accelerator(create_host("moves", drained=True, note="new rack"))
    resting = create_host("resting", paused_until=timezone.now() + timedelta(minutes=5))
    for name in ("cuda:0", "cuda:1"):
        create_accelerator(resting, name=name)
    create_accelerator(create_host("shared"), unavailable_reason="another process holds 3.2 GB")
    text = text_of(client, f"/runs/{waiting.pk}/live")
    assert "No matching accelerator is available." in text
    assert "queue position 0<" in text
    assert re.search(r"silent <span[^>]*><span[^>]*>✗</span> lost</span> last heard <time", text)
    assert 'drained</span> <span class="reason">new rack</span>' in text
    assert text.count("<li>resting") == 1
    assert "paused</span> until <time" in text
    assert '<span class="reason">another process holds 3.2 GB</span>' in text
    create_accelerator(create_host("free"))
    text = text_of(client, f"/runs/{waiting.pk}/")
    assert "queue position 0: next" in text
    api = client.get(f"/api/v1/runs/{waiting.pk}").json()
    said = client.get(f"/runs/{waiting.pk}.json").json()["waiting"]
    for place in (*api["waiting"]["places"], *said["places"]):
        place |= {name: bool(place[name]) for name in ("since", "until")}  # the times are spelled differently
    assert api["waiting"] == said
    assert (api["queue_position"], api["starts_in_s"]) == (said["position"], said["starts_in_s"])
    assert (said["position"], said["starts_in_s"], said["lacking"]) == (0, 0.0, "")
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
    assert '<span class="fact"></span>' in text_of(client, f"/runs/{run.pk}/")
    create_measurement(create_experiment(mode="training"), run=run)
    create_measurement(create_experiment(mode=""), run=run)
    text = text_of(client, f"/runs/{run.pk}/")
    for word in ("inference", "training", "unknown mode"):
        assert f'<span class="fact">{word}</span>' in text


def names_of(client: Client, address: str) -> list[str]:
    """Return the cases on a run's page, from above."""
    text = text_of(client, address)
    return re.findall(r'<tr> <th scope="row"><a [^>]*>([^<[]*)', text)


def test_the_result_stands_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create_ceiling(4258.0)
    run = create_run(commit="ca3512f0000000000000", branch="main")

    def add(case: str, verdict: str = "", **fields: Any) -> None:
        measured = create_measurement(create_experiment(case=case), run=run, **fields)
        if verdict:
            create_verdict(measured, verdict, change=-0.5, noise=0.01, factor=-50, baseline=100.0)

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
    text = text_of(client, address)
    assert "Of 7 experiments: 1 regressed, 1 failed, 1 missed a target, 1 inconclusive, 1 improved." in text
    assert "e_twice_as_slow, Speedup −50.0 %" in text
    assert "1 regressed</span>" in text.split("</h1>")[1][:400], "beside the state"
    assert names_of(client, f"{address}?show=failed") == ["d_failed"]
    assert names_of(client, f"{address}?q=quiet+-compile") == ["a_quiet"]
    assert names_of(client, f"{address}?sort=-experiment")[:2] == ["z_open", "layer_norm"]
    assert 'aria-sort="descending"' in text_of(client, f"{address}?sort=-experiment")
    monkeypatch.setattr(view, "SHOWN_POINTS", 3)
    assert names_of(client, address) == worst_first[:3]
    assert "1 to 3 of 7 shown" in text_of(client, address)
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
    assert "1 regressed</span>" in text_of(client, "/runs/")


def test_results_land_while_it_runs(client: Client, running: Run) -> None:
    assert "No results yet." in text_of(client, f"/runs/{running.pk}/live")
    create_measurement(samples=[2500.0, 2542.4, 2600.0], run=running)
    text = text_of(client, f"/runs/{running.pk}/live")
    assert "2542.4 GB/s" in text
    assert 'data-part="results"' in text


def test_polling_stops_when_the_run_has_ended(client: Client, running: Run) -> None:
    assert "X-Poll" not in client.get(f"/runs/{running.pk}/live")
    Run.objects.filter(pk=running.pk).update(state=State.LOST, finished=timezone.now(), reason="host silent")
    assert client.get(f"/runs/{running.pk}/live")["X-Poll"] == "stop"
    text = text_of(client, f"/runs/{running.pk}/")
    assert "data-poll" not in text
    assert "host silent" in text
    assert '#rerun">' in text
    assert "Cancel</button>" not in text


def test_it_is_polled_until_the_judge_has_spoken(client: Client) -> None:
    run = create_run()
    create_measurement(value=1.0, at=run.order_time - timedelta(days=1))
    create_measurement(value=1.0, run=run, judged=False)
    assert "data-poll=" in text_of(client, f"/runs/{run.pk}/")
    assert "X-Poll" not in client.get(f"/runs/{run.pk}/live")
    Series.objects.update(touched_at=None)
    assert client.get(f"/runs/{run.pk}/live")["X-Poll"] == "stop"
    Series.objects.update(touched_at=run.order_time)
    Run.objects.filter(pk=run.pk).update(finished=timezone.now() - timedelta(hours=1))
    assert client.get(f"/runs/{run.pk}/live")["X-Poll"] == "stop", "a judge that is away is not waited for"


def test_the_times_of_a_run_are_live(client: Client, running: Run) -> None:
    text = text_of(client, f"/runs/{running.pk}/live")
    assert 'data-part="about"' in text
    assert "<dt>Started</dt>" in text
    assert "<dt>Ended</dt>" not in text
    Run.objects.filter(pk=running.pk).update(state=State.SUCCEEDED, finished=timezone.now())
    assert "<dt>Ended</dt>" in text_of(client, f"/runs/{running.pk}/live")


def test_every_file_of_a_run_shows_its_receipt(client: Client) -> None:
    run = create_run(upload=create_upload("first.json"), source="ci")
    skipped = [{"pointer": "", "line": 4, "reason": "no metric"}]
    receipt = {"stored": 7, "duplicates": 2, "skipped": skipped, "run_ids": [run.pk]}
    second = create_upload("second.json", parameters={"suite": "micro"})
    Upload.objects.filter(pk=second.pk).update(receipt=receipt)
    create_measurement(run=run, upload=second)
    text = text_of(client, f"/runs/{run.pk}/")
    assert '<td class="file">first.json</td> <td>v3</td>' in text
    assert '<td class="num">7</td> <td class="num">2</td>' in text
    assert "line 4: no metric" in text
    assert "<dt>suite</dt><dd>micro</dd>" in text


def test_the_log_is_read_by_offset(client: Client, running: Run) -> None:
    task = running.tasks.get(position=1)
    write_log(task, b"first line\nsecond line\n")
    address = f"/runs/{running.pk}/log?task=1"
    answer = client.get(address)
    assert answer.content == b"first line\nsecond line\n"
    assert (answer["X-Log-Next"], answer["X-Log-More"]) == ("23", "1")
    assert answer["Content-Type"].startswith("text/plain")
    answer = client.get(f"{address}&start=11")
    assert answer.content == b"second line\n"
    answer = client.get(f"{address}&start=23")
    assert (answer.content, answer["X-Log-Next"]) == (b"", "23")
    done = client.get(f"/runs/{running.pk}/log?task=0")
    assert done["X-Log-More"] == "0"


def create_artifact(task: Task, kind: str, content: bytes, path: str = "") -> Artifact:
    where = path or f"artifacts/{task.run_id}/{kind}"
    whole = Path(settings.HUD_DATA) / where
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_bytes(content)
    return Artifact.objects.create(task=task, kind=kind, path=where, size_bytes=len(content), sha256="a" * 64)


def test_the_files_of_tasks_are_listed_and_come_as_downloads(
    client: Client, running: Run, settings: Any
) -> None:
    first, second = running.tasks.order_by("position")[:2]
    kept = create_artifact(first, "graph_breaks", b"<script>alert(1)</script>")
    create_artifact(second, "trace", b"x" * 2000)
    create_measurement(run=running)
    text = text_of(client, f"/runs/{running.pk}/")
    assert f'href="/runs/{running.pk}/artifacts/{kept.pk}"' in text
    assert "<td>graph breaks</td>" in text
    assert "2.00 kB" in text
    listed = client.get(f"/runs/{running.pk}.json").json()["artifacts"]
    assert listed == client.get(f"/api/v1/runs/{running.pk}/artifacts").json()["items"]
    assert [(one["task"], one["kind"], one["size_bytes"]) for one in listed] == [
        (0, "graph_breaks", 25),
        (1, "trace", 2000),
    ]
    for address in (f"/runs/{running.pk}/artifacts/{kept.pk}", listed[0]["url"]):
        answer = client.get(address)
        assert b"".join(answer.streaming_content) == b"<script>alert(1)</script>"  # type: ignore[attr-defined]
        assert answer["Content-Type"] == "application/octet-stream"
        assert answer["X-Content-Type-Options"] == "nosniff"
        name = f"run-{running.pk}-task-0-graph_breaks-{kept.pk}.json"
        assert answer["Content-Disposition"] == f'attachment; filename="{name}"'
        assert client.get(address.replace(f"/{running.pk}/", "/987654/")).status_code == 404
    settings.HUD_PUBLIC_READ = False
    assert client.get(f"/runs/{running.pk}/artifacts/{kept.pk}").status_code == 302
    assert client.get(listed[0]["url"]).status_code == 401


def test_only_files_below_the_artifacts_are_given_out(client: Client, running: Run) -> None:
    task = running.tasks.get(position=0)
    outside = create_artifact(task, "trace", b"secret", path="outside")
    gone = create_artifact(task, "kernels", b"{}")
    (Path(settings.HUD_DATA) / gone.path).unlink()
    for one in (outside, gone):
        assert client.get(f"/runs/{running.pk}/artifacts/{one.pk}").status_code == 404
        assert client.get(f"/api/v1/runs/{running.pk}/artifacts/{one.pk}").status_code == 404


@pytest.mark.parametrize("query", ["task=-1", "task=x", "start=-5", "start=1e9", "task=99999999999999"])
def test_a_nonsense_place_in_the_log_is_refused(client: Client, running: Run, query: str) -> None:
    assert client.get(f"/runs/{running.pk}/log?{query}").status_code == 400
    assert client.get(f"/runs/{running.pk}/?{query}").status_code == 200


def test_the_page_shows_the_log_of_the_running_task_or_of_the_one_asked_for(
    client: Client, running: Run
) -> None:
    write_log(running.tasks.get(position=0), b"of the first task\n")
    write_log(running.tasks.get(position=1), b"\x1b[31mof the <second>\x1b[0m task\n")
    text = text_of(client, f"/runs/{running.pk}/")
    assert "of the &lt;second&gt; task" in text
    assert 'role="log"' in text
    assert "data-pinned" not in text
    pinned = text_of(client, f"/runs/{running.pk}/?task=0")
    assert "of the first task" in pinned
    assert "data-pinned" in pinned


def test_a_line_of_a_log_has_an_address_and_the_first_error_is_named(client: Client, running: Run) -> None:
    lines = [f"line {number} of many" for number in range(1, 9001)]
    lines[117] = "torch.OutOfMemoryError: CUDA out of memory"
    task = running.tasks.get(position=0)
    write_log(task, "\n".join(lines).encode() + b"\n")
    Task.objects.filter(pk=task.pk).update(state=Task.State.DONE, status="oom")
    address = f"/runs/{running.pk}/"
    text = text_of(client, f"{address}?task=0")
    assert 'id="L9000"' in text
    assert 'id="L118"' not in text, "too far from the end"
    link = re.search(r'<a href="([^"]*)">line 118 of task 0</a>', text)
    assert link
    assert "CUDA out of memory</code>" in text
    text = text_of(client, link[1].replace("&amp;", "&").partition("#")[0])
    assert re.search(r'<span class="ln err" id="L118"><a [^>]*>118</a>torch.OutOfMemoryError', text)
    assert 'id="L18"' in text
    later = re.search(r'<a href="([^"]*)">Later lines</a>', text)
    assert later
    assert f'id="{later[1].partition("#")[2]}"' not in text
    assert f'id="{later[1].partition("#")[2]}"' in text_of(client, later[1].replace("&amp;", "&"))
    assert text_of(client, f"{address}?task=0&line=99999").count('id="L9000"') == 1


def test_codes_of_a_terminal_are_taken_out() -> None:
    assert readable(b"a\n 1 %\r 50 %\r100 %\nb") == "a\n100 %\nb"
    assert readable(b"\x1b[1;32mok\x1b[0m\r\n\x1b]0;title\x07\x00a\tb\xff") == "ok\na\tb�"
    assert len(readable(b"\x1b]" * 200_000)) == 200_000  # none of them ends; once it took minutes


def test_cancel_needs_a_login_and_is_asked_once(client: Client, running: Run) -> None:
    answer = client.post(f"/runs/{running.pk}/cancel")
    assert answer["Location"] == f"/login/?next=/runs/{running.pk}/"
    assert Run.objects.get().cancel_asked is None
    client.force_login(create_user())
    for _ in range(2):
        answer = client.post(f"/runs/{running.pk}/cancel", follow=True)
    text = " ".join(answer.content.decode().split())
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
    text = text_of(client, f"/runs/{run.pk}/")
    assert '<td class="num">3</td> <td class="num">1</td> <td><details><summary>1<' in text
    assert "line 7: the record has no metric" in text
    assert "results.json" in text
    assert "by hand" in text


def test_repeats_are_shown_by_process(client: Client) -> None:
    run = create_run()
    for process in (0, 1):
        create_measurement(value=1000.0 + process, run=run, repeat=process)
    text = text_of(client, f"/runs/{run.pk}/")
    assert "2 processes" in text
    assert "1000.5 GB/s" in text
    items = client.get(f"/runs/{run.pk}.json").json()["items"]
    assert [(one["process"], one["value"]) for one in items] == [(0, 1000.0), (1, 1001.0)]


def test_who_ran_it_again_is_linked_both_ways(client: Client) -> None:
    first = create_run("failed")
    again = create_run(retry_of=first)
    assert f'<a href="/runs/{again.pk}/">run {again.pk}</a>' in text_of(client, f"/runs/{first.pk}/")
    assert f'<a href="/runs/{first.pk}/">run {first.pk}</a>' in text_of(client, f"/runs/{again.pk}/")


def test_a_failure_is_explained_by_a_new_run(client: Client) -> None:
    accelerator = create_accelerator(suites=["huggingface"])
    of_model: dict[str, Any] = {"metric": "accuracy", "value": None, "status": "wrong"}
    experiment = create_experiment(suite="huggingface", case="DistillGPT2", knobs={})
    failed = create_run("failed", host=accelerator.host)
    measured = create_measurement(experiment, run=failed, note="differs", **of_model)
    place = f"/runs/{failed.pk}/explain"
    assert client.post(place)["Location"] == f"/login/?next=/runs/{failed.pk}/"
    client.force_login(create_user())
    assert place in text_of(client, f"/runs/{failed.pk}/")
    assert client.post(place, {"series": "x"}).status_code == 400
    assert client.post(place, {"series": 9999}).status_code == 404
    answer = client.post(place, {"series": measured.series_id})
    explaining = Run.objects.get(request__retry_of=failed)
    assert answer["Location"] == f"/runs/{explaining.pk}/"
    spec = TaskSpec.from_json(Task.objects.get(run=explaining).spec)
    assert spec.knobs == {"test": "accuracy", "explain": 900}
    assert Audit.objects.filter(action="run.request", subject=f"run {explaining.pk}").exists()
    note = Explanation("inductor", "lowerings", 1, "relu").before("differs")
    create_measurement(experiment, run=explaining, note=note, **of_model)
    text = text_of(client, f"/runs/{failed.pk}/")
    assert "inductor, lowerings, number 1 (relu)</a>" in text
    assert place not in text


def test_a_failure_that_no_compiler_is_at_fault_for_has_no_explanation(client: Client) -> None:
    run = create_run("failed")
    for backend, status in (("inductor", "oom"), ("eager", "wrong")):
        one = create_experiment(suite="huggingface", case="DistillGPT2", knobs={}, backend=backend)
        measured = create_measurement(one, metric="accuracy", value=None, run=run, status=status)
    client.force_login(create_user())
    assert "/explain" not in text_of(client, f"/runs/{run.pk}/")
    client.post(f"/runs/{run.pk}/explain", {"series": measured.series_id})
    assert not Run.objects.filter(request__retry_of=run).exists()


@pytest.mark.parametrize("address", ["/runs/9999/", "/runs/9999.json", "/runs/9999/live", "/runs/9999/log"])
def test_no_such_run(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404


def test_two_uploads_of_one_title_are_told_apart(client: Client) -> None:
    for file, commit in (("first.json", "1234567890abcdef"), ("second.json", "")):
        create_run(upload=create_upload(file), title="ci: micro", commit=commit, external_id=f"7/{file}")
    create_run(upload=create_upload("third.json"), title="")
    text = text_of(client, "/runs/")
    assert 'ci: micro <span class="fact">first.json · id 7/first.json</span>' in text
    assert 'title="1234567890abcdef"><code>1234567</code>' in text
    assert text.count("third.json") == 1
    assert client.get("/runs.json").json()["items"][2]["filename"] == "first.json"


def test_another_branch_than_the_default_one_is_marked(client: Client) -> None:
    for branch in ("", "main", "fast"):
        create_measurement(run=create_run(branch=branch))
    assert [run["branch"] for run in client.get("/runs.json").json()["items"]] == ["fast", "main", "main"]
    tags = re.findall(r'<a class="tag" title="branch"[^>]*>(.*?)</a>', text_of(client, "/runs/"))
    assert tags == ["fast"]
    experiment = text_of(client, f"/experiments/{create_experiment().pk}/")
    assert re.findall(r'<span class="tag" title="branch[^"]*">(.*?)</span>', experiment) == ["fast"]


def test_runs_of_a_commit_a_range_a_branch_and_a_suite(client: Client, settings: Any) -> None:
    now = timezone.now()
    commits = ("aaaa1111aaaa", "bbbb2222bbbb", "cccc3333cccc", "dddd4444dddd")
    for day, commit in enumerate(commits):
        run = create_run(
            commit=commit,
            branch="" if day else "pr/7",
            order_time=now - timedelta(days=9 - day),
            upload=create_upload(),
        )
        create_measurement(create_experiment(suite="timm" if day % 2 else "micro"), run=run)
    create_run(title="asked", interactive=True)

    def found(query: str) -> list[str]:
        return [one["commit"][:4] for one in client.get(f"/runs.json?{query}").json()["items"]]

    assert found("commit=bbbb2") == ["bbbb"]
    assert found("commit=bbbb2222bbbb..dddd4444dddd") == ["dddd", "cccc", "bbbb"]
    assert found("commit=dddd4444dddd...bbbb2222bbbb") == ["dddd", "cccc", "bbbb"]
    assert found("suite=timm") == ["dddd", "bbbb"]
    assert found("branch=pr/7") == ["aaaa"]
    assert found("kind=pull_request") == ["aaaa"]
    assert found("kind=night") == ["dddd", "cccc", "bbbb"]
    assert found("kind=person") == [""]
    assert "No run has the commit eeee5555" in text_of(client, "/runs/?commit=bbbb2222bbbb..eeee5555")
    text = text_of(client, "/runs/")
    assert '<a href="/runs/?commit=dddd4444dddd" title="dddd4444dddd"><code>dddd444</code></a>' in text
    settings.HUD_REPO_URL = "https://github.com/pytorch/pytorch/commit/{commit}"
    assert 'href="https://github.com/pytorch/pytorch/commit/dddd4444dddd"' in text_of(client, "/runs/")
    assert 'href="https://github.com/pytorch/pytorch/compare/aaaa1111...bbbb2222"' in commit_range(
        "aaaa1111", "bbbb2222"
    )
    assert '?commit=v2.9..v2.10"' in commit_range("v2.9", "v2.10")


def test_the_list_is_filtered_by_the_url(client: Client) -> None:
    create_run(title="nightly")
    create_run("failed", title="broken", host_name="far-away")
    create_run(title="", upload=create_upload("from_ci.json"))

    def titles(query: str) -> list[str]:
        return [item["title"] for item in client.get(f"/runs.json{query}").json()["items"]]

    assert titles("") == ["from_ci.json", "broken", "nightly"]
    assert titles("?state=failed") == ["broken"]
    assert titles("?kind=upload") == ["from_ci.json"]
    assert titles("?kind=rerun&q=night") == ["nightly"]
    assert titles("?host=far") == ["broken"]
    assert '<p class="empty">' in text_of(client, "/runs/?q=nothing")
    assert "Ignored: state" in text_of(client, "/runs/?state=exploded")
    assert client.get("/runs.json?state=exploded").status_code == 400
    assert "Ignored: host:" in text_of(client, "/runs/?host=far&host=near")
    assert client.get("/runs.json?host=far&host=near").status_code == 400


def test_older_runs_stand_on_the_next_page(client: Client) -> None:
    runs = [create_run() for _ in range(PAGE_ROWS + 2)]
    answer = client.get("/runs.json").json()
    assert len(answer["items"]) == PAGE_ROWS
    older = client.get(f"/runs.json?before={answer['next']}").json()
    assert [item["run"] for item in older["items"]] == [runs[1].pk, runs[0].pk]
    assert older["next"] is None
