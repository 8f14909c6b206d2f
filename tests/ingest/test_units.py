"""Unit and direction of uploaded records: converted to the metric's, or refused; of a metric that nobody
knows the first record says them."""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from hud.ingest import Receipt, ingest
from hud.judging.judge import process_pending
from hud.judging.rules import write
from hud.models import Expectation, Measurement, Metric, Point
from runner.formats.errors import BadUpload
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db


def record(metric: str, value: float, unit: str = "", direction: str = "", **over: Any) -> dict[str, Any]:
    over = {"case": f"case {value}", **over}
    found = v3_record(metric, [value], **over)
    said = {"unit": unit, "direction": direction}
    del found["metric"]["target_value"]
    found["metric"]["extra_info"] = {name: word for name, word in said.items() if word}
    return found


def upload(*records: dict[str, Any], **parameters: str) -> Receipt:
    return ingest(as_lines(*records), Parameters(**parameters))


def refused(*records: dict[str, Any]) -> list[tuple[str, int | None]]:
    with pytest.raises(BadUpload) as caught:
        upload(*records)
    return [(fault.pointer, fault.line or 1) for fault in caught.value.faults]  # one object has no lines


def values(metric: str) -> list[float | None]:
    stored = Measurement.objects.filter(series__metric__name=metric)
    return list(stored.order_by("pk").values_list("value", flat=True))


def meaning(metric: str) -> tuple[str, str]:
    found = Metric.objects.get(name=metric)
    return found.unit, found.direction


UNIT, DIRECTION = "/metric/extra_info/unit", "/metric/extra_info/direction"


def test_values_samples_spread_and_target_are_in_the_unit_of_the_metric() -> None:
    said = v3_record("latency_ms", [1500, 1400, 1700])
    said["metric"] |= {"target_value": 900, "extra_info": {"unit": "us", "direction": "lower is better"}}
    receipt = upload(said)
    found = Measurement.objects.get()
    assert (found.value, found.samples, found.target) == (1.5, [1.5, 1.4, 1.7], 0.9)
    assert receipt.metrics == [
        {"name": "latency_ms", "unit": "ms", "direction": "down", "new": False, "converted_from": ["µs"]}
    ]
    plain = v3_record("latency_ms", [1.5, 1.4, 1.7], case="another")
    upload(plain)
    assert Measurement.objects.order_by("pk").last().spread == pytest.approx(found.spread)  # type: ignore[union-attr]


def test_the_unit_where_pytorch_s_operator_benchmark_writes_it() -> None:
    said = v3_record("latency", [1500.0])
    said["metric"]["unit"] = "ms"
    upload(said)
    assert values("latency") == [1.5]
    memory = v3_record("peak memory", [96.0], benchmark={"name": "PyTorch operator benchmark"})
    memory["metric"]["unit"] = "KB"
    upload(memory)
    assert values("peak memory") == [96.0]


def test_the_first_record_of_a_metric_says_its_unit_and_direction() -> None:
    assert refused(record("ww_time", 1, "s", "down"), record("ww_time", 2, "ms", "up")) == [(DIRECTION, 2)]
    assert not Metric.objects.filter(name="ww_time").exists()
    receipt = upload(record("ww_time", 1, "s", "down"), record("ww_time", 2000, "ms"), record("ww_time", 3))
    assert values("ww_time") == [1, 2, 3]
    assert meaning("ww_time") == ("s", "down")
    assert receipt.metrics == [
        {"name": "ww_time", "unit": "s", "direction": "down", "new": True, "converted_from": ["ms"]}
    ]
    assert receipt.warnings == [warning for warning in receipt.warnings if "ww_time" not in warning]
    again = upload(record("ww_time", 4000, "milliseconds"))
    assert values("ww_time")[3:] == [4]
    assert not again.metrics[0]["new"]
    assert refused(record("ww_time", 5, "MB")) == [(UNIT, 1)]


def test_partial_stores_the_others_and_a_second_time_nothing() -> None:
    records = [record("ww_time", 1, "s", "down"), record("ww_time", 2, "B"), record("ww_time", 3, "min")]
    receipt = upload(*records, partial="1")
    assert (receipt.stored, [entry["line"] for entry in receipt.skipped]) == (2, [2])
    assert "s" in receipt.skipped[0]["reason"].split()[3]
    assert values("ww_time") == [1, 180]
    again = upload(*records, partial="1")
    assert (again.stored, again.duplicates) == (0, 2)
    assert [entry["new"] for entry in again.metrics] == [False]
    with pytest.raises(BadUpload):
        upload(*records)


