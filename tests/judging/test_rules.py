"""Rules of operators: what they match, what the judge makes of them, and what they would have flagged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.judging.regressions.events import apply, record
from hud.judging.regressions.look_back import look_back
from hud.judging.rules import write
from hud.judging.rules.preview import preview
from hud.judging.rules.thresholds import Thresholds
from hud.models import (
    Audit,
    Metric,
    Point,
    Regression,
    RegressionEvent,
    Series,
    SeriesState,
    Stream,
    Target,
    Threshold,
)
from hud.pages.funnel import view as funnel
from hud.problems import Problem
from hud.states.regressions import Event
from runner.formats.parameters import Parameters
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_metric,
    create_regression,
    create_run,
    create_user,
)
from tests.support.judgements import verdicts
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
QUIET = [2500.0 + 5 * (day % 3) for day in range(20)]
STEP = [*QUIET, 2200.0, 2200.0, 2200.0]


def nights(*values: float, first: int = 0, metric: str = "memory_bandwidth(GB/s)", **over: Any) -> None:
    for day, value in enumerate(values, first):
        record = v3_record(metric, [value], timestamp=1_700_000_000 + day * 86_400, **over)
        ingest(as_list(record), Parameters(driver="580.1"))
    judge()


def judge() -> None:
    while process_pending():
        pass


def test_each_setting_comes_from_the_row_that_names_the_most() -> None:
    rows = [
        Threshold(pk=1, relative=0.5, judged=True),
        Threshold(pk=2, suite="micro", arch="h200", relative=0.1),
        Threshold(pk=3, suite="micro", minimum=7.0, relative=0.2),
        Threshold(pk=4, metric="speedup", case="gemv", backend="inductor", judged=False),
        Threshold(pk=5, suite="timm", relative=0.9),
    ]
    found = Thresholds(rows).of(create_experiment(), create_metric())
    assert (found.relative_floor, found.absolute_floor, found.judged) == (0.1, 7.0, True)
    assert found.small_step == 0.1
    gemv = Thresholds(rows).of(create_experiment(case="gemv"), create_metric("speedup"))
    assert gemv.judged is False
    by_default = Thresholds([]).of(create_experiment(), create_metric())
    assert (by_default.relative_floor, by_default.judged, by_default.small_step) == (0.02, None, 0.01)
    floors = {"compiled_latency_ms": 0.02, "cold_compile_s": 0.05, "compile_time_instruction_count": 0.015}
    for name, floor in floors.items():
        assert Thresholds([]).of(create_experiment(), create_metric(name)).relative_floor == pytest.approx(
            floor
        )


def test_a_saved_threshold_judges_what_it_touches_again_and_its_deletion_too() -> None:
    nights(*STEP)
    assert Regression.objects.get().state == "open"
    other = Threshold(case="another", judged=False)
    write.save(other, who="olga")
    assert not Series.objects.filter(touched_at__isnull=False).exists()
    rule = Threshold(metric="memory_bandwidth(GB/s)", relative=0.2)
    write.save(rule, who="olga")
    judge()
    assert "regressed" not in verdicts()
    assert Regression.objects.get().state == "resolved"
    rule.relative, rule.judged = None, False
    write.save(rule, who="olga")
    judge()
    state = SeriesState.objects.get()
    assert not state.headline
    newest = Point.objects.latest("order_time")
    assert (newest.verdict, newest.verdict_reason) == ("unchanged", "not_judged")
    look_back()
    assert Regression.objects.get().state == "resolved"
    write.delete(rule, who="olga")
    judge()
    assert Regression.objects.get().state == "open"
    assert list(
        Audit.objects.filter(action__startswith="rule").order_by("pk").values_list("action", flat=True)
    ) == [
        "rule.create",
        "rule.create",
        "rule.change",
        "rule.delete",
    ]
    with pytest.raises(Problem):
        write.save(Threshold(case="another", judged=True), who="olga")


def test_an_operator_says_what_an_unknown_metric_means_and_its_history_is_judged() -> None:
    receipt = ingest(as_list(v3_record("tokens_wasted", [1.0], timestamp=1_690_000_000)), Parameters())
    assert len([warning for warning in receipt.warnings if "tokens_wasted" in warning]) == 1
    assert "/rules/" in receipt.warnings[-1]
    nights(*[100.0 + day % 2 for day in range(15)], 130, 130, 130, metric="tokens_wasted")
    assert not Regression.objects.exists()
    metric = write.metric_of("tokens_wasted")
    metric.unit, metric.direction = "token", "down"
    found = preview(metric)
    assert (found.count, found.today) == (1, 0)
    write.save(metric, who="olga")
    judge()
    assert Regression.objects.get().series.metric.unit == "token"
    silent = ingest(as_list(v3_record("tokens_wasted", [3.0], timestamp=1_690_900_000)), Parameters())
    assert not any("tokens_wasted" in warning for warning in silent.warnings)
    metric.direction = "none"
    write.save(metric, who="olga")
    judge()
    assert Regression.objects.get().state == "resolved"
    known = write.metric_of("speedup")
    with pytest.raises(Problem):
        write.save(known, who="olga")


@pytest.mark.parametrize(
    ("metric", "about", "beside", "opens"),
    [
        ("latency", {}, "", True),
        ("prefill tflops", {}, "", True),
        ("my_step", {"unit": "ms", "direction": "down"}, "", True),
        ("my_step", {"unit": "ms"}, "", False),  # nobody says which way is worse
        ("latency", {}, "accuracy_ratio", True),
        ("latency", {}, "token_per_sec", False),  # which tells how fast it runs
        ("eager_latency_ms", {}, "", False),  # of what no compiler made
    ],
)
def test_the_own_metric_of_a_benchmark_opens_regressions_where_it_is_alone(
    metric: str, about: dict[str, str], beside: str, opens: bool
) -> None:
    up = metric.endswith("tflops")
    for day, slower in enumerate([1.0, 1.01, 0.99] * 6 + [1.3] * 3):
        own = {"name": metric, "benchmark_values": [1 / slower if up else slower], "extra_info": about}
        records = [{**v3_record(timestamp=1_700_000_000 + day * 86_400), "metric": own}]
        if beside:
            records.append({**records[0], "metric": {"name": beside, "benchmark_values": [1.0]}})
        for one in records:
            one["benchmark"] = {**one["benchmark"], "name": "acme nightly"}
        ingest(as_list(*records), Parameters(driver="580.1"))
    judge()
    found = [one.series.metric.name for one in Regression.objects.select_related("series__metric")]
    assert found == ([metric] if opens else [])


def test_a_preview_counts_and_writes_nothing() -> None:
    nights(*STEP)
    nights(*QUIET, 2380, 2380, 2380, case="gemv")
    before = (Threshold.objects.count(), list(Series.objects.values_list("touched_at", flat=True)))
    found = preview(Threshold(relative=0.1))
    assert (found.count, found.today, found.matching) == (1, 2, 2)
    assert found.flags[0].series.experiment.case == "layer_norm"
    assert found.flags[0].change == pytest.approx(-0.12, abs=0.01)
    assert preview(Threshold(relative=0.3)).count == 0
    assert preview(Threshold(suite="nowhere", judged=True)).until is None
    assert before == (0, list(Series.objects.values_list("touched_at", flat=True)))


def test_the_page_previews_saves_changes_and_deletes(client: Client) -> None:
    nights(*STEP)
    client.force_login(create_user())
    given = {"metric": "memory_bandwidth(GB/s)", "arch": "h200", "value": "2300", "note": "agreed"}
    shown = client.post("/rules/target", {**given, "preview": "1"})
    assert shown.status_code == 200
    assert shown.context["preview"].count == 3
    assert not Target.objects.exists()
    assert client.post("/rules/target", given).status_code == 302
    target = Target.objects.get()
    assert client.post("/rules/target", given).status_code == 422, "one rule for the same"
    assert client.get(f"/rules/?edit=target-{target.pk}").context["editing"] == target
    client.post(f"/rules/target/{target.pk}", {**given, "value": "", "share": "0.5", "suite": "micro"})
    target.refresh_from_db()
    assert (target.value, target.fraction, target.suite) == (None, 0.5, "micro")
    assert client.post("/rules/threshold", {"metric": "speedup"}).status_code == 422, "it says nothing"
    assert client.post("/rules/threshold", {"relative": "3", "judged": "no"}).status_code == 302
    assert Threshold.objects.get().relative == pytest.approx(0.03)
    assert client.post("/rules/metric", {"metric": "speedup", "direction": "up"}).status_code == 422
    shown = client.post("/rules/metric", {"metric": "new", "direction": "up", "preview": "1"})
    assert shown.status_code == 200
    assert not Metric.objects.filter(name="new").exists()
    client.post("/rules/metric", {"metric": "new", "unit": "ms", "direction": "down"})
    rows = client.get("/rules.json").json()["items"]
    assert [(row["kind"], row["metric"]) for row in rows] == [
        ("target", "memory_bandwidth(GB/s)"),
        ("threshold", ""),
        ("metric", "new"),
    ]
    assert client.get("/rules/").status_code == 200
    client.post(f"/rules/target/{target.pk}/delete")
    assert not Target.objects.exists()


def test_put_makes_the_lists_that_it_names_and_the_same_again_changes_nothing(client: Client) -> None:
    def put(body: Any) -> Any:
        key = {"authorization": f"Bearer {secret}"}
        return client.put("/api/v1/rules", body, content_type="application/json", headers=key)

    secret = create_key(name="ci", scopes=["rules"], who="t")[1]
    rules = {
        "targets": [{"metric": "speedup", "suite": "timm", "value": 1.5}],
        "thresholds": [{"relative": 0.05}, {"metric": "speedup", "judged": False, "note": "noisy"}],
        "metrics": [{"metric": "odd", "unit": "ms", "direction": "down"}],
    }
    stored = put(rules).json()
    lines = Audit.objects.filter(action__startswith="rule.").count()
    assert put(rules).json() == stored == client.get("/api/v1/rules").json()
    assert put(stored).json() == stored, "what GET says can be PUT"
    assert Audit.objects.filter(action__startswith="rule.").count() == lines == 4
    answer = put({"thresholds": [], "metrics": []}).json()
    assert (len(answer["targets"]), answer["thresholds"], answer["metrics"]) == (1, [], [])
    assert Metric.objects.get(name="odd").direction == "none"
    wrong = put({"targets": [], "thresholds": [{"relative": 0.1}, {"metric": "speedup"}]})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/thresholds/1/relative")
    assert Target.objects.count() == 1, "all or nothing"
    assert put({"targets": [{"metric": "speedup", "value": 1}] * 2}).status_code == 422


def test_the_funnel_counts_by_week(client: Client) -> None:
    nights(*STEP)
    noise, alarm, real = (
        create_regression(create_measurement(create_experiment(case=case)), state="suspect")
        for case in ("noise", "alarm", "real")
    )
    for one in (noise, alarm, real):
        record(one, "")
    apply(noise, Event.DISAGREED)
    for one, event in ((alarm, Event.NOT_REPRODUCED), (real, Event.CONFIRMED_BY_PAIRS)):
        apply(one, Event.AGREED)
        apply(one, event)
    apply(real, Event.ACCEPT, who="olga")
    foreign = create_run(stream=Stream.objects.create(name="laptop"))
    record(create_regression(create_measurement(run=foreign), state="suspect"), "")
    week = funnel.read(real.series.stream, timezone.now())[0]
    assert (week.points, week.suspects, week.noise, week.opened) == (len(STEP) + 3, 4, 1, 3)
    assert (week.confirmed, week.dismissed, week.accepted, week.false_alarms) == (1, 1, 1, 0.5)
    RegressionEvent.objects.filter(regression=alarm).update(at=timezone.now() - timedelta(days=21))
    (row, *older) = client.get("/funnel.json").json()["items"]
    assert (row["opened"], row["false_alarm_rate"]) == (2, 0.0)
    assert older[2]["false_alarm_rate"] == 1.0
    assert client.get("/funnel/").status_code == 200
    (row, *_older) = client.get("/funnel.json?stream=laptop").json()["items"]
    assert (row["points"], row["suspects"]) == (1, 1)


def test_a_rule_takes_a_metrics_title_for_its_name_and_refuses_what_none_has() -> None:
    metric = create_metric("memory_bandwidth(GB/s)")
    matched = {"suite": "", "case": "", "backend": "", "arch": "h200", "note": ""}
    asked = {**matched, "dtype": "", "size": "", "value": 950.0, "share": None}
    target = write.rule_of(Target, {**asked, "metric": metric.title.upper()})
    assert isinstance(target, Target)
    assert target.metric == metric
    threshold = write.rule_of(Threshold, {**matched, "relative": 0.1, "metric": metric.title})
    assert isinstance(threshold, Threshold)
    assert threshold.metric == metric.name
    with pytest.raises(Problem):
        write.rule_of(Target, {**asked, "metric": "Bandwidht"})
    assert not Metric.objects.filter(name="Bandwidht").exists()


def test_an_address_fills_the_form_of_a_target(client: Client) -> None:
    client.force_login(create_user())
    point = create_measurement(metric="device_speedup")
    back = f"/experiments/{point.series.experiment_id}/?metric=device_speedup"
    page = client.get("/rules/", {"kind": "target", "metric": "device_speedup", "arch": "h200", "back": back})
    form = page.context["forms"]["target"]
    assert (form["metric"].value(), form["arch"].value()) == (point.series.metric.title, "h200")
    asked = {name: form[name].value() or "" for name in form.fields}
    asked |= {"value": "2", "back": page.context["back"]}
    saved = client.post("/rules/target", asked, follow=True)
    assert saved.redirect_chain == [(back, 302)]
    assert "1 series" in saved.text
    elsewhere = client.post("/rules/target", {**asked, "arch": "b200", "back": "//elsewhere.example/"})
    assert elsewhere["Location"] == "/rules/"
