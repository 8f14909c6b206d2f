"""docs/judging.md says each number of a rule; the rule has that number, and none is changed unnoticed."""

from __future__ import annotations

import importlib
from datetime import timedelta

import pytest

from runner.schema.metrics import METRICS
from runner.schema.statistics import MAD_TO_SD
from tests.support.servers import ROOT

REGRESSIONS = "hud.judging.regressions"
# module, constant, value, and how the guide says it
RULES = [
    ("hud.judging.levels", "_BACK", 3, "three points or more in a row are back at the level"),
    ("hud.judging.levels", "_SURE", pytest.approx(20.723, abs=0.001), "a billion times likelier there"),
    ("hud.judging.levels", "_STAYS", 3, "three points in a row are better"),
    ("hud.judging.levels", "_EACH", 50, "after every\n50 points"),
    ("hud.judging.levels", "_MARKS", 5, "each of the last five levels"),
    ("hud.judging.levels", "_AGREE", 2, "until a second run agrees"),
    ("hud.judging.levels", "_RUNS", 2, "or all from one run"),
    ("hud.judging.levels", "_OF_CARD", 5, "five points of a card"),
    ("hud.judging.levels", "_OF_INTERVAL", 3.0, "three half 95 % intervals"),
    ("hud.judging.levels", "_TOLD", 20, "up to 20 of its points"),
    ("hud.judging.levels", "KEPT", 100, "up to 100 earlier points"),
    ("hud.judging.verdict", "_NOISE_WINDOW", 100, "up to 100 earlier points"),
    ("hud.judging.verdict", "_SHORT", 8, "fewer than 8 earlier values"),
    ("hud.judging.verdict", "FEWEST", 5, "fewer than five earlier compilations"),
    ("hud.judging.verdict", "_EXACT_P", 0.001, "p at most 0.001"),
    ("hud.judging.verdict", "_VARIANT_NOISE", 0.005, "at least 0.5 %"),
    ("hud.judging.rules.thresholds", "LEAST_CHANGE", 0.02, "| times, rates, speedups | 2 % |"),
    ("hud.judging.rules.thresholds", "LEAST_REGRET", 0.01, "by 1 % of the time"),
    ("hud.judging.verdict", "SMALL_STEP", 0.01, "steps of 1 %"),
    ("hud.judging.rules.preview", "NIGHTS", 60, "the last 60 nights"),
    ("hud.judging.rules.preview", "MOST_SERIES", 100, "for the 100 series"),
    (f"{REGRESSIONS}.moves", "_BEFORE", 10, "in the ten points before it"),
    (f"{REGRESSIONS}.moves", "_FEWEST", 20, "at least 20 earlier points"),
    (f"{REGRESSIONS}.look_back", "MOST_POINTS", 200, "older than the 200"),
    (f"{REGRESSIONS}.canaries", "_MODELS", 3, "the three models with the least noise"),
    (f"{REGRESSIONS}.canaries", "_MOST", 2, "two of the three\nmodels"),
    (f"{REGRESSIONS}.canaries", "_NIGHT", timedelta(hours=24), "within 24 hours"),
    (f"{REGRESSIONS}.groups", "_MOST_OF_RUN", 0.5, "at least half of what it measured"),
    (f"{REGRESSIONS}.confirm", "_EXPIRE_HOURS", 24, "within 24 hours expires"),
    ("hud.judging.comparison", "MOST_PLANNED", 6, "at most 6 a side"),
    ("hud.states.bisect", "MOST_ATTEMPTS", 3, "up to three times"),
    ("hud.states.bisect", "MOST_FAILURES", 2, "fails twice"),
    ("hud.judging.kernels.attribution", "RELATIVE_NOISE", 0.005, "the noise: 0.5 %"),
    ("hud.judging.kernels.attribution", "NOISE_US_PER_CALL", 0.3, "at least 0.3 µs a call"),
    ("hud.judging.kernels.attribution", "OTHER_CARD_NOISE", 0.02, "2 % between cards"),
    ("hud.judging.kernels.attribution", "LEAST_SHARED", 10, "fewer than 10 shared kernels"),
    ("hud.judging.kernels.attribution", "MOST_OF_CHANGE", 0.1, "within 10 % of the change"),
    ("hud.judging.kernels.attribution", "MOST_OF_BUSY", 0.003, "or 0.3 % of the busy time"),
    ("hud.points.write", "_FEW_KERNELS", 8, "known and at most eight"),
    ("hud.judging.choices", "LEAST_COVERAGE", 0.7, "at least 70 % of its time"),
    ("hud.judging.choices", "LEAST_COMPILATIONS", 10, "ten compilations"),
    ("hud.judging.choices", "_RARE", 0.1, "more than a tenth"),
    ("hud.judging.choices", "_MOST_SEEN", 20, "the first 20 compilations"),
    ("hud.judging.choices", "_ENOUGH", 20, "each side has 20 draws"),
    ("hud.judging.choices", "_ALIKE_P", 0.1, "p is above 0.1"),
    ("hud.judging.choices", "_SHUFFLES", 4000, "4,000 exchanges"),
    ("hud.points.targets", "CEILING_READINGS", 7, "latest seven readings"),
    ("runner.schema.statistics", "PAIR_FLOOR", 0.02, "within ± 2 %"),
    ("runner.schema.statistics", "PAIR_ALPHA", 0.005, "p is at most 0.005"),
    ("runner.schema.statistics", "LEAST_PAIRS", 5, "fewer than five pairs"),
    ("runner.schema.draws", "LEAST_DRAWS", 3, "fewer than three draws of a side"),
    ("runner.schema.draws", "OUTLIER", 0.05, "more than 5 % from the median"),
    ("runner.schema.draws", "LOOKS_FACTOR", 1.08, "1.08 × √(most draws ÷ draws)"),
    ("runner.schema.draws", "INTERVAL_ALPHA", 0.05, "gives the 95 % interval"),
    ("runner.schema.draws", "ASSUMED_NOISE", 0.01, "at least two; else 1 %"),
    ("runner.schema.draws", "LEAST_REPEATS", 2, "at least two; else 1 %"),
    ("runner.schema.draws", "SURE", 0.95, "confirms it in 95 %"),
    ("runner.schema.draws", "SURE_OF_NOTHING", 0.9, "dismissed\n  in 90 %"),
    ("runner.schema.draws", "FOUND", 0.03, "plans for 3 % confirmed"),
    ("runner.schema.draws", "NOTHING", 0.01, "and 1 % dismissed"),
    ("runner.schema.draws", "MOST_DRAWS", 400, "at most 400 draws"),
    ("runner.schema.records", "MOST_ERROR", 0.1, ""),  # docs/measuring.md
    ("runner.schema.records", "MOST_APART", 3.0, ""),
    ("runner.launch.pairs", "_CANDIDATES", 4, ""),  # docs/comparing.md
]


