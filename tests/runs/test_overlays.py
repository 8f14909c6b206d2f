"""Overlays at the HUD: who may ask for one, which range it can bring, and what reaches the host."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.models import Accelerator, Audit, Run
from hud.problems import Problem
from hud.runs import overlays, tasks
from runner.schema.protocol import OVERLAYS_ALLOWED
from runner.schema.suite import BadRequest
from tests.support.factories import create_accelerator, create_host, create_user
from tests.support.mirrors import create_mirror

pytestmark = pytest.mark.django_db
_INDUCTOR = "torch/_inductor/ir.py"
_LINE = [
    ("Start", [_INDUCTOR, "torch/_dynamo/a.py", "torch/_dynamo/notes.txt", "torch/nn/linear.py"]),
    ("Lower", [_INDUCTOR, "torch/_export/new.py"]),
    ("Trace", ["torch/_dynamo/a.py"]),
    (
        "Elsewhere",
        ["aten/src/kernel.cpp", "torch/_inductor/template.h", *(f"torch/nn/{n}.py" for n in range(9))],
    ),
    ("Tests", ["test/inductor/test_ir.py", "docs/source/ir.md"]),
]
PATCH = """\
--- a/torch/_inductor/ir.py
+++ b/torch/_inductor/ir.py
@@ -1 +1 @@
-0
\\ No newline at end of file
+planted = True
--- /dev/null
+++ b/torch/_dynamo/new.py
@@ -0,0 +1 @@
+new = True
"""


def added(path: str, mode: str = "100644", text: str = "new") -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n"
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"


@pytest.fixture
def shas(tmp_path: Path, settings: Any) -> list[str]:
    settings.HUD_REPO_MIRRORS = {"gone/away": str(tmp_path / "none"), "o/r": str(tmp_path / "mirror")}
    return create_mirror(tmp_path / "mirror", _LINE)


@pytest.fixture
def host(shas: list[str]) -> Accelerator:
    host = create_host("h1", facts={"pythons": {"default": {"torch": "2.13.0", "torch_git": shas[0]}}})
    return create_accelerator(host, suites=["micro"], pythons=["default"], labels=OVERLAYS_ALLOWED)


def ask(client: Client, body: dict[str, Any], *scopes: str) -> Any:
    key = create_key(name="k", scopes=list(scopes or ("run", "code")), who="t")[1]
    asked = {"suite": "micro", "cases": ["gemv"], "host": "h1", **body}
    headers = {"authorization": f"Bearer {key}"}
    return client.post("/api/v1/runs", asked, content_type="application/json", headers=headers)


def test_an_overlay_is_compared_with_the_interpreter_as_it_is(
    client: Client, host: Accelerator, shas: list[str]
) -> None:
    answer = ask(client, {"overlay": {"ref": shas[2][:10]}})
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.interpreter, run.base_interpreter) == (f"default@{shas[2]}", "default")
    assert (run.commit, run.is_ab) == (shas[2], True)
    line = Audit.objects.get(action="run.overlay")
    assert (line.subject, line.detail["commits"]) == (f"run {run.pk}", [shas[2]])
    task = tasks.claim(accelerator=host, nonce="n")
    assert task
    assert task.run_id == run.pk


def test_the_host_gets_the_python_files_of_the_four_folders_by_its_lease_alone(
    client: Client, host: Accelerator, shas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(client, {"overlay": {"ref": shas[2]}})
    task = tasks.claim(accelerator=host, nonce="n")
    assert task
    key = create_key(name="h", scopes=["host"], who="t", host=host.host)[1]

    def get(commit: str, token: object = task.token, secret: str = key) -> Any:
        headers = {"authorization": f"Bearer {secret}", "x-task-token": str(token)}
        return client.get(f"/api/v1/tasks/{task.uid}/overlay/{commit}", headers=headers)

    with tarfile.open(fileobj=io.BytesIO(get(shas[2]).content), mode="r:gz") as tar:
        files = {member.name for member in tar if member.isreg()}
    assert files == {_INDUCTOR, "torch/_dynamo/a.py", "torch/_export/new.py"}
    monkeypatch.setattr(overlays, "MOST_OVERLAY_BYTES", 10)
    assert get(shas[2]).status_code == 404
    assert get(shas[1]).status_code == 404  # another commit than that of the run
    assert get(shas[2], token=task.uid).status_code == 409
    other = create_key(name="o", scopes=["host"], who="t", host=create_host("other"))[1]
    assert get(shas[2], secret=other).status_code in {404, 409}
    assert get(shas[2], secret=create_key(name="c", scopes=["code"], who="t")[1]).status_code == 403


def test_other_files_in_the_range_are_named(client: Client, host: Accelerator, shas: list[str]) -> None:
    answer = ask(client, {"overlay": {"ref": shas[3]}})
    assert answer.status_code == 422
    assert "cannot tell the commit: aten/src/kernel.cpp" in answer.json()["detail"]
    assert "and 6 more files" in answer.json()["detail"]
    assert ask(client, {"overlay": {"ref": "nowhere"}}).status_code == 422
    assert ask(client, {"overlay": {"ref": "--output=x"}}).status_code == 422
    facts = {"pythons": {"default": {"torch": "2.13.0", "torch_git": "--output=x"}}}
    type(host.host).objects.update(facts=facts)  # of a host that lies
    assert ask(client, {"overlay": {"ref": shas[1]}}).status_code == 422
    assert not Run.objects.exists()


def test_tests_and_docs_in_the_range_decide_nothing(
    client: Client, host: Accelerator, shas: list[str]
) -> None:
    facts = {"pythons": {"default": {"torch": "2.13.0", "torch_git": shas[3]}}}
    type(host.host).objects.update(facts=facts)
    assert ask(client, {"overlay": {"ref": shas[4]}}).status_code == 201


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ref", [True, False])
def test_a_patch_is_a_commit_of_its_own_which_the_host_gets(
    client: Client, host: Accelerator, shas: list[str], ref: bool
) -> None:
    overlay = {"patch": PATCH, **({"ref": shas[0]} if ref else {})}
    assert client.post("/api/v1/runs").status_code == 401
    answers = [ask(client, {"overlay": overlay}) for _time in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201], answers[0].content
    first, second = (Run.objects.get(pk=answer.json()["id"]) for answer in answers)
    assert (first.interpreter, first.base_interpreter) == (second.interpreter, "default")  # the same commit
    commit = first.interpreter.partition("@")[2]
    assert commit not in shas
    assert Audit.objects.filter(action="run.overlay", detail__commits=[commit]).count() == 2
    task = tasks.claim(accelerator=host, nonce="n")
    assert task
    key = create_key(name="h", scopes=["host"], who="t", host=host.host)[1]
    headers = {"authorization": f"Bearer {key}", "x-task-token": str(task.token)}
    body = client.get(f"/api/v1/tasks/{task.uid}/overlay/{commit}", headers=headers).content
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isreg())
        contents = {name: file.read() for name, file in files if file}
    assert contents[_INDUCTOR] == b"planted = True\n"
    assert contents["torch/_dynamo/new.py"] == b"new = True\n"
    assert overlays.commit_of("main") == shas[-1]  # the mirror is as it was
    with pytest.raises(BadRequest):
        overlays.commit_of(commit)


@pytest.mark.parametrize(
    "patch",
    [
        "no patch",
        PATCH.replace("-0", "-7"),  # of another file
        added("torch/nn/new.py"),
        added("torch/_inductor/new.so"),
        added("torch/_inductor/../../outside.py"),
        added("/etc/outside.py"),
        added(".git/hooks/new.py"),
        added("torch/_inductor/link.py", mode="120000", text="/etc/passwd"),
        added("torch/_inductor/run.py", mode="100755"),
        f"diff --git a/{_INDUCTOR} b/torch/b.py\nrename from {_INDUCTOR}\nrename to torch/b.py\n",
        "diff --git a/torch/_inductor/ir.py b/torch/_inductor/ir.py\nold mode 100644\nnew mode 120000\n",
        f"{added('torch/_inductor/n.py')}GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n",
        added("torch/_inductor/new.py", text="n" * overlays.MOST_PATCH_CHARS),
    ],
)
def test_a_patch_of_anything_but_the_text_of_python_files_is_refused(
    client: Client, host: Accelerator, patch: str
) -> None:
    answer = ask(client, {"overlay": {"patch": patch}})
    assert answer.status_code == 422, answer.content
    assert not Run.objects.exists()


def test_a_patch_needs_the_scope_code_and_one_commit(
    client: Client, host: Accelerator, shas: list[str]
) -> None:
    assert ask(client, {"overlay": {"patch": PATCH}}, "run").status_code == 403
    facts = {"pythons": {"default": {"torch": "2.13.0", "torch_git": shas[1]}}}
    other = create_host("h2", facts=facts)
    create_accelerator(other, suites=["micro"], pythons=["default"], labels=OVERLAYS_ALLOWED)
    assert ask(client, {"overlay": {"patch": PATCH}, "host": ""}).status_code == 422
    assert ask(client, {"overlay": {"patch": PATCH}}).status_code == 201


def test_an_overlay_needs_the_scope_code(client: Client, host: Accelerator, shas: list[str]) -> None:
    body = {"overlay": {"ref": shas[1]}}
    assert ask(client, body, "run").status_code == 403
    name = {"environment": f"default@{shas[1]}"}
    for more in ({}, {"base_environment": "default"}):
        assert ask(client, {**name, **more}, "run").status_code == 422  # nor by another name
    assert ask(client, name).status_code == 422  # nor without a baseline, with any scope
    with pytest.raises(Problem):  # an operator cannot give it
        create_key(name="o", scopes=["code"], who="t", owner=create_user(role=Role.OPERATOR))
    assert ask(client, body, "run", "code").status_code == 201
    assert ask(client, body, "admin").status_code == 201


def test_a_host_that_allows_none_gets_none(client: Client, host: Accelerator, shas: list[str]) -> None:
    answer = ask(client, {"overlay": {"ref": shas[1]}})
    assert answer.status_code == 201
    Accelerator.objects.update(labels={})
    assert ask(client, {"overlay": {"ref": shas[1]}}).status_code == 422
    host.refresh_from_db()
    assert tasks.claim(accelerator=host, nonce="n") is None


def test_an_archive_has_a_limit(shas: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert overlays.archive(shas[0])
    monkeypatch.setattr(overlays, "MOST_OVERLAY_BYTES", 10)
    with pytest.raises(BadRequest):
        overlays.archive(shas[0])
