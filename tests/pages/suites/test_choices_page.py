"""The choice ledger of stored compilations: page, data, API and command, by what an H200 measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.ingest import ingest
from hud.judging import compilations
from hud.models import Compilation, Point, Stream
from runner.__main__ import main
from runner.formats.parameters import Parameters
from runner.launch.ledger import ChoiceFile
from runner.schema.compilations import kernels_in
from tests.support import servers
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import create_environment, create_experiment, create_run
from tests.support.pages import page_of

SAMPLES = Path(__file__).parents[3] / "hud" / "samples" / "runner-h200-compilations"
STATEMENTS = 7  # one of them finds the streams
KEY: dict[str, Any] = {"name": "ci", "scopes": ["read", "upload"], "who": "t"}


def ingest_samples(*cards: str, faster: float = 1.0) -> None:
    """Store the compilations of both models, which one card measured, as if each of these cards had, the
    kernels of gather_gemv so many times as fast."""
    key = create_key(**KEY)[0]
    for name, suite in (("gather_gemv", "micro"), ("mobilenetv2", "timm")):
        for card in cards:
            records = orjson.loads((SAMPLES / f"{name}.json").read_bytes())
            for record in records:
                record["runners"][0]["extra_info"]["gpu_uuid"] = card
            for one in kernels_in(records) if name == "gather_gemv" else ():
                cast("dict[str, Any]", one)["time_us"] /= faster
            about = {"suite": suite, "run_id": f"{name}-{card}", "stream": "lab"}
            ingest(orjson.dumps(records), Parameters.parse(about), key=key)
    Stream.objects.filter(is_front=True).update(is_front=False)
    Stream.objects.filter(name="lab").update(is_front=True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("faster", "proven"), [(1.5, {"gather_gemv", "mobilenetv2_100"}), (50, {"mobilenetv2_100"})]
)
def test_impossible_times_prove_no_choice(client: Client, faster: float, proven: set[str]) -> None:
    ingest_samples("GPU-1", "GPU-2", faster=faster)
    found = client.get("/choices.json").json()
    assert {line["case"] for line in found["items"] if line["proven"]} == proven
    compilations.process_pending()
    of_history = Point.objects.filter(series__metric__name__in=("autotune_regret", "same_choice_ratio"))
    assert {*of_history.values_list("series__experiment__case", flat=True)} == proven


def by_case(answer: dict[str, Any]) -> dict[str, Any]:
    return {line["case"]: line for line in answer["items"]}


@pytest.mark.django_db
def test_one_card_proves_nothing(client: Client) -> None:
    ingest_samples("GPU-1")
    found = client.get("/choices.json").json()
    assert (found["arch"], found["torch"], found["triton"]) == ("h200", "2.11.0+cu130", "3.6.0")
    gemv = by_case(found)["gather_gemv"]
    assert (gemv["compilations"], gemv["cost"], gemv["proven"], gemv["slots"]) == (10, None, 0, 1)
    assert "No choice is" in page_of(client, "/choices/")


@pytest.mark.django_db
def test_what_two_cards_prove_costs_and_returns_what_the_samples_say(client: Client) -> None:
    ingest_samples("GPU-1", "GPU-2")
    found = client.get("/choices.json").json()
    gemv, mobilenet = (by_case(found)[case] for case in ("gather_gemv", "mobilenetv2_100"))
    assert (gemv["compilations"], mobilenet["compilations"]) == (20, 10)
    assert gemv["cost"] == pytest.approx(0.220, abs=0.001)  # 11.98 of 15.37 µs
    assert gemv["returns"] == pytest.approx(0.103, abs=0.02)
    assert mobilenet["cost"] == pytest.approx(0.056, abs=0.001)
    assert mobilenet["returns"] == pytest.approx(0.036, abs=0.01)
    (slot,) = (row for row in found["slots"] if row["experiment"] == gemv["experiment"])
    best = next(choice for choice in slot["choices"] if choice["choice"] == slot["best"])
    assert (best["elected"], best["cards"], best["runs"], best["proven_by"]) == (4, 2, 2, "cards")
    assert best["time_us"] == pytest.approx(11.98, abs=0.02)
    assert slot["config"] == best["config"] != ""
    stored = orjson.loads((SAMPLES / "gather_gemv.json").read_bytes())
    binaries = {one["config"]: one["binary"] for one in kernels_in(stored) if one["slot"] == slot["slot"]}
    assert slot["binary"] == binaries[best["config"]]
    assert slot["candidates"] == 12
    fastest = min(slot["choices"], key=lambda choice: choice["time_us"])
    assert (fastest["time_us"], fastest["proven_by"]) == (pytest.approx(11.52), "")
    text = page_of(client, "/choices/")
    assert "Slots of gather_gemv" in text
    shown = page_of(client, f"/choices/?experiment={mobilenet['experiment']}")
    assert "Slots of mobilenetv2_100 <small>19 of 19 proven" in shown
    assert client.get("/choices.csv").content.count(b"\n") == 3
    assert client.get("/api/v1/choices?arch=h200").json() == found
    assert client.get("/api/v1/choices?arch=b200").json()["items"] == []
    assert by_case(client.get("/choices.json?suite=timm").json()).keys() == {"mobilenetv2_100"}


@pytest.mark.django_db
def test_forced_processes_of_pairs_prove_and_another_stream_does_not(client: Client) -> None:
    model, card = create_experiment(case="model", knobs={}), create_environment(gpu_uuid="GPU-1")
    Stream.objects.update_or_create(name="import", defaults={"is_front": True})
    run = create_run()
    for repeat in range(12):
        config = f"XBLOCK={repeat % 2}"
        own = compiled(kernel("mm", 10.0 + 2 * (repeat % 2), config=config), kernel("still", 5.0))
        store(own, experiment=model, run=run, repeat=repeat, environment=card)
    for place in ({"run": create_run(stream=Stream.objects.create(name="laptop"))}, {"run": create_run()}):
        assert client.get("/choices.json").json()["items"][0]["cost"] is None
        for draw in range(3):
            forced = compiled(kernel("mm", 9.0, config="XBLOCK=9"), kernel("still", 5.0))
            more: dict[str, Any] = {"experiment": model, "environment": card, "draw": draw, **place}
            store(forced, repeat=1000 + draw, **more)
    found = client.get("/choices.json").json()
    (line,), (slot, alike) = found["items"], found["slots"]
    assert (line["compilations"], line["cost"]) == (12, pytest.approx(2 / 16))
    assert (line["slots"], line["proven"]) == (1, 1)
    assert (alike["kernel"], len(alike["choices"]), alike["best"] is None) == ("still", 1, False)
    assert "still" not in page_of(client, "/choices/")
    assert [(one["config"], one["proven_by"]) for one in slot["choices"]] == [
        ("XBLOCK=9", "pairs"),
        ("XBLOCK=0", ""),
        ("XBLOCK=1", ""),
    ]
    Compilation.objects.filter(draw=0).update(unpinned=[slot["slot"]])
    assert client.get("/choices.json").json()["items"][0]["cost"] is None


@pytest.mark.django_db
def test_a_process_with_proven_choices_elects_none(client: Client) -> None:
    records = orjson.loads((SAMPLES / "gather_gemv.json").read_bytes())
    for record in records:
        if compiled_fact := record["metric"].get("extra_info", {}).get("compiled"):
            compiled_fact["forced"] = 1
    about = {"suite": "micro", "run_id": "ledger", "stream": "lab"}
    ingest(orjson.dumps(records), Parameters.parse(about), key=create_key(**KEY)[0])
    assert Compilation.objects.filter(unpinned=[], uncounted=False).count() == 10
    assert client.get("/choices.json?stream=lab").json()["items"] == []
    exported = client.get("/api/v1/export?stream=lab&format=v3").getvalue()
    assert b'"forced":' in exported


@pytest.mark.django_db
@pytest.mark.parametrize("models", [1, 4])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, models: int
) -> None:
    Stream.objects.update_or_create(name="import", defaults={"is_front": True})
    for case in range(models):
        model = create_experiment(case=f"model {case}")
        for repeat in range(12):
            own = compiled(kernel("mm", 10.0, config=f"XBLOCK={repeat % 2}"))
            store(own, experiment=model, repeat=repeat)
    with django_assert_num_queries(STATEMENTS):
        client.get("/choices/?stream=import")


def test_the_command_writes_what_the_api_says(
    live_hud: servers.Hud, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest_samples("GPU-1", "GPU-2")
    secret = create_key(**{**KEY, "name": "export"})[1]
    arguments = ["choices", "export", "--arch", "h200", "--hud", live_hud.url, "--key", secret]
    assert main(arguments) == 0
    written = json.loads(capsys.readouterr().out)
    assert written == client.get("/api/v1/choices?arch=h200").json()
    assert [slot["best"] for slot in written["slots"]].count(None) < len(written["slots"])
    gemv = by_case(written)["gather_gemv"]
    own, proven = ChoiceFile.from_json(written).experiments[0]
    assert (own["case"], own["knobs"], len(proven.configs)) == ("gather_gemv", gemv["knobs"], 1)
    assert main([*arguments, "--stream", "nowhere"]) == 2