@pytest.mark.parametrize(("module", "name", "value", "words"), RULES)
def test_a_rule_has_the_number_of_its_guide(module: str, name: str, value: object, words: str) -> None:
    assert getattr(importlib.import_module(module), name) == value
    guide = (ROOT / "docs" / "judging.md").read_text()
    assert " ".join(words.split()) in " ".join(guide.split())


@pytest.mark.parametrize(
    ("metric", "limit", "prior", "words"),
    [
        ("device_latency_ms", 0.02, 0.01, "| times, rates, speedups | 2 % |"),
        ("speedup", 0.02, 0.03, "1 % up to 3 %, 3 % up to 5 %"),
        ("same_choice_ratio", 0.01, 0.005, "| `same_choice_ratio` | 1 % |"),
        ("cold_compile_s", 0.05, 0.05, "| compile time, peak memory | 5 % |"),
        ("compiled_peak_memory_bytes", 0.05, 0.05, "and a third of the floor above"),
        ("compile_time_instruction_count", 0.015, 0.01, "| instruction counts | 1.5 % |"),
    ],
)
def test_limits_and_priors_follow_from_the_floors(
    metric: str, limit: float, prior: float, words: str
) -> None:
    from hud.judging.rules.thresholds import least_change, prior_noise

    floor = METRICS[metric].floor
    assert (least_change(floor), prior_noise(floor)) == pytest.approx((limit, prior))
    assert " ".join(words.split()) in " ".join((ROOT / "docs" / "judging.md").read_text().split())


def test_the_default_rule_has_the_factors_of_its_guide() -> None:
    from hud.judging.verdict import Rule

    rule = Rule()
    assert (rule.suspect_factor, rule.noise_factor) == (2.5, 4.2)
    assert pytest.approx(1.4826) == MAD_TO_SD
