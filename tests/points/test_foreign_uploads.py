"""Whatever other keys upload, the pages of a stream stay what they were: points.md's second check from
outside, over every file of this repository that somebody else's tool wrote."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.ingest.export import export
from hud.judging.judge import process_pending
from hud.models import Experiment, Measurement, Run, State, Stream, Upload
from hud.runs.streams import of_new_key
from tests.support.factories import create_run, create_user
from tests.support.records import as_lines

pytestmark = pytest.mark.django_db
NEWEST = datetime.now(timezone.utc).replace(hour=3, minute=0, second=0, microsecond=0) - timedelta(days=4)
NIGHTS = 20
FILES = [
    path
    for folder in (Path(__file__).parents[1] / "samples", Path(__file__).parents[2] / "hud" / "samples")
    for path in sorted(folder.rglob("*"))
    if path.suffix in {".csv", ".json", ".jsonl", ".log"}
]
CASES = {
    "huggingface": ("BertForMaskedLM", "DistillGPT2", "OPT"),
    "timm": ("beit", "moco"),
    "micro": ("gemv",),
}
METRICS = {"device_speedup": 2.0, "compiled_peak_memory_bytes": 4e9, "accuracy": 1.0}


def record(suite: str, case: str, metric: str, value: float, night: int, **over: Any) -> dict[str, Any]:
    at = NEWEST - timedelta(days=NIGHTS - 1 - night)
    about = {"arch": "NVIDIA H200", "dtype": "bfloat16", **over}
    return {
        "timestamp": int(at.timestamp()),
        "head_branch": "main",
        "head_sha": f"{night:040x}" if about.get("commit", True) else "",
        "benchmark": {
            "name": f"Compiler HUD {suite}",
            "mode": "inference",
            "dtype": about["dtype"],
            "extra_info": {"device": "cuda", "arch": about["arch"]},
        },
        "model": {"name": case, "backend": "inductor", "origins": [suite]},
        "metric": {"name": metric, "benchmark_values": [value]},
        "runners": [{"name": "h1", "type": about["arch"], "extra_info": {"driver": "580.1"}}],
    }


class Uploader:
    """Somebody with a key of their own, and by it a stream."""

    def __init__(self, name: str) -> None:
        owner = create_user(name, Role.UPLOADER)
        stream = of_new_key(name, "", scopes=["upload"], owner=owner, is_operator=False)
        _key, secret = create_key(name=name, scopes=["upload", "read"], who=name, owner=owner, stream=stream)
        self.client = Client(headers={"authorization": f"Bearer {secret}"})

    def upload(self, body: bytes, **parameters: str) -> int:
        path = "/api/v1/results?" + "&".join(f"{name}={value}" for name, value in parameters.items())
        answer = self.client.post(path, body, content_type="application/octet-stream")
        assert answer.status_code < 500, answer.content
        return answer.status_code


def nights_of(uploader: Uploader) -> None:
    """Twenty nights, of which the last two are slower in one case."""
    chance = random.Random(1)
    for night in range(NIGHTS):
        records = []
        for suite, cases in CASES.items():
            for case in cases:
                for metric, level in METRICS.items():
                    moved = 0.8 if case == "OPT" and metric == "device_speedup" and night >= NIGHTS - 2 else 1
                    value = level if metric == "accuracy" else level * moved * chance.gauss(1, 0.002)
                    records.append(record(suite, case, metric, value, night))
        assert uploader.upload(as_lines(*records), run_id=f"night-{night}") == 201


def judge() -> None:
    while process_pending():
        pass
    cache.clear()


def foreign_uploads() -> None:
    """Everything that others may send meanwhile, at the same time and later."""
    other, laptop = Uploader("other team"), Uploader("laptop")
    taken = [other.upload(path.read_bytes(), filename=path.name) for path in FILES]
    assert taken.count(201) >= 15, taken
    now = (NIGHTS, NIGHTS + 1)
    two = [record("huggingface", "OPT", "device_speedup", 9.0 + n, n, commit="") for n in now]
    for each in two:
        del each["head_branch"]
    assert laptop.upload(as_lines(*two)) == 201
    faster = [
        record(suite, case, metric, 99 * level, night, arch=arch)
        for suite, cases in CASES.items()
        for case in (*cases, "a new one")
        for metric, level in METRICS.items()
        for night in now
        for arch in ("NVIDIA H200", "NVIDIA B200", "")
    ]
    assert other.upload(as_lines(*faster), run_id="b200") in {200, 201}
    repeat_with_other_values(other)
    stream = Stream.objects.get(name="other-team")
    create_run("cancelled", stream=stream, order_time=NEWEST + timedelta(hours=5), commit="c" * 40)
    create_run(State.FAILED, stream=stream, order_time=NEWEST + timedelta(hours=6), commit="f" * 40)


def repeat_with_other_values(other: Uploader) -> None:
    """Send an export of the stream, then one with other values, to streams that are not it."""
    body = b"".join(export("v3", {"stream": "ci-main"}))
    changed = re.sub(rb'("benchmark_values": ?)\[[^\]]*\]', rb"\g<1>[7.0]", body)
    assert changed != body
    for each in (body, changed):
        for parameters in ({}, {"stream": "copy-of-ci-main"}):
            assert other.upload(each, partial="1", **parameters) in {200, 201}
    count = body.count(b"\n")
    for name in ("other-team", "copy-of-ci-main"):
        runs = Run.objects.filter(stream__name=name, measurement__isnull=False).exclude(host_name="")
        assert runs.values("measurement").distinct().count() >= count, name
    assert Measurement.objects.filter(run__stream__name="copy-of-ci-main").count() == count


def addresses() -> list[str]:
    """The pages of the stream, and links that somebody saved."""
    query = "stream=ci-main"
    days = [(NEWEST - timedelta(days=ago)).date() for ago in (0, 1, 7)]
    runs = list(Run.objects.filter(stream__name="ci-main").order_by("order_time"))
    assert len(runs) == NIGHTS * len(CASES)
    old, last = runs[-8].pk, runs[-1].pk
    pages = ["/", "/compilers/", "/regressions/", "/limits/", "/funnel/", "/runs/"]
    pages += [f"/suites/{suite}/" for suite in CASES]
    pages += [f"/models/{suite}/{case}/" for suite, cases in CASES.items() for case in cases]
    pages += [f"/experiments/{pk}/" for pk in Experiment.objects.order_by("pk").values_list("pk", flat=True)]
    pages += [f"/runs/{old}/", f"/runs/{last}/"]
    saved = [
        *(f"head={day}" for day in days), f"base={days[2]}&head={days[0]}", "head=latest:", "window=28",
        f"head=latest:&base={days[1]}", f"head=night:{days[1]}", "arch=h200", "arch=h200&mode=inference",
        "dtype=bfloat16", f"arch=h200&mode=inference&dtype=bfloat16&base={days[2]}&head={days[1]}",
    ]  # fmt: skip
    commits = [runs[number].commit for number in (-8, -1)]
    sides = [
        f"base=run:{old}&head=run:{last}", f"base=commit:{commits[0]}&head=commit:{commits[1]}",
        f"base=night:{days[2]}&head=night:{days[0]}", "base=latest:main&head=latest:main",
    ]  # fmt: skip
    found = [f"{page}?{query}" for page in pages]
    found += [
        f"{page.rstrip('/') or '/overview'}.{kind}?{query}" for page in pages for kind in ("json", "csv")
    ]
    found += [f"{page}?{query}&{link}" for page in ("/", "/compilers.json") for link in saved]
    found += [f"{page}?{query}&{link}" for page in ("/compare/", "/compare.json") for link in sides]
    one = Experiment.objects.order_by("pk")[0].pk
    found += [f"/api/v1/series/{one}/device_speedup?{query}", f"/api/v1/regressions?{query}"]
    return found


def answers(client: Client, addresses: list[str]) -> dict[str, str]:
    """Return what each address says, without ages, tokens and the list of streams."""
    said = {}
    for address in addresses:
        answer = client.get(address)
        lists = r'<nav class="streams".*?</nav>|<select name="stream".*?</select>'
        text = re.sub(lists, "", answer.content.decode(), flags=re.DOTALL)
        text = re.sub(r"<time.*?</time>|csrfmiddlewaretoken.*?>|nonce=\"[^\"]*\"", "", text, flags=re.DOTALL)
        said[address] = f"{answer.status_code} {text}"
    return said


def test_foreign_uploads_change_nothing_of_a_stream(client: Client) -> None:
    nights_of(Uploader("ci-main"))
    judge()
    pages = addresses()
    before = answers(client, pages)
    assert not [address for address, text in before.items() if not text.startswith("200")]
    assert json.loads(client.get("/overview.json?stream=ci-main").content)["counts"]["causes"] == 1
    foreign_uploads()
    judge()
    assert Upload.objects.exclude(stream__name="ci-main").count() > 15
    after = answers(client, pages)
    changed = [address for address in pages if before[address] != after[address]]
    assert not changed, changed