def test_the_registry_s_direction_holds() -> None:
    assert refused(record("speedup", 1, "", "down")) == [(DIRECTION, 1)]
    assert refused(record("speedup", 1, "furlong")) == [(UNIT, 1)]
    upload(record("num_of_calls", 1, "count", "up"))  # of which neither is better
    assert meaning("num_of_calls") == ("count", "none")


def test_a_metric_without_unit_gets_the_first_that_is_said_and_its_history_is_judged() -> None:
    first = 1_690_000_000
    nights = [record("odd", 100 + day % 2, case="a", timestamp=first + day * 86_400) for day in range(12)]
    receipt = upload(*nights)
    assert len([warning for warning in receipt.warnings if "odd" in warning]) == 1
    process_pending()
    later = {"case": "a", "timestamp": first + 20 * 86_400}
    assert not any("odd" in text for text in upload(record("odd", 0.2, "s", "down", **later)).warnings)
    assert meaning("odd") == ("s", "down")
    process_pending()
    assert Point.objects.latest("order_time").verdict == "improved"
    assert refused(record("odd", 1, "", "up")) == [(DIRECTION, 1)]


def test_a_name_may_say_the_direction_alone() -> None:
    upload(record("prefill_latency", 2, "s"))
    assert meaning("prefill_latency") == ("s", "down")
    assert refused(record("prefill_latency", 2, "", "up")) == [(DIRECTION, 1)]
    metric = Metric.objects.get(name="prefill_latency")
    metric.unit = "ms"
    write.save(metric, who="olga")
    upload(record("prefill_latency", 3, "s"))
    assert values("prefill_latency") == [2, 3000]
    write.delete(metric, who="olga")
    assert meaning("prefill_latency") == ("", "down")


def test_an_operator_s_word_holds() -> None:
    upload(record("goodput", 5, "req/s", "up"))
    metric = write.metric_of("goodput")
    assert (metric.unit, metric.direction) == ("request/s", "up")
    metric.unit, metric.direction = "ms", "none"
    write.save(metric, who="olga")
    assert refused(record("goodput", 6, "req/s")) == [(UNIT, 1)]
    receipt = upload(record("goodput", 7, "s", "up"))
    assert (values("goodput"), meaning("goodput")) == ([5, 7000], ("ms", "none"))
    assert not any("goodput" in warning for warning in receipt.warnings)


def test_expected_values_are_converted() -> None:
    said = v3_record("latency_ms", [])
    said["metric"] |= {"target_value": 1500, "extra_info": {"unit": "us", "noise_margin": 0.1}}
    own = v3_record("goodput", [])
    own["metric"] |= {"target_value": 10, "extra_info": {"direction": "up", "noise_margin": 0.1}}
    upload(said, own)
    assert dict(Expectation.objects.values_list("metric", "value")) == {
        "latency_ms": pytest.approx(1.5),
        "goodput": 10.0,
    }
    said["metric"]["extra_info"]["unit"] = "GB"
    assert refused(said) == [(UNIT, 1)]


@pytest.mark.parametrize("unit", ["ms" * 21, "m\u202es"])
def test_a_unit_that_cannot_be_stored(unit: str) -> None:
    assert refused(record("odd", 1, unit)) == [(UNIT, 1)]
    assert refused(record("speedup", 1, unit)) == [(UNIT, 1)]


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"extra_info": {"unit": 5}}, UNIT),
        ({"extra_info": {"unit": 0}}, UNIT),
        ({"extra_info": {"unit": ["ms"]}}, UNIT),
        ({"unit": 5}, "/metric/unit"),
        ({"extra_info": {"unit": "ms", "direction": "sideways"}}, DIRECTION),
        ({"extra_info": {"direction": ["up"]}}, DIRECTION),
        ({"extra_info": {"direction": False}}, DIRECTION),
    ],
)
@pytest.mark.parametrize("metric", ["latency_ms", "odd"])
def test_what_is_no_unit_or_direction_is_refused_with_its_place(
    metric: str, said: dict[str, Any], place: str
) -> None:
    wrong = record(metric, 2)
    wrong["metric"] |= said
    assert refused(record(metric, 1), wrong) == [(place, 2)]
    assert not Measurement.objects.exists()


