"""What a host measures without a compiler tells its moves from those of the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.judging.regressions import read
from hud.judging.regressions.canaries import Canary, check
from hud.judging.regressions.groups import make_causes
from hud.models import IMPORT, Regression, Stream
from hud.states.regressions import Canaries
from runner.formats.parameters import Parameters
from tests.support.records import as_list, v3_record

MODELS = ("bert", "gpt2", "resnet", "unet")


def eager(name: str, *, moved: bool, noise: float = 0.01) -> Canary:
    return Canary(name, False, moved, -0.08 if moved else 0.0, noise)


def test_a_host_moved_where_a_ceiling_or_most_of_the_quietest_models_did() -> None:
    quiet = [eager(name, moved=False) for name in "abc"]
    copy = Canary("copy", True, True, -0.08)
    assert check([copy, *quiet]) == (Canaries.MOVED, copy)
    assert check(quiet)[0] == Canaries.QUIET
    assert check(quiet[:2])[0] == Canaries.UNKNOWN
    one = [eager("a", moved=True), *quiet[1:]]
    assert check(one)[0] == Canaries.QUIET
    two = [eager("a", moved=True), eager("b", moved=True), *quiet[2:]]
    assert check(two)[0] == Canaries.MOVED
    noisy = [eager(f"noisy {name}", moved=True, noise=0.1) for name in "abcd"]
    assert check([*quiet, *noisy])[0] == Canaries.QUIET


def night(day: int, *, copy: float, eager: float, compiled: Sequence[float], host: str = "h200-a") -> None:
    """A night of a host: its copy bandwidth, and all models with one factor of eager time and one each of
    compile time."""

    def record(suite: str, name: str, metric: str, value: float, backend: str) -> dict[str, Any]:
        return v3_record(
            metric,
            [value * (1 + 0.002 * ((day + len(name)) % 3))],
            benchmark={
                "name": f"Compiler HUD {suite}",
                "mode": "inference",
                "dtype": "bfloat16",
                "extra_info": {"device": "cuda", "arch": "NVIDIA H200"},
            },
            model={"name": name, "backend": backend, "origins": [suite]},
            runners=[{"name": host, "gpu_info": "NVIDIA H200"}],
            timestamp=1_700_000_000 + day * 86_400,
        )

    records = [record("ceilings", "copy", "device_bandwidth_gbps", 4200 * copy, "eager")]
    for model, factor in zip(MODELS, compiled, strict=True):
        records += [
            record("huggingface", model, "eager_latency_ms", 10 * eager, "inductor"),
            record("huggingface", model, "compiled_latency_ms", 5 * factor, "inductor"),
        ]
    ingest(as_list(*records), Parameters(driver="580.1"))
    while process_pending():
        pass


@pytest.mark.django_db
def test_a_move_of_the_whole_host_is_one_group_with_its_canary() -> None:
    for day in range(12):
        night(day, copy=1, eager=1, compiled=[1] * 4)
    for day in (12, 13):
        night(day, copy=1 / 1.08, eager=1.08, compiled=[1.15] * 4)
    assert set(Regression.objects.values_list("canaries", flat=True)) == {"moved"}
    assert make_causes() == 5
    (cause,) = read.waiting(read.Scope(Stream.objects.get(name=IMPORT)))
    assert cause.why == "host"
    assert cause.experiments == 5
    assert "h200-a" in cause.words
    assert "copy" in cause.words
    night(14, copy=1, eager=1, compiled=[1.15] * 4)  # the host is back, the models are not
    slow = Regression.objects.filter(series__metric__name="compiled_latency_ms")
    assert set(slow.values_list("canaries", flat=True)) == {"quiet"}
    assert make_causes() == 0
    (cause,) = read.waiting(read.Scope(Stream.objects.get(name=IMPORT)))
    assert (cause.why, cause.experiments) == ("backend", 5), "a cause never splits, but says what it is now"


@pytest.mark.django_db
def test_what_the_compiler_did_on_a_quiet_host_stays_its_own() -> None:
    for day in range(12):
        night(day, copy=1, eager=1, compiled=[1] * 4)
    for day in (12, 13):
        night(day, copy=1, eager=1, compiled=[1.15] * 4)
    assert set(Regression.objects.values_list("canaries", flat=True)) == {"quiet"}
    make_causes()
    assert [cause.why for cause in read.waiting(read.Scope(Stream.objects.get(name=IMPORT)))] == ["backend"]


@pytest.mark.django_db
def test_a_speedup_that_fell_because_eager_got_faster_says_so() -> None:
    def speedups(day: int, eager: float, compiled: float) -> None:
        times = {"eager_latency_ms": eager, "compiled_latency_ms": compiled, "speedup": eager / compiled}
        small = 1 + 0.002 * (day % 3)
        records = [
            v3_record(name, [value * small], timestamp=1_700_000_000 + day * 86_400)
            for name, value in times.items()
        ]
        ingest(as_list(*records), Parameters(driver="580.1"))
        while process_pending():
            pass

    for day in range(12):
        speedups(day, 10, 5)
    for day in (12, 13):
        speedups(day, 8.5, 5)
    one = Regression.objects.get(series__metric__name="speedup")
    assert "eager" in one.cause
    for day in (14, 15):
        speedups(day, 8.5, 6)
    assert "eager" in Regression.objects.get(series__metric__name="speedup").cause
    compiled = Regression.objects.get(series__metric__name="compiled_latency_ms")
    assert compiled.cause == ""
