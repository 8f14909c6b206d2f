"""The log and the files of a run's tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from hud.accounts.roles import Role
from hud.files import files
from hud.models import Run, Task
from hud.pages.run.view import readable
from hud.runs import logs
from tests.support.factories import (
    create_artifact,
    create_measurement,
    create_user,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db


def write_log(task: Task, content: bytes) -> None:
    files.append(logs.log_name(task), 0, content)
    Task.objects.filter(pk=task.pk).update(log_bytes=len(content))


def test_the_log_is_read_by_offset(client: Client, running: Run) -> None:
    task = running.tasks.get(position=1)
    write_log(task, b"first line\nsecond line\n")
    address = f"/api/v1/runs/{running.pk}/log?task=1"
    answer = client.get(address)
    assert answer.content == b"first line\nsecond line\n"
    assert (answer["X-Next-Offset"], answer["X-More"]) == ("23", "1")
    assert answer["Content-Type"].startswith("text/plain")
    answer = client.get(f"{address}&start=11")
    assert answer.content == b"second line\n"
    answer = client.get(f"{address}&start=23")
    assert (answer.content, answer["X-Next-Offset"]) == (b"", "23")
    done = client.get(f"/api/v1/runs/{running.pk}/log?task=0")
    assert done["X-More"] == "0"


@pytest.mark.parametrize("query", ["task=-1", "task=x", "task=99999999999999", "line=0"])
def test_a_nonsense_place_in_the_log_is_left_out(client: Client, running: Run, query: str) -> None:
    assert client.get(f"/runs/{running.pk}/?{query}").status_code == 200


def test_the_page_shows_the_log_of_the_running_task_or_of_the_one_asked_for(
    client: Client, running: Run
) -> None:
    write_log(running.tasks.get(position=0), b"of the first task\n")
    write_log(running.tasks.get(position=1), b"\x1b[31mof the <second>\x1b[0m task\n")
    text = page_of(client, f"/runs/{running.pk}/")
    assert "of the &lt;second&gt; task" in text
    assert 'role="log"' in text
    assert "data-pinned" not in text
    pinned = page_of(client, f"/runs/{running.pk}/?task=0")
    assert "of the first task" in pinned
    assert "data-pinned" in pinned


def test_a_line_of_a_log_has_an_address_and_the_first_error_is_named(client: Client, running: Run) -> None:
    lines = [f"line {number} of many".ljust(159, ".") for number in range(1, 1801)]
    lines[117] = "torch.OutOfMemoryError: CUDA out of memory"
    task = running.tasks.get(position=0)
    write_log(task, "\n".join(lines).encode() + b"\n")
    Task.objects.filter(pk=task.pk).update(state=Task.State.DONE, status="oom")
    address = f"/runs/{running.pk}/"
    text = page_of(client, f"{address}?task=0")
    assert 'id="L1800"' in text
    assert 'id="L118"' not in text, "too far from the end"
    link = re.search(r'<a href="([^"]*)">line 118 of task 0</a>', text)
    assert link
    assert "CUDA out of memory</code>" in text
    text = page_of(client, link[1].replace("&amp;", "&").partition("#")[0])
    assert re.search(r'<span class="ln err" id="L118"><a [^>]*>118</a>torch.OutOfMemoryError', text)
    assert 'id="L18"' in text
    later = re.search(r'<a href="([^"]*)">Later lines</a>', text)
    assert later
    assert f'id="{later[1].partition("#")[2]}"' not in text
    assert f'id="{later[1].partition("#")[2]}"' in page_of(client, later[1].replace("&amp;", "&"))
    assert page_of(client, f"{address}?task=0&line=99999").count('id="L1800"') == 1


def test_of_many_short_lines_the_last_thousand_are_shown(client: Client, running: Run) -> None:
    task = running.tasks.get(position=0)
    content = b"".join(b"line %d\n" % number for number in range(1, 4001))
    write_log(task, content)
    address = f"/runs/{running.pk}/"

    def shown(query: str) -> list[int]:
        text = page_of(client, f"{address}?task=0{query}")
        return [
            int(number) for number in re.findall(r'<span class="ln" id="L(\d+)"><a [^>]*>\1</a>line \1', text)
        ]

    assert shown("") == list(range(3001, 4001))
    assert shown("&line=3500") == list(range(3001, 4001))
    assert shown("&line=2000") == list(range(1900, 2900))
    assert shown("&line=1") == list(range(1, 1001))
    text = page_of(client, f"{address}?task=0&line=2000")
    for place, number in (("Earlier", 1899), ("Later", 2900)):
        link = re.search(rf'<a href="[^"]*line=(\d+)#L\1">{place} lines', text)
        assert link
        assert int(link[1]) == number
        assert number in shown(f"&line={number}")
    whole = client.get(f"/api/v1/runs/{running.pk}/log?task=0&whole=1")
    assert b"".join(whole.streaming_content) == content  # type: ignore[attr-defined]


def test_codes_of_a_terminal_are_taken_out() -> None:
    assert readable(b"a\n 1 %\r 50 %\r100 %\nb") == "a\n100 %\nb"
    assert readable(b"\x1b[1;32mok\x1b[0m\r\n\x1b]0;title\x07\x00a\tb\xff") == "ok\na\tb�"
    assert len(readable(b"\x1b]" * 200_000)) == 200_000  # none of them ends; once it took minutes


def test_the_files_of_tasks_are_listed_and_come_as_downloads(
    client: Client, running: Run, settings: Any
) -> None:
    first, second = running.tasks.order_by("position")[:2]
    kept = create_artifact(first, "graph_breaks", b"<script>alert(1)</script>")
    create_artifact(second, "trace", b"x" * 2000)
    create_measurement(run=running)
    text = page_of(client, f"/runs/{running.pk}/")
    address = f"/api/v1/runs/{running.pk}/artifacts/{kept.pk}"
    assert f'href="{address}"' in text
    assert client.get(f"/runs/{running.pk}/artifacts/{kept.pk}")["Location"] == address
    assert "<td>graph breaks</td>" in text
    assert "2.00 kB" in text
    listed = client.get(f"/runs/{running.pk}.json").json()["artifacts"]
    assert listed == client.get(f"/api/v1/runs/{running.pk}/artifacts").json()["items"]
    assert [(one["task"], one["kind"], one["size_bytes"]) for one in listed] == [
        (0, "graph_breaks", 25),
        (1, "trace", 2000),
    ]
    assert listed[0]["url"] == address
    answer = client.get(address)
    assert b"".join(answer.streaming_content) == b"<script>alert(1)</script>"  # type: ignore[attr-defined]
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    name = f"run-{running.pk}-task-0-graph_breaks-{kept.pk}.json"
    assert answer["Content-Disposition"] == f'attachment; filename="{name}"'
    assert client.get(address.replace(f"/{running.pk}/", "/987654/")).status_code == 404
    settings.HUD_PUBLIC_READ = False
    assert client.get(f"/runs/{running.pk}/artifacts/{kept.pk}")["Location"].startswith("/login/")
    assert client.get(address).status_code == 401
    client.force_login(create_user("reader", role=Role.VIEWER))
    assert client.get(address).status_code == 200


def test_only_files_below_the_artifacts_are_given_out(client: Client, running: Run) -> None:
    task = running.tasks.get(position=0)
    outside = create_artifact(task, "trace", b"secret", path="outside")
    gone = create_artifact(task, "kernels", b"{}")
    (Path(settings.HUD_DATA) / gone.path).unlink()
    for one in (outside, gone):
        assert client.get(f"/api/v1/runs/{running.pk}/artifacts/{one.pk}").status_code == 404