def test_a_unit_or_direction_of_nothing_is_none() -> None:
    plain = record("odd", 1)
    plain["metric"] |= {"unit": None, "extra_info": {"unit": None, "direction": "none"}}
    upload(plain)
    assert meaning("odd") == ("", "none")


def test_the_same_rows_in_another_unit_are_duplicates() -> None:
    upload(record("latency_ms", 570, case="a"), run_id="r")
    receipt = upload(record("latency_ms", 0.57, "s", case="a"), run_id="r")
    assert (receipt.stored, receipt.duplicates) == (0, 1)


@pytest.mark.django_db(transaction=True)
def test_of_concurrent_first_uploads_one_says_the_unit() -> None:
    outcomes: list[int] = []
    start = threading.Barrier(8)

    def post(number: int) -> None:
        said = record("ww_time", 1, ["s", "ms"][number % 2], ["down", "up"][number // 4], case=str(number))
        try:
            start.wait(30)
            outcomes.append(upload(said).stored)
        except BadUpload:
            outcomes.append(0)
        finally:
            connection.close()

    threads = [threading.Thread(target=post, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == [0] * 4 + [1] * 4
    unit, direction = meaning("ww_time")
    expected = [1.0, 1000.0] if unit == "ms" else [0.001, 1.0]
    assert sorted(set(values("ww_time"))) == expected  # type: ignore[type-var]
    cases = set(Measurement.objects.values_list("series__experiment__case", flat=True))
    assert cases == ({"0", "1", "2", "3"} if direction == "down" else {"4", "5", "6", "7"})


SIZES = {
    "ns": ("time", Fraction(1, 10**9)), "us": ("time", Fraction(1, 10**6)),
    "msec": ("time", Fraction(1, 1000)), "ms": ("time", Fraction(1, 1000)),
    "seconds": ("time", Fraction(1)), "min": ("time", Fraction(60)),
    "B": ("bytes", Fraction(1)), "KB": ("bytes", Fraction(1000)), "MiB": ("bytes", Fraction(2**20)),
    "GB/s": ("rate", Fraction(10**9)), "TB/s": ("rate", Fraction(10**12)), "%": ("share", Fraction(1, 100)),
    "ratio": ("share", Fraction(1)), "furlong": ("length", Fraction(1)),
}  # fmt: skip
KNOWN = {
    "latency_ms": ("ms", "down"), "latency_us": ("us", "down"), "cold_compile_s": ("seconds", "down"),
    "peak_rss_bytes": ("B", "down"), "gbps": ("GB/s", "up"), "mfu": ("ratio", "up"), "own": ("", ""),
}  # fmt: skip
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(sorted(KNOWN)),
        st.one_of(st.just(0.0), st.floats(1e-280, 1e290)),
        st.sampled_from(["", *SIZES]),
        st.sampled_from(["", "up", "down"]),
    ),
    min_size=1,
    max_size=6,
)


class TestMeaning(TestCase):
    @settings(max_examples=60, deadline=None)
    @given(RECORDS)
    def test_a_meaning_never_changes(self, drawn: list[tuple[str, float, str, str]]) -> None:
        """Each record of an upload of its own: what is stored is the quantity that the record says."""
        known = dict(KNOWN)
        for place, (metric, value, unit, direction) in enumerate(drawn):
            first_unit, first_direction = known[metric]
            to, better = first_unit or unit, first_direction or direction
            try:
                with transaction.atomic():
                    upload(record(metric, value, unit, direction, case=str(place)), run_id=str(place))
            except BadUpload:
                other = SIZES.get(unit, ("", 0))[0] != SIZES.get(to, ("", 0))[0]
                assert (unit and other) or (direction and direction != better)
                continue
            known[metric] = to, better
            stored = Measurement.objects.get(series__experiment__case=str(place)).value
            if not unit:
                assert stored == value
                continue
            assert SIZES[unit][0] == SIZES[to][0]
            assert stored is not None
            exact = Fraction(value) * SIZES[unit][1] / SIZES[to][1]
            assert abs(Fraction(stored) - exact) <= exact / 2**51
            assert meaning(metric)[1] == (better or "none")
