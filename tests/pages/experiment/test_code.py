"""What changed: two points of an experiment, kernel by kernel, on the page and over the API."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from hud.accounts.keys import create_key
from hud.judging.kernels import changes as query
from hud.judging.kernels.attribution import attribute
from hud.judging.kernels.diff import compare
from hud.judging.kernels.table import CauseGroup, KernelTable, config_change
from hud.models import IMPORT, Experiment, KernelCode, Run, Stream
from hud.points.sides import BadSide, parse
from runner.schema.compilations import Compiled, Note
from runner.schema.replay import with_operands
from tests.support.compilations import AFTER, BEFORE, compiled, kernel, mobilenet, planted, store
from tests.support.factories import create_environment, create_experiment, create_measurement, create_run
from tests.support.pages import page_of

STATEMENTS = 11
HARDTANH_7 = "triton_poi_fused__native_batch_norm_legit_no_training_hardtanh_7"


@pytest.fixture(autouse=True)
def front(request: pytest.FixtureRequest) -> None:
    """Make the stream of the runs that tests create the one of an address without a stream."""
    if "db" in request.fixturenames:
        request.getfixturevalue("db")
        Stream.objects.update_or_create(name=IMPORT, defaults={"is_front": True})


def point(
    experiment: Experiment, *found: Compiled, days: int = 0, run: Run | None = None, **about: Any
) -> Run:
    """Store compilations as one point; `about` are fields of the run."""
    owner = run or create_run(order_time=timezone.now() - timedelta(days=days), **about)
    for repeat, one in enumerate(found):
        store(one, experiment=experiment, run=owner, repeat=repeat)
    return owner


def side(run: Run, experiment: Experiment, more: str = "") -> str:
    return f"run:{run.pk}/experiment:{experiment.pk}{more}"


@pytest.fixture
def regressed(db: None) -> dict[str, str]:
    """The query of two points of a model: the second has new code in two kernels, a lost fusion, other
    choices, a graph break, another torch and longer autotuning."""
    model = create_experiment(suite="timm", case="mobilenetv2_100", knobs={})
    first, second, third, fourth = mobilenet()
    before = create_run(order_time=timezone.now() - timedelta(days=1), commit="cb4e520aa")
    after = create_run(commit="b6692ea11")
    newer = create_environment(gpu_uuid="GPU-1", torch="2.12.0.dev20261115")
    phases = {"bytecode_tracing": 1.25, "CachingAutotuner.benchmark_all_configs": 1.4}
    for repeat, found in enumerate((first, second)):
        one = replace(found, phases_s=phases)
        store(one, experiment=model, run=before, repeat=repeat, code={HARDTANH_7: BEFORE})
    for repeat, found in enumerate((third, fourth)):
        slower = {**phases, "CachingAutotuner.benchmark_all_configs": 2.4}
        broken = (Note("call to print", "model.py:30"),)
        one = replace(planted(found), phases_s=slower, graph_breaks=broken)
        about: dict[str, Any] = {"run": after, "environment": newer, "repeat": repeat}
        store(one, experiment=model, code={HARDTANH_7: AFTER}, **about)
        create_measurement(model, metric="cold_compile_s", value=13.6, **about)
    environment = create_environment(gpu_uuid="GPU-1")
    create_measurement(model, metric="cold_compile_s", value=12.6, run=before, environment=environment)
    create_measurement(model, metric="graph_breaks", value=0, run=before, environment=environment)
    create_measurement(model, metric="graph_breaks", value=1, run=after, environment=newer)
    return {"base": side(before, model), "head": side(after, model)}


def test_the_planted_changes_are_found_and_add_up(client: Client, regressed: dict[str, str]) -> None:
    found = client.get("/code.json", regressed).json()
    by_name = {(row["kernel"], row["cause"]): row for row in found["items"]}
    assert {name.rpartition("_")[2] for name, cause in by_name if cause == "code"} == {"4", "7"}
    moved = {name.rpartition("_")[2] for name, cause in by_name if cause == "moved"}
    assert moved == {"25", "26"}  # mean_25 became hardtanh_25 and mean_26
    assert by_name[HARDTANH_7, "code"]["change_us"] == pytest.approx(0.212 * 243.3, rel=0.01)
    assert found["adds_up"]
    causes = {cause: one["change_us"] for cause, one in found["causes"].items()}
    assert causes["code"] == pytest.approx(96.7, rel=0.02)
    assert causes["moved"] == pytest.approx(19.0 + 16.4 - 22.5, abs=0.2)
    assert sum(causes.values()) + found["remainder_us"] == pytest.approx(found["busy_change_us"])
    assert found["environment"] == ["torch 2.11.0+cu130 → 2.12.0.dev20261115"]
    assert found["graph"]["counts"] == [{"metric": "graph_breaks", "base": 0, "head": 1}]
    assert [note["place"] for note in found["graph"]["notes"]] == ["model.py:30"]
    phases = {phase["name"]: phase["head_s"] - phase["base_s"] for phase in found["compile"]["phases"]}
    assert phases == {"Dynamo tracing": 0, "Autotuning": pytest.approx(1.0), "Other": pytest.approx(0.0)}


def test_the_page_shows_the_code_side_by_side(client: Client, regressed: dict[str, str]) -> None:
    text = client.get("/code/", regressed).content.decode()
    assert "<mark>.to(tl.int64)</mark>" in " ".join(text.split()).replace("</mark><mark>", "")
    stream = Stream.objects.get(is_front=True)
    page = query.read(regressed["base"], regressed["head"], stream)
    assert page.code
    assert page.code.change.kernel.name == HARDTANH_7
    assert page.code.diff
    assert page.code.diff.changed == 4
    other = next(one for one in page.attribution.changes if one.kernel.name.endswith("hardtanh_11"))
    assert (
        query.read(regressed["base"], regressed["head"], stream, slot=other.slot).code == page.code
    )  # its code was not stored


def test_a_change_is_shown_on_its_line_of_source(client: Client, db: None) -> None:
    mlp, norm, other = (f"gpt2.py:{at} {name}" for at, name in ((2, "M.forward"), (3, "N.forward"), (9, "f")))
    model = create_experiment()
    before = [kernel("a", 10.0, lines=(mlp, norm)), kernel("b", 4.0, lines=(other,)), kernel("copy", 1.0)]
    after = [replace(before[0], time_us=16.0), *before[1:]]
    runs = [point(model, compiled(*kernels), days=days) for days, kernels in ((1, before), (0, after))]
    sides = {"base": side(runs[0], model), "head": side(runs[1], model)}
    found = client.get("/code.json", sides).json()
    assert {row["kernel"]: row["lines"] for row in found["items"]} == {
        "a": [mlp, norm],
        "b": [other],
        "copy": [],
    }
    changes = [(line["line"], line["change_us"]) for line in found["lines"]]
    assert changes == [(mlp, 3.0), (norm, 3.0), (other, 0.0), ("unknown", 0.0)]
    of_classes = client.get("/code.json", {**sides, "by": "class"}).json()["lines"]
    assert [line["line"] for line in of_classes] == ["gpt2.py M", "gpt2.py N", "gpt2.py f", "unknown"]
    for shown in (sides, {"base": sides["base"], "head": sides["base"]}):
        assert mlp in page_of(client, f"/code/?{urlencode(shown)}")


@pytest.mark.parametrize("compilations", [1, 3])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, db: None, django_assert_num_queries: Any, compilations: int
) -> None:
    model = create_experiment()
    found = [
        replace(one, kernels=tuple(replace(kernel, lines=("gpt2.py:2 f",)) for kernel in one.kernels))
        for one in mobilenet()[:compilations]
    ]
    runs = [point(model, *found, days=1), point(model, *map(planted, found))]
    for run in runs:
        place: dict[str, Any] = {"run": run, "environment": create_environment(gpu_uuid="GPU-1")}
        create_measurement(model, metric="graph_breaks", value=0, **place)
    with django_assert_num_queries(STATEMENTS):
        sides = {"base": side(runs[0], model), "head": side(runs[1], model)}
        client.get("/code/", {**sides, "stream": IMPORT})


def test_a_side_is_a_run_a_commit_or_the_newest_of_a_branch(client: Client, db: None) -> None:
    model, other = create_experiment(), create_experiment(backend="eager")
    old = point(model, compiled(kernel("mm", 10.0)), compiled(kernel("mm", 20.0)), days=2, commit="abc1234")
    new = point(model, compiled(kernel("mm", 12.0)), days=1, branch="main")
    point(model, compiled(kernel("mm", 90.0)), branch="viable/strict")

    def before(base: str, head: str = side(new, model)) -> Any:
        found = client.get("/code.json", {"base": base, "head": head}).json()
        return found["totals"]["base"]["busy_us"] if "totals" in found else found["status"]

    assert before(f"run:{old.pk}") == 15.0
    assert before(side(old, model, "/compilation:1")) == 20.0
    assert before("commit:abc1") == 15.0
    assert before("latest:main") == 12.0
    assert before(f"latest:viable/strict/experiment:{model.pk}") == 90.0
    point(other, compiled(kernel("mm", 5.0)), run=old)
    assert before(f"run:{old.pk}") == 404  # which experiment?
    assert before(side(old, other)) == 5.0
    for wrong in (
        "run:999999",
        "run:0",
        side(old, model, "/compilation:7"),
        "nonsense",
        f"run:{2**40}",
        "\0",
    ):
        assert before(wrong) in {400, 404}, wrong
    for wrong, hint in (
        ("run:999999", "base: run:999999: there is no run"),
        (side(old, model, "/compilation:7"), "it has 0, 1"),
        (f"run:{old.pk}/experiment:{2**30}", f"{model.pk} ("),
    ):
        shown = client.get("/code/", {"base": wrong, "head": side(new, model)}).content.decode()
        assert hint in shown, wrong


def test_a_card_that_neither_side_names_is_no_other_card(client: Client, db: None) -> None:
    model = create_experiment()
    places = [create_environment(torch=torch) for torch in ("2.11.0", "2.12.0")]
    places += [create_environment(gpu_uuid="GPU-1"), create_environment(gpu_uuid="GPU-2")]
    runs = []
    for days, environment in enumerate(places):
        kernels = (kernel(f"k{number}", 10.0 + days / 100) for number in range(12))
        run = create_run(order_time=timezone.now() - timedelta(days=days))
        store(compiled(*kernels), experiment=model, run=run, environment=environment)
        runs.append(side(run, model))

    def card_ratio(base: str, head: str) -> Any:
        return client.get("/code.json", {"base": base, "head": head}).json()["card_ratio"]

    assert card_ratio(runs[0], runs[1]) is None
    assert card_ratio(runs[2], runs[3]) == pytest.approx(10.03 / 10.02)


def test_what_another_stream_has_changes_nothing(client: Client, db: None) -> None:
    model = create_experiment()
    point(model, compiled(kernel("mm", 10.0)), days=2, commit="abc1234", branch="main")
    point(model, compiled(kernel("mm", 12.0)), days=1, commit="def5678", branch="main")
    asked = {"base": "commit:abc1", "head": "latest:main"}
    before = [client.get("/code.json", query).content for query in (asked, {})]
    laptop = Stream.objects.create(name="laptop")
    point(model, compiled(kernel("mm", 99.0)), commit="abc1234", branch="main", stream=laptop)
    assert [client.get("/code.json", query).content for query in (asked, {})] == before
    own = client.get("/code.json", {"stream": "laptop", "base": "latest:main", "head": "commit:abc1"}).json()
    assert (own["stream"], own["totals"]["base"]["busy_us"]) == ("laptop", 99.0)


def test_the_sides_of_an_ab_run_are_its_baseline_and_its_candidate(client: Client, db: None) -> None:
    model = create_experiment()
    run = create_run(interpreter="nightly", base_interpreter="stable")
    for pair in range(2):
        store(compiled(kernel("mm", 10.0)), experiment=model, run=run, repeat=pair, side=0)
        store(compiled(kernel("mm", 13.0, code="new")), experiment=model, run=run, repeat=pair, side=1)
    found = client.get("/code.json", {"base": side(run, model), "head": side(run, model)}).json()
    assert [(row["cause"], row["change_us"]) for row in found["items"]] == [("code", 3.0)]
    assert found["base"]["side"].endswith("/side:base")
    same = side(run, model, "/side:head")
    found = client.get("/code.json", {"base": same, "head": same}).json()
    assert [row["cause"] for row in found["items"]] == ["unchanged"]


def test_without_sides_it_offers_comparisons(client: Client, db: None) -> None:
    assert client.get("/code/").status_code == 200
    model, alone = create_experiment(case="model"), create_experiment(case="alone")
    first = point(model, compiled(kernel("mm")), days=1)
    second = point(model, compiled(kernel("mm", 20.0)))
    point(alone, compiled(kernel("mm")))
    (line,) = client.get("/code.json").json()["items"]
    assert (line["base"], line["head"]) == (side(first, model), side(second, model))
    assert client.get("/code/", {"base": line["base"], "head": line["head"]}).status_code == 200
    assert client.get("/code.json?q=nothing").json()["items"] == []
    answer = client.get("/code/", {"base": line["base"], "head": "run:999999"})
    assert answer.status_code == 200
    assert b"Ignored: head: run:999999" in answer.content


def test_one_point_offers_its_fastest_and_slowest_compilation(client: Client, db: None) -> None:
    model = create_experiment(suite="timm", case="mobilenetv2_100", knobs={})
    run = point(model, *mobilenet())
    (line,) = client.get("/code.json").json()["items"]
    sides = [query.read(line[name], line[name], run.stream).base for name in ("base", "head")]
    base_us, head_us = (each.compiled[0].busy_us for each in sides)
    assert (base_us, head_us) == tuple(
        extreme(one.busy_us or 0 for one in mobilenet()) for extreme in (min, max)
    )
    assert all(each.run.pk == run.pk for each in sides)


def test_a_page_of_one_point_names_the_binaries(client: Client, db: None) -> None:
    model = create_experiment(suite="timm", case="mobilenetv2_100", knobs={})
    (first, *_) = mobilenet()
    run = point(model, first)
    one_side = side(run, model)
    page = client.get("/code", {"base": one_side, "head": one_side}, follow=True).text
    binaries = re.findall(r'<td class="binary"><code class="dim">(\w{5})</code>', page)
    assert set(binaries) & {kernel.binary[:5] for kernel in first.kernels}


def test_the_api_gives_what_the_page_shows(client: Client, regressed: dict[str, str]) -> None:
    key = {"authorization": f"Bearer {create_key(name='k', scopes=['read'], who='t')[1]}"}
    answer = client.get("/api/v1/attribution", regressed, headers=key)
    assert answer.status_code == 200
    page, found = client.get("/code.json", regressed).json(), answer.json()
    assert found["kernels"] == page.pop("items")
    assert found == {**page, "kernels": found["kernels"]}
    missing = client.get("/api/v1/attribution", {**regressed, "head": "run:999999"}, headers=key)
    assert (missing.status_code, missing["Content-Type"]) == (404, "application/problem+json")
    assert client.get("/api/v1/attribution?base=run:1", headers=key).status_code == 422


def test_kernels_without_times_are_compared_by_code(client: Client, db: None) -> None:
    model = create_experiment(device="cpu", arch="cpu-x86_64")
    runs = [
        point(
            model,
            compiled(kernel("cpp_fused_0", None, code=code, kind="cpp"), busy_us=None, gaps_us=None),
            days=day,
        )
        for day, code in ((1, "old"), (0, "new"))
    ]
    asked = {"base": side(runs[0], model), "head": side(runs[1], model)}
    assert [row["cause"] for row in client.get("/code.json", asked).json()["items"]] == ["code"]
    assert client.get("/code/", asked).status_code == 200


SIDES = st.builds(
    lambda where, parts: where + "".join(parts),
    st.sampled_from(("run:12", "commit:abc123", "latest:main", "latest:release/2.9")),
    st.tuples(
        st.sampled_from(("", "/experiment:5")),
        st.sampled_from(("", "/side:base", "/side:head")),
        st.sampled_from(("", "/compilation:0", "/compilation:12")),
    ),
)


@given(SIDES)
def test_a_side_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text


@given(st.text(max_size=30))
def test_any_other_text_is_refused_and_never_an_error(text: str) -> None:
    with suppress(BadSide):
        assert parse(text)


LINES = st.lists(st.sampled_from(("a = 1", "b = a + 1", "c = load(x, None)", "")), max_size=30)


@given(LINES, LINES)
def test_both_texts_can_be_read_off_their_diff(before: list[str], after: list[str]) -> None:
    found = compare("\n".join(before), "\n".join(after))
    left, right = "\n".join(before).splitlines(), "\n".join(after).splitlines()
    assert found.equal == (left == right)
    for pair in found.pairs:
        for line, text in ((pair.left, left), (pair.right, right)):
            if line.number is not None:
                assert "".join(words for words, _marked in line.spans) == text[line.number - 1]
    shown = [pair for pair in found.pairs if not pair.skipped]
    skipped = sum(pair.skipped for pair in found.pairs)
    assert sum(pair.left.number is not None for pair in shown) + skipped == len(left)
    assert sum(pair.right.number is not None for pair in shown) + skipped == len(right)


@pytest.mark.parametrize(
    ("head_us", "gaps_us", "call_us", "words", "tone"),
    [
        (118.0, 5.0, 300.0, ("device time rose", "call overhead fell"), "doubt"),
        (118.0, 305.0, 728.0, ("device time rose", "gaps between kernels rose"), "worse"),
        (80.0, 5.0, 300.0, ("device time fell", "call overhead fell"), "better"),
        (80.0, 5.0, 700.0, ("device time fell", "call overhead rose"), "doubt"),
        (100.1, 5.0, 300.0, ("launches",), "better"),
        (118.0, 5.0, 423.0, ("host",), "worse"),  # the overhead is that of before
    ],
)
def test_the_leading_cause_names_what_rose_and_what_fell(
    head_us: float, gaps_us: float, call_us: float, words: tuple[str, ...], tone: str
) -> None:
    base, head = compiled(kernel("one", 100.0)), compiled(kernel("one", head_us), gaps_us=gaps_us)
    whole = attribute([base], [head], base_call_us=405.0, head_call_us=call_us)
    found, found_tone = KernelTable.of(whole).verdict
    assert all(word in found for word in words), found
    assert found_tone == tone


def test_a_change_inside_the_noise_names_its_largest_kernels_where_it_is_much() -> None:
    def group(slower_us: float) -> tuple[CauseGroup, KernelTable]:
        sides = [
            compiled(
                kernel("slower", 10.0 + grown * slower_us),
                *(kernel(f"quiet_{place}", 10.0 + grown * 0.05 * place) for place in range(5)),
                kernel("gemm", 10.0 - grown * 0.02, kind="library"),
            )
            for grown in (0, 1)
        ]
        table = KernelTable.of(attribute(sides[:1], sides[1:]))
        return next(one for one in table.groups if one.cause == "unchanged"), table

    much, table = group(1.0)
    assert much.share == table.sums[-1].quiet == pytest.approx(0.48 / 1.48)
    assert [row.change and row.change.kernel.name for row in much.rows] == [
        "quiet_4", "quiet_3", "quiet_2", None, None
    ]  # fmt: skip
    assert [row.folded for row in much.rows] == [0, 0, 0, 1, 2]
    assert sum(row.change_us for row in much.rows) == pytest.approx(much.change_us)
    little, table = group(9.0)
    assert [row.folded for row in little.rows] == [1, 5]
    assert table.sums[-1].quiet is None


def test_it_says_that_the_earlier_winner_spills_now(client: Client, db: None) -> None:
    """Compare compilations of gather_gemv on an H200, one with at most 24 registers a thread."""
    model = create_experiment()
    few, many = (f"XBLOCK=4 R0_BLOCK=4096 num_warps={warps} num_stages=1" for warps in (8, 16))
    old = point(model, compiled(kernel("mv", 11.904, config=few, registers=48, spills=0)), days=1)
    now = kernel("mv", 14.656, config=many, registers=24, spills=2, skipped=((few, 40),))
    sides = {"base": side(old, model), "head": side(point(model, compiled(now)), model)}
    (row,) = client.get("/code.json", sides).json()["items"]
    assert (row["cause"], row["base_registers"], row["head_registers"]) == ("spilled", 48, 24)
    words = "the earlier winner now spills 40 registers and was skipped, registers 48 → 24, spilled 0 → 2"
    assert row["anatomy"] == words
    assert words in client.get("/code/", sides).content.decode()
    back = {"base": sides["head"], "head": sides["base"]}
    assert client.get("/code.json", back).json()["items"][0]["anatomy"] == "registers 24 → 48, spilled 2 → 0"


def test_it_says_that_candidates_spill_that_the_earlier_draws_never_took(client: Client, db: None) -> None:
    """Compare draws of gather_gemv on an H200, where one skipped two configurations."""
    model = create_experiment()
    config = "XBLOCK={} R0_BLOCK={} num_warps={} num_stages=1".format
    old = point(model, compiled(kernel("mv", 13.408, config=config(4, 2048, 8))), days=1)
    spilling = ((config(2, 2048, 8), 28), (config(4, 2048, 16), 42))
    now = [
        compiled(kernel("mv", 19.168, config=config(2, 2048, 16), skipped=spilling)),
        compiled(kernel("mv", 21.28, config=config(2, 1024, 16))),
    ]
    sides = {"base": side(old, model), "head": side(point(model, *now), model)}
    (row,) = client.get("/code.json", sides).json()["items"]
    assert row["anatomy"] == "2 candidates skipped for spilling up to 42 registers"
    assert row["cause"] == "choice", "a draw may skip what the other one never tried"


def test_of_two_configurations_the_difference_is_shown() -> None:
    one, other = kernel("mm", config="XBLOCK=1 num_warps=4"), kernel("mm", config="XBLOCK=8 num_warps=4")
    assert config_change(one, other) == "XBLOCK 1 → 8"
    assert config_change(one, one) == "XBLOCK 1, num_warps 4"
    assert config_change(None, kernel("mm", config="ATen mm")) == "ATen, mm"


def test_a_stored_kernel_is_a_file_to_run(client: Client, db: None) -> None:
    model = create_experiment()
    known, unknown = kernel("known", 10.0), kernel("unknown", 10.0)
    operands = [["bfloat16", [4, 8], [8, 1]]] * 6
    code = {"known": with_operands(BEFORE, operands, [32]), "unknown": BEFORE}
    store(compiled(known, unknown), experiment=model, code=code)
    one = side(Run.objects.get(), model)
    pages = [
        page_of(client, f"/code/?{urlencode({'base': one, 'head': one, 'kernel': each.slot})}")
        for each in (known, unknown)
    ]
    address = f"/code/kernel-{known.binary}.py"
    assert [address in page for page in pages] == [True, False]
    assert "# operands" not in pages[0]  # of the code that is shown
    answer = client.get(address)
    assert BEFORE.strip() in answer.content.decode()
    assert "_operand(torch.bfloat16, (4, 8), (8, 1), 1)" in answer.content.decode()
    assert answer["Content-Disposition"].startswith("attachment")
    for missing in (unknown.binary, "f" * 16, "%00"):
        assert client.get(f"/code/kernel-{missing}.py").status_code == 404
    KernelCode.objects.filter(text=code["known"]).update(text=f"{BEFORE}\n# operands: {'[' * 100_000}")
    assert client.get(address).status_code == 404
