"""The commits between which a regression moved: from a mirror or pushed, ranked by what its kernels name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.judging.regressions import commits, mirrors
from hud.models import Commit, Regression
from runner.schema.compilations import Compiled, Kernel, digest
from tests.support.compilations import compiled, kernel, mobilenet, store
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
)
from tests.support.mirrors import create_mirror

pytestmark = pytest.mark.django_db
REPO = "pytorch/pytorch"
_INDUCTOR = "torch/_inductor"
# What a day of a compiler's repository brings: most of it elsewhere, much of it beside the guilty one
_EVERYDAY: list[tuple[str, list[str]]] = [
    ("Update nightly docs", ["docs/source/torch.compiler.md"]),
    ("[FSDP2] Prefetch the next layer", ["torch/distributed/fsdp/_fully_shard/_fsdp_state.py"]),
    ("[c10d] Log the store's timeouts", ["torch/csrc/distributed/c10d/TCPStore.cpp"]),
    ("Skip a flaky test", ["test/inductor/test_torchinductor.py", "test/inductor/test_cpu_repro.py"]),
    ("[MPS] Add a kernel of erfinv", ["aten/src/ATen/native/mps/operations/UnaryKernel.mm"]),
    ("Fix a typo in nn.Linear", ["torch/nn/modules/linear.py"]),
    (
        "[export] Serialise dynamic shapes",
        ["torch/_export/serde/serialize.py", "test/export/test_serialize.py"],
    ),
    (
        "[dynamo] Support itertools.batched",
        ["torch/_dynamo/polyfills/itertools.py", "test/dynamo/test_misc.py"],
    ),
    ("[dynamo] Explain skipped frames", ["torch/_dynamo/exc.py", "torch/_dynamo/graph_break_registry.json"]),
    ("Bump the version of mypy", ["requirements.txt", ".ci/docker/requirements-ci.txt"]),
    ("[ROCm] Enable a test on MI300", ["test/inductor/test_max_autotune.py"]),
    ("[inductor] Dump the debug trace in one folder", [f"{_INDUCTOR}/debug.py"]),
    ("[inductor] Type the autotune cache", [f"{_INDUCTOR}/runtime/autotune_cache.py"]),
    ("[inductor] Halide: fix an indirect load", [f"{_INDUCTOR}/codegen/halide.py"]),
    (
        "[inductor] CPU: vectorise int8 loads",
        [f"{_INDUCTOR}/codegen/cpp.py", "test/inductor/test_cpu_repro.py"],
    ),
    ("[inductor] Log the fusions that were refused", [f"{_INDUCTOR}/scheduler.py"]),
    (
        "[inductor] Lower upsample_bicubic",
        [f"{_INDUCTOR}/lowering.py", "test/inductor/test_torchinductor.py"],
    ),
    ("[inductor] Pattern of int8 SDPA", [f"{_INDUCTOR}/fx_passes/fuse_attention.py"]),
    ("[inductor] Flex attention: block mask of documents", [f"{_INDUCTOR}/kernel/flex_attention.py"]),
    ("[inductor] Remote cache: count misses", [f"{_INDUCTOR}/remote_cache.py"]),
    ("[AOTI] Package constants", ["torch/export/pt2_archive/_package.py"]),
    ("[AOTAutograd] Subclass metadata in caches", ["torch/_functorch/_aot_autograd/subclass_utils.py"]),
    ("Use c10::irange in sparse kernels", ["aten/src/ATen/native/sparse/SparseTensor.cpp"]),
    ("[nested] Unbind backward", ["torch/nested/_internal/ops.py"]),
    ("[quant] Observers of fp8", ["torch/ao/quantization/observer.py"]),
    ("[profiler] Memory timeline", ["torch/profiler/_memory_profiler.py"]),
    ("Add a benchmark of FSDP", ["benchmarks/distributed/fsdp.py"]),
    ("[CI] Shard slow tests", [".github/workflows/slow.yml", ".ci/pytorch/test.sh"]),
    ("[symbolic shapes] Cheaper hash of expressions", ["torch/utils/_sympy/functions.py"]),
    ("[onnx] Opset 23", ["torch/onnx/_internal/exporter/_core.py"]),
    ("[easy] Remove dead code of utils", [f"{_INDUCTOR}/utils.py"]),
    ("[inductor] Rename a config", [f"{_INDUCTOR}/config.py", "docs/source/config.md"]),
]


def changed(change: Callable[[Kernel], list[Kernel]], part: str) -> list[Compiled]:
    """The compilations of a model in which the kernels with a name became others."""
    sides = []
    for one in mobilenet():
        of_each = (change(old) if part in old.name and old.time_us else [old] for old in one.kernels)
        sides.append(compiled(*(new for news in of_each for new in news)))
    return sides


def slower(part: str, by: float = 1.2) -> list[Compiled]:
    """New code at the same choice."""
    return changed(
        lambda old: [replace(old, binary=digest(old.binary, "new"), time_us=(old.time_us or 0) * by)], part
    )


def split(part: str) -> list[Compiled]:
    """Each kernel became two, with the same operators."""

    def halves(old: Kernel) -> list[Kernel]:
        time_us = (old.time_us or 0) * 0.7
        return [kernel(f"{old.name}_{half}", time_us, origins=old.origins) for half in "ab"]

    return changed(halves, part)


def other_choice(part: str) -> list[Compiled]:
    """A configuration that nobody saw before."""
    config = "XBLOCK=128 num_warps=1"
    return changed(
        lambda old: [kernel(old.name, (old.time_us or 0) * 1.5, config=config, origins=old.origins)], part
    )


# title, files, metric, compilations after it (None: no kernels are known), facts that differ
_PLANTS: list[tuple[str, list[str], str, Any, dict[str, str]]] = [
    ("[inductor] Widen indices of strided loads",
     [f"{_INDUCTOR}/codegen/triton.py", f"{_INDUCTOR}/codegen/simd.py"], "gpu_busy_ms",
     lambda: slower("hardtanh"), {}),
    ("[inductor] Fuse less across streams",
     [f"{_INDUCTOR}/scheduler.py", "test/inductor/test_loop_ordering.py"], "gpu_busy_ms",
     lambda: split("hardtanh"), {}),
    ("Split small means into two reductions", [f"{_INDUCTOR}/lowering.py"], "gpu_busy_ms",
     lambda: split("mean"), {}),
    ("Decompose hardtanh by where", ["torch/_decomp/decompositions.py"], "gpu_busy_ms",
     lambda: slower("hardtanh"), {}),
    ("[inductor] Fewer configs of pointwise kernels", [f"{_INDUCTOR}/runtime/triton_heuristics.py"],
     "gpu_busy_ms", lambda: other_choice("hardtanh"), {}),
    ("Move to Triton 3.6", [".ci/docker/ci_commit_pins/triton.txt", ".ci/docker/triton_version.txt"],
     "gpu_busy_ms", lambda: slower("triton_"), {"triton": "3.6.0"}),
    ("[inductor] Hash every graph twice", [f"{_INDUCTOR}/codecache.py"], "cold_compile_s", None, {}),
    ("[dynamo] Guard on the version of a dict",
     ["torch/_dynamo/variables/builder.py", "torch/_dynamo/guards.py"], "graph_breaks", None, {}),
    ("Recompute less in the partitioner", ["torch/_functorch/partitioners.py"], "peak_memory_bytes",
     None, {}),
    ("[inductor] Other tiling of persistent reductions",
     [f"{_INDUCTOR}/choices.py", f"{_INDUCTOR}/tiling_utils.py"], "gpu_busy_ms",
     lambda: slower("mean", 2.0), {}),
]  # fmt: skip


def moved(shas: Sequence[str], metric: str, after: Any, facts: dict[str, str]) -> Regression:
    experiment, points = create_experiment(suite="timm", case=f"m{shas[-1][:5]}", knobs={}), []
    for days, sha, sides in ((2, shas[0], mobilenet), (1, shas[-1], after)):
        own = {"triton": "3.5.1"} | (facts if days < 2 else {})
        environment = create_environment(gpu_uuid="GPU-1", torch_git=sha, **own)
        run = create_run(commit=sha, order_time=timezone.now() - timedelta(days=days))
        points.append(
            create_measurement(experiment, metric=metric, value=4.0 - days, run=run, environment=environment)
        )
        for repeat, one in enumerate(sides() if after else ()):
            store(one, experiment=experiment, run=run, environment=environment, repeat=repeat)
    return create_regression(points[1], change=0.1, before=2.0, last_good_run=points[0].run)


def test_a_planted_commit_is_among_the_first_three(client: Client, tmp_path: Path, settings: Any) -> None:
    """Ten mirrors of 30 commits, each with one guilty one at a place drawn by its seed."""
    planted: list[tuple[Regression, str]] = []
    settings.HUD_REPO_MIRRORS = {}
    for seed, (title, files, metric, after, facts) in enumerate(_PLANTS):
        chance = random.Random(seed)
        line = chance.sample(_EVERYDAY, 29)
        place = chance.randrange(30)
        line.insert(place, (title, files))
        shas = create_mirror(tmp_path / str(seed), [("Start", ["README.md"]), *line])
        settings.HUD_REPO_MIRRORS[f"planted/{seed}"] = str(tmp_path / str(seed))
        planted.append((moved(shas, metric, after, facts), shas[place + 1]))
    call_command("fetch_commits")
    places = []
    for regression, guilty in planted:
        page = client.get("/regressions.json", {"open": regression.pk}).json()
        ranked = [one["sha"] for one in page["detail"]["commits"]]
        assert len(ranked) == 30
        places.append(ranked.index(guilty) + 1)
    print("places of the guilty ones:", places)
    assert sum(place <= 3 for place in places) >= 8, places


def test_a_mirror_is_read_once_and_only_between_two_hashes(tmp_path: Path, settings: Any) -> None:
    shas = create_mirror(
        tmp_path / "m", [(f"commit {number}", [f"torch/a/b/c/d/{number}.py"]) for number in range(6)]
    )
    settings.HUD_REPO_MIRRORS = {"gone/away": str(tmp_path / "none"), REPO: str(tmp_path / "m")}
    regression = moved([shas[1], shas[4]], "cold_compile_s", None, {})
    assert mirrors.fetch() == 3
    assert mirrors.fetch() == 0
    found = commits.of_range(shas[1], shas[4])
    assert [one.title for one in found] == ["commit 4", "commit 3", "commit 2"]
    assert (found[0].touched, found[0].author, found[0].repo) == (["torch/a/b/c"], "Dev 4", REPO)
    for commit in ("--output=/tmp/x", "main", "HEAD", shas[5].upper(), ""):
        assert regression.last_good_run
        regression.last_good_run.commit = commit
        assert commits.ends(regression) is None
        with pytest.raises(ValueError, match="no range"):
            mirrors._log(REPO, str(tmp_path / "m"), commit, shas[4])


def test_commits_are_pushed_once_by_a_key_that_may_upload(client: Client) -> None:
    def post(scopes: list[str], **body: Any) -> Any:
        _key, secret = create_key(name="ci", scopes=scopes, who="t")
        headers = {"Authorization": f"Bearer {secret}"}
        return client.post("/api/v1/commits", body, content_type="application/json", headers=headers)

    shas = [f"{number}" * 40 for number in range(1, 4)]
    rows = [
        {"sha": sha, "parent": parent, "title": "A <b>title</b>\u202e\n", "author": "dev",
         "files": ["torch/x.py"], "date": "2026-11-20T12:00:00Z"}
        for parent, sha in zip(("", *shas), shas, strict=False)
    ]  # fmt: skip
    assert post(["read"], repo=REPO, commits=rows).status_code == 403
    assert post(["upload"], repo=REPO, commits=rows).json() == {"stored": 3, "duplicates": 0}
    assert post(["upload"], repo=REPO, commits=rows).json() == {"stored": 0, "duplicates": 3}
    wrong: list[dict[str, Any]] = [
        {"repo": "no slash"}, {"commits": []}, {"commits": [{**rows[0], "sha": "x" * 40}]},
        {"commits": [{**rows[0], "date": "2026-11-20T12:00:00"}]}, {"commits": rows * 400},
    ]  # fmt: skip
    for change in wrong:
        assert post(["upload"], **{"repo": REPO, "commits": rows, **change}).status_code == 422, change
    assert Commit.objects.count() == 3
    regression = moved([shas[0], shas[2]], "cold_compile_s", None, {})
    page = client.get("/regressions/", {"open": regression.pk})
    assert page.status_code == 200
    assert page.text.count("A &lt;b&gt;title&lt;/b&gt;") == 2
    assert page.context["page"].detail.has_all
    Commit.objects.filter(sha=shas[1]).delete()
    page = client.get("/regressions/", {"open": regression.pk})
    assert not page.context["page"].detail.has_all
    Commit.objects.all().delete()
    assert "/runs/?commit=" in client.get("/regressions/", {"open": regression.pk}).text


def test_tick_reads_the_mirrors(tmp_path: Path, settings: Any) -> None:
    shas = create_mirror(tmp_path / "m", [("one", ["a.py"]), ("two", ["b.py"])])
    settings.HUD_REPO_MIRRORS = {REPO: str(tmp_path / "m")}
    moved(shas, "cold_compile_s", None, {})
    call_command("tick", once=True)
    assert Commit.objects.get().title == "two"


def test_the_page_shows_chart_kernels_environment_and_members(client: Client) -> None:
    regression = moved(["1" * 40, "2" * 40], "gpu_busy_ms", lambda: slower("hardtanh_7"), {"triton": "3.6.0"})
    beside = create_measurement(
        regression.series.experiment, metric="speedup", value=1.0, run=regression.first_run
    )
    other = create_regression(beside, change=-0.1)
    page = client.get("/regressions/", {"open": regression.pk})
    detail = page.context["page"].detail
    assert [row.metric.name for row in detail.charts.rows] == ["gpu_busy_ms", "speedup"]
    assert page.text.count('class="dots moved"') == 2
    (first, *_more) = detail.kernels.rows
    assert (first[0].name.endswith("hardtanh_7"), first[1].cause) == (True, "code")
    assert "hardtanh_7" in page.text
    data = client.get("/regressions.json", {"open": regression.pk}).json()["detail"]
    assert {"name": "triton", "base": "3.5.1", "head": "3.6.0"} in data["environment"]
    assert set(data["members"]) == {regression.pk, other.pk}
    assert data["commits"] == []
    alone = client.get(f"/regressions/?open={other.pk}&tab=accepted")
    assert alone.status_code == 200, "a regression that is not in the list"
