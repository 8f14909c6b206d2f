"""Two environments measured in turn: statistics, the pages, the API."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from torch._inductor import config

from hud import judge, tasks
from hud.analysis.pairs import judge_pairs
from hud.export import export
from hud.forms import RerunForm
from hud.ingest import ingest
from hud.ingest.parameters import Parameters
from hud.keys import create_key
from hud.models import Accelerator, Measurement, Run, Verdict
from hud.queries import pairs, values
from hud.queries.hosts import Place
from runner.catalog import SUITES, BadRequest, TaskSpec, inductor_options
from runner.failures import TaskFailure
from runner.launch import Outcome
from runner.measure.compiled import compile_inductor
from runner.measure.device import prepare
from runner.measure.inductor_options import tried_options
from runner.pairs import Pair, launch_pair
from runner.station import Interpreter
from runner.suites.torchdynamo.backends import Compiler
from runner.summary import LEAST_PAIRS, paired_change, student_p, t_interval
from tests.factories import (
    create_accelerator,
    create_experiment,
    create_measurement,
    create_run,
    create_user,
)
from tests.hosts import Control
from tests.records import as_lines, v3_record


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (11, 2.201), (30, 2.042)]
)
def test_the_p_value_is_students(degrees: int, t: float) -> None:
    assert student_p(t, degrees) == pytest.approx(0.05, abs=1e-4)
    assert student_p(-t, degrees) == student_p(t, degrees)
    assert student_p(0.0, degrees) == 1.0
    assert student_p(math.inf, degrees) == 0.0


def test_p_and_interval_agree() -> None:
    chance = random.Random(1)
    for _ in range(200):
        pairs = [(1.0, math.exp(chance.gauss(0.01, 0.01))) for _ in range(chance.randint(2, 20))]
        found = paired_change(pairs)
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        if abs(found.p - 0.05) > 1e-4:
            assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        assert (found.low, found.high) == t_interval(found.ratios)


def words(change: float, pairs: int, *, noise: float = 0.01) -> dict[str, float]:
    """Shares of the words over 400 simulated runs; each process has noise of its own."""
    chance = random.Random(pairs)
    found = {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": 0.0}
    for _ in range(400):
        base = [math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        new = [(1 + change) * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        found[judge_pairs(base, new, direction="down").word] += 1 / 400
    return found


def test_five_pairs_tell_five_percent_apart() -> None:
    assert words(0.05, 5)["confirmed"] > 0.99
    assert words(-0.05, 5)["confirmed"] > 0.99
    assert words(0.02, 12)["confirmed"] > 0.87


def test_nothing_is_confirmed_where_nothing_changed() -> None:
    for count in (5, 8, 12):
        assert words(0.0, count)["confirmed"] < 0.05
    assert words(0.0, 12)["dismissed"] > 0.9
    assert words(0.0, 4) == {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": pytest.approx(1.0)}


def test_the_direction_says_what_is_better() -> None:
    slower = [1.05, 1.06, 1.05, 1.04, 1.05]
    assert judge_pairs([1.0] * 5, slower, direction="down").better is False
    assert judge_pairs([1.0] * 5, slower, direction="up").better is True
    assert judge_pairs([1.0] * 5, slower, direction="none").better is None
    assert judge_pairs(slower, slower, direction="up").word == "dismissed"


def test_any_change_of_a_count_is_one() -> None:
    assert judge_pairs([100.0] * 5, [101.0] * 5, direction="down", kind="deterministic").word == "confirmed"
    assert judge_pairs([0.0] * 5, [0.0] * 5, direction="down", kind="deterministic").word == "dismissed"
    assert judge_pairs([0.0] * 5, [1.0] * 5, direction="down", kind="deterministic").change is None


def test_a_side_without_a_value_makes_no_pair() -> None:
    found = judge_pairs([1.0, 2.0, None], [1.0, None, 3.0], direction="down")
    assert (found.pairs, found.word, found.base, found.new) == (1, "inconclusive", 1.5, 2.0)
    assert judge_pairs([1.0], [None], direction="down").change is not None


# On a host


SPEC = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs={"D": [256, 512]})


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


def launched(
    control: Control,
    tmp_path: Path,
    number: int,
    new_options: Mapping[str, bool | int] = MappingProxyType({}),
    **options: Any,
) -> tuple[Outcome, Path]:
    """One pair of two environments that differ in a variable, as a host would run it."""
    pythons = {
        name: Interpreter(str(control.python), {"STANDIN": str(control.folder), "TORCH_SIDE": name})
        for name in ("plain", "tuned")
    }
    folder = tmp_path / f"task-{number}"
    outcome = launch_pair(
        SPEC,
        folder,
        Pair("plain", "tuned", number, tmp_path / "caches", new_options),
        pythons=pythons,
        environment={"CUDA_VISIBLE_DEVICES": ""},
        lock_fd=None,
        **{"on_event": lambda _event: None, "should_stop": lambda: "", **options},
    )
    return outcome, folder


def sides(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    pairs = [json.loads(line)["runners"][0]["extra_info"]["pair"] for line in lines]
    return [(pair["side"], pair["number"]) for pair in pairs]


def test_each_side_throws_its_first_process_away_and_keeps_its_kernels(
    control: Control, tmp_path: Path
) -> None:
    events: list[dict[str, Any]] = []
    outcome, folder = launched(control, tmp_path, 0, on_event=events.append)
    assert (outcome.status, control.starts) == ("ok", 4)
    assert sorted(sides(folder)) == [("base", 0), ("base", 0), ("new", 0), ("new", 0)]
    log = (folder / "log").read_text()
    assert log.count("stand-in at work") == 4
    assert "[runner] pair 0: base, first process, environment plain" in log
    assert [path.name for path in sorted((folder / "artifacts/notes").iterdir())] == [
        "base-notes.txt",
        "new-notes.txt",
    ]
    assert not (folder / "base").exists()
    places = [(event["done"], event["total"]) for event in events]
    assert places == sorted(places)
    assert set(places) == {(0, 4), (1, 4), (2, 4), (3, 4)}
    assert events[1]["label"].endswith(", first process, D=256, 0 of 2")
    outcome, folder = launched(control, tmp_path, 1)
    assert (outcome.status, control.starts) == ("ok", 6)
    assert {number for _side, number in sides(folder)} == {1}


def test_a_side_that_fails_leaves_the_other_one_measured(control: Control, tmp_path: Path) -> None:
    launched(control, tmp_path, 0)
    control.plan({"5": {"status": "oom", "code": "out_of_memory", "reason": "too large"}})
    outcome, folder = launched(control, tmp_path, 1)
    assert (outcome.status, outcome.code) == ("oom", "out_of_memory")
    assert outcome.reason in {"base (plain): too large", "new (tuned): too large"}
    assert {side for side, _number in sides(folder)} == {"base", "new"}


def test_options_reach_the_new_side_alone(control: Control, tmp_path: Path) -> None:
    _outcome, folder = launched(control, tmp_path, 0, {"max_fusion_size": 8, "epilogue_fusion": False})
    text = (folder / "results.jsonl").read_text()
    runners = [json.loads(line)["runners"][0]["extra_info"] for line in text.splitlines()]
    said = {runner["pair"]["side"]: runner.get("variables") for runner in runners}
    options = '{"epilogue_fusion": false, "max_fusion_size": 8}'
    assert said == {"base": None, "new": {"RUNNER_INDUCTOR_OPTIONS": options}}
    assert runners[0]["pair"]["new"] == "tuned with epilogue_fusion=off, max_fusion_size=8"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "no object"),
        ("{", "no JSON"),
        ('{"cpp.simdlen": 10000}', "10000 is not within 0 to 512"),
        ('{"epilogue_fusion": 1}', "neither true nor false"),
        ('{"triton.store_cubin": true}', "no option that can be set"),
    ],
)
def test_only_what_the_catalogue_lists_is_tried(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv(inductor_options.VARIABLE, text)
    with pytest.raises(TaskFailure, match=said) as refused:
        tried_options()
    assert (refused.value.status, refused.value.code) == ("unsupported", "no_such_option")


def test_an_option_that_this_torch_has_not_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inductor_options.VARIABLE, '{"cpp.min_chunk_size": 512, "epilogue_fusion": true}')
    assert tried_options() == {"cpp.min_chunk_size": 512, "epilogue_fusion": True}
    monkeypatch.delattr("torch._inductor.config.cpp.min_chunk_size")
    with pytest.raises(TaskFailure, match=r"has no cpp\.min_chunk_size"):
        tried_options()
    monkeypatch.delenv(inductor_options.VARIABLE)
    assert tried_options() == {}


def test_what_is_tried_goes_before_what_a_suite_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {"max_fusion_size": 16, "unroll_reductions_threshold": 4}
    spec = TaskSpec("timm", "resnet18", "inference", "float32", "inductor", "cpu", knobs=knobs)
    monkeypatch.setenv(inductor_options.VARIABLE, '{"max_fusion_size": 8}')
    with config.patch():
        Compiler(spec)
        assert (config.max_fusion_size, config.unroll_reductions_threshold) == (8, 4)
    asked: dict[str, Any] = {}
    monkeypatch.setattr("torch.compile", lambda function, **given: asked.update(given) or function)
    with pytest.raises(TaskFailure, match="no kernel"):
        compile_inductor(abs, (1,), prepare("cpu"), {"max_fusion_size": 16, "epilogue_fusion": True})
    assert asked["options"] == {"max_fusion_size": 8, "epilogue_fusion": True}


@pytest.mark.parametrize("text", ["epilogue_fusion", "epilogue_fusion=8", "max_fusion_size=on", "x=on"])
def test_options_that_are_typed_wrong_are_refused(text: str) -> None:
    assert inductor_options.parsed(["epilogue_fusion=Off", "max_fusion_size=8"]) == {
        "epilogue_fusion": False,
        "max_fusion_size": 8,
    }
    with pytest.raises(BadRequest):
        inductor_options.parsed([text])


def test_a_cancel_ends_the_pair_where_it_is(control: Control, tmp_path: Path) -> None:
    control.plan({"2": {"spin": True}})
    outcome, _folder = launched(
        control, tmp_path, 0, should_stop=lambda: "cancelled" if control.starts == 2 else ""
    )
    assert (outcome.status, control.starts) == ("cancelled", 2)


# Through the hud


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
    assert (run.environment, run.base_environment) == ("tuned", "default")
    assert run.tasks.count() == 2 * LEAST_PAIRS  # gemv has two dtypes
    refused = ask(client, key, environment="tuned", base_environment="nightly")
    assert refused.status_code == 422
    assert "an interpreter called nightly; there are: default, tuned" in refused.json()["detail"]


@pytest.mark.django_db
def test_an_environment_is_tried_against_itself(client: Client, key: str, accelerator: Accelerator) -> None:
    options = {"epilogue_fusion": False, "max_fusion_size": 8}
    answer = ask(client, key, cases=["layer_norm"], new_options=options)
    assert answer.status_code == 201, answer.content
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.environment, run.base_environment, run.new_options) == ("default", "default", options)
    assert run.tasks.count() == LEAST_PAIRS
    claimed = tasks.claim(accelerator=accelerator, nonce="n")
    assert claimed
    assert claimed.run.new_options == options
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "default with epilogue_fusion=off, max_fusion_size=8 against default" in text
    refused = ask(client, key, new_options={"epilogue_fusion": 1, "max_fusion_size": 8, "threads": 1})
    assert refused.status_code == 422
    pointers = [fault["pointer"] for fault in refused.json()["errors"]]
    assert pointers == ["/new_options/epilogue_fusion", "/new_options/threads"]


def test_what_inductor_does_not_compile_takes_no_options() -> None:
    def fits(suite: str, case: str, backend: str, dtype: str = "float32") -> bool:
        return inductor_options.fits(TaskSpec(suite, case, "inference", dtype, backend, "cpu"))

    assert fits("micro", "gemv", "inductor")
    assert fits("huggingface", "DistillGPT2", "inductor_no_cudagraphs_freezing")
    assert fits("timm", "resnet18", "inductor_aot_inductor")
    assert not fits("huggingface", "DistillGPT2", "aot_eager")
    assert not fits("xla", "any", "inductor")


def pair_record(side: str, number: int, value: float, torch: str) -> dict[str, Any]:
    pair = {"number": number, "side": side, "base": "default", "new": "tuned"}
    return v3_record(
        values=[value],
        runners=[{"name": "gpu-1", "extra_info": {"pair": pair}}],
        dependencies={"torch": {"version": torch, "sha": torch}},
    )


@pytest.mark.django_db
def test_both_sides_land_in_one_run_and_its_page_compares_them(
    client: Client, key: str, accelerator: Accelerator
) -> None:
    answer = ask(
        client, key, cases=["layer_norm"], environment="tuned", base_environment="default", repeats=5
    )
    run = Run.objects.get(pk=answer.json()["id"])
    for number in range(5):
        claimed = tasks.claim(accelerator=accelerator, nonce=f"n{number}")
        assert claimed
        task = claimed.task
        assert task.token
        body = as_lines(
            pair_record("base", 99, 1000.0 + number, "2.9.0"),
            pair_record("new", 99, 1100.0 + number, "2.13.0"),
        )
        tasks.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
        tasks.finish(uid=task.uid, token=task.token, host=accelerator.host, status="ok", code="", reason="")
    processes = Measurement.objects.filter(run=run).order_by("process").values_list("process", flat=True)
    assert list(processes) == list(range(10))
    run.refresh_from_db()
    assert run.commit == "2.13.0"
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "tuned against default" in text
    twin = client.get(f"/runs/{run.pk}.json").json()
    assert {row["side"] for row in twin["items"]} == {"base", "new"}
    (line,) = twin["pairs"]
    assert line["change"] == pytest.approx(0.1, abs=0.005)
    assert line["p"] < 0.01
    assert (line["verdict"], line["better"]) == ("confirmed", True)
    rows = client.get(f"/runs/{run.pk}.csv?table=pairs").content.decode().splitlines()
    assert len(rows) == 2
    assert "in pairs, judged by the run" in text
    assert {row["verdict"] for row in twin["items"]} == {"in_pairs"}
    assert verdicts_of(run) == 0


def verdicts_of(run: Run) -> int:
    """Verdicts of its measurements: what a run tries out is no regression."""
    Run.objects.filter(pk=run.pk).update(state="succeeded", finished=timezone.now())
    judge.work_off()
    return Verdict.objects.filter(run=run).count()


@pytest.mark.django_db
def test_what_a_person_measured_in_pairs_can_be_uploaded() -> None:
    records = [
        pair_record(side, number, value, torch)
        for number in range(5)
        for side, value, torch in (("base", 1000.0 + number, "2.9.0"), ("new", 1000.5 + number, "2.13.0"))
    ]
    receipt = ingest(as_lines(*records), Parameters())
    assert (receipt.stored, len(receipt.run_ids)) == (10, 1)
    run = Run.objects.get(pk=receipt.run_ids[0])
    assert run.in_pairs
    (line,) = pairs.read(run)
    assert (line.verdict.word, line.verdict.pairs) == ("dismissed", 5)
    exported = b"".join(export("v3", {}))
    Run.objects.all().delete()
    again = ingest(exported, Parameters())
    run = Run.objects.get(pk=again.run_ids[0])
    assert (run.environment, run.base_environment) == ("tuned", "default")
    assert [one.to_row() for one in pairs.read(run)] == [line.to_row()]


# The form


PLACES = [Place(None, "cpu", "cpu-x86_64", "online", same_arch=True, pythons=("default", "tuned"))]


def form(**data: str) -> RerunForm:
    own = {"D": [256, 512]}
    given = {"place": PLACES[0].key, "repeats": "5", **data}
    return RerunForm(given, places=PLACES, knobs=SUITES["micro"].knobs, inductor=True, own=own)


def test_the_form_offers_every_knob_in_its_bounds() -> None:
    for suite in SUITES.values():
        offered = RerunForm(places=PLACES, knobs=suite.knobs)
        assert [field.name for field in offered.knob_fields] == [f"knob_{knob.name}" for knob in suite.knobs]
    assert form().knobs_chosen() is None
    good = form(knob_D="256 + 1024", knob_repeat="", environment="tuned", base_environment="default")
    assert good.is_valid(), good.errors
    assert good.knobs_chosen() == {"D": [256, 1024]}
    assert good.initial["knob_D"] == "256+512"


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("knob_D", "256+x", "Integers, joined by +"),
        ("knob_D", "16", "16 is not within 64 to 16384"),
        ("knob_repeat", "5", "greater than or equal to 20"),
        ("environment", "nightly", "No host has an environment nightly; there are: default, tuned"),
        ("base_environment", "nightly", "No host has an environment nightly"),
        ("new_options", "cpp.simdlen=1000", "1000 is not within 0 to 512"),
        ("new_options", "epilogue_fusion", "is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_said_beside_its_field(field: str, text: str, said: str) -> None:
    wrong = form(**{field: text})
    assert not wrong.is_valid()
    assert list(wrong.errors) == [field]
    assert said in str(wrong.errors[field])


def test_too_few_pairs_are_refused() -> None:
    assert "5 pairs are the least" in str(form(repeats="4", base_environment="tuned").errors["repeats"])
    assert "5 pairs are the least" in str(
        form(repeats="4", new_options="max_fusion_size=8").errors["repeats"]
    )
    assert form(repeats="4").is_valid()


@pytest.mark.django_db
def test_the_experiments_page_asks_for_pairs(client: Client, accelerator: Accelerator) -> None:
    experiment = create_experiment(device="cpu", arch="cpu-x86_64", knobs={"D": 256})
    client.force_login(create_user())
    address = f"/experiments/{experiment.pk}/"
    page = client.get(address).content.decode()
    assert 'name="knob_repeat"' in page
    assert 'name="knob_D" value="256"' in page
    place = f"{accelerator.host.pk}:cpu:cpu-x86_64"
    asked = {"place": place, "repeats": "5", "environment": "tuned", "base_environment": "default"}
    wrong = client.post(f"{address}rerun", {**asked, "knob_D": "1"})
    assert wrong.status_code == 422
    assert "1 is not within 64 to 16384" in wrong.content.decode()
    asked["new_options"] = "epilogue_fusion=off"
    answer = client.post(f"{address}rerun", {**asked, "knob_D": "512", "knob_repeat": "50"})
    assert answer.status_code == 302
    run = Run.objects.get()
    assert (run.environment, run.base_environment, run.tasks.count()) == ("tuned", "default", 5)
    task = run.tasks.first()
    assert task
    assert task.spec["knobs"] == {"D": [512], "repeat": 50}
    assert run.new_options == {"epilogue_fusion": False}
    text = client.get(f"/runs/{run.pk}/").content.decode()
    assert "tuned with epilogue_fusion=off against default" in text


@pytest.mark.django_db
def test_what_is_tried_out_is_not_the_newest_value() -> None:
    nightly = create_measurement(value=100.0)
    tried = create_run(environment="tuned", base_environment="default")
    create_measurement(value=50.0, run=tried, process=1)
    assert values.latest([nightly.series_id])[nightly.series_id].median == 100.0
    Measurement.objects.filter(run=nightly.run).delete()
    assert values.latest([nightly.series_id])[nightly.series_id].median == 50.0
