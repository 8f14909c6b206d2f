"""Simulate A/B comparisons from stored compilations: how often a procedure confirms and dismisses a change.

`python -m tests.judging.simulation` writes the tables of `docs/comparing.md` anew.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hud.judging.pairs import KernelComparison, compare_kernels
from runner.schema.compilations import Kernels, TimedChoice, draw_obstacle
from runner.schema.draws import (
    ASSUMED_NOISE,
    ChoiceNoise,
    Draw,
    Side,
    choice_noise,
    code_change,
    detects_percent,
    draws_to_decide,
    enough,
    outliers,
)
from runner.schema.statistics import median, paired_change

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "comparing.md"
SAMPLES = ROOT / "hud" / "samples"
EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
PLANS = (3, 5)  # draws of each side
RUNS = 400  # of each cell in the guide
SIZES = (1024, 8192, 16384)  # of layer_norm beside 4096
FEWEST_REPEATED = 6  # processes that repeat a choice, from which a noise counts as known
_OWNERS: tuple[Side, Side] = ("base", "new")
NOISES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # of the guide's table of power

Compilation = dict[str, tuple[str, float]]  # choice and µs by slot


@dataclass(frozen=True)
class Case:
    """Stored compilations of one program on one card, and the noise of a process at known choices by slot."""

    name: str
    compilations: tuple[Compilation, ...]
    noise: ChoiceNoise
    by_slot: dict[str, float]

    @cached_property
    def drawn(self) -> list[tuple[float, float]]:
        """Return the time in µs of each compilation, and the noise of a process with its choices."""
        found = []
        for compilation in self.compilations:
            time_us = sum(us for _choice, us in compilation.values())
            squares = sum((us * self.by_slot[slot]) ** 2 for slot, (_choice, us) in compilation.items())
            found.append((time_us, math.sqrt(squares) / time_us))
        return found

    @cached_property
    def title(self) -> str:
        percent = 100 * median([noise for _time_us, noise in self.drawn])
        return f"{self.name}, {percent:.2g} %" + (" assumed" if self.noise.assumed else "")


def case_of(
    name: str,
    compilations: Sequence[Compilation],
    *,
    repeats: Sequence[Compilation] = (),
    noise: ChoiceNoise | None = None,
) -> Case:
    """Return the case with the noise of each slot from choices that came twice; with that of all slots, or an
    assumed one, where they are too few. `repeats` are further processes on the same card; `noise` is known
    from others."""
    slots: dict[str, dict[str, list[float]]] = {}
    for compilation in (*compilations, *repeats):
        for slot, (choice, us) in compilation.items():
            slots.setdefault(slot, {}).setdefault(choice, []).append(us)
    pooled = choice_noise([values for choices in slots.values() for values in choices.values()])
    if noise is not None:
        return Case(name, tuple(compilations), noise, dict.fromkeys(slots, noise.noise))
    if pooled.processes < FEWEST_REPEATED:
        pooled = ChoiceNoise(ASSUMED_NOISE)
    by_slot = {}
    for slot, choices in slots.items():
        own = choice_noise(choices.values())
        is_known = not pooled.assumed and own.processes >= FEWEST_REPEATED
        by_slot[slot] = own.noise if is_known else pooled.noise
    return Case(name, tuple(compilations), pooled, by_slot)


def stored(path: str) -> list[Compilation]:
    """Return the kernels of the compilations in a file of samples."""
    body = (SAMPLES / path).read_bytes()
    records = json.loads(gzip.decompress(body) if path.endswith(".gz") else body)
    compiled = [
        record["metric"]["extra_info"]["compiled"]
        for record in records
        if record["metric"]["name"] == "kernel_count"
    ]
    return [{one["slot"]: (one["choice"], one["time_us"]) for one in each["kernels"]} for each in compiled]


def layer_norm(size: int) -> list[Compilation]:
    """Return the one kernel of this size in four processes, which had the same choice."""
    found: list[Compilation] = []
    for number in range(1, 5):
        for line in (SAMPLES / f"runner-h200/layer_norm-{number}.json").read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            is_own = record["benchmark"]["extra_info"]["knobs"]["D"] == size
            if record["metric"]["name"] == "device_latency_ms" and is_own:
                found.append({f"D={size}": ("only", 1e3 * median(record["metric"]["benchmark_values"]))})
    return found


def cases() -> list[Case]:
    gemv = stored("runner-h200-compilations/gather_gemv.json")
    return [
        case_of("MobileNetV2", stored("runner-h200-kernels/mobilenetv2.json.gz")),
        case_of("DistillGPT2", stored("runner-h200-kernels/distilgpt2.json.gz")),
        case_of("layer_norm", layer_norm(4096), repeats=[one for d in SIZES for one in layer_norm(d)]),
        case_of("gather_gemv", gemv, noise=noise_at_equal_choices()),
    ]


def noise_at_equal_choices() -> ChoiceNoise:
    """Return the noise of processes of gather_gemv with the same choices, in two A/B runs of equal sides on
    two cards: the free process and both pinned ones of each draw."""
    runs = json.loads((ROOT / "tests" / "judging" / "gather_gemv_draws.json").read_text())["runs"]
    return choice_noise([*draw.values()] for run in runs for draw in run["device_latency_ms"])


def equal_choices(case: Case, effect: float, rounds: int, chance: random.Random) -> str:
    """Return the word of a comparison at equal choices, whose candidate takes longer by `effect`."""
    draws = []
    for number in range(2 * rounds):
        us, noise = chance.choice(case.drawn)
        base, head = (us * math.exp(chance.gauss(0, noise)) for _side in range(2))
        draws.append(Draw(number, _OWNERS[number % 2], base, head * (1 + effect)))
    return code_change(draws).word


def fresh_pairs(case: Case, effect: float, rounds: int, chance: random.Random) -> str:
    """Return the word of as many processes in pairs that both compile afresh: three pairs for each round."""
    pairs = []
    for _ in range(3 * rounds):
        drawn = [chance.choice(case.drawn) for _side in range(2)]
        base, head = (us * math.exp(chance.gauss(0, noise)) for us, noise in drawn)
        pairs.append((base, head * (1 + effect)))
    return paired_change(pairs).word


Procedure = Callable[[Case, float, int, random.Random], str]
PROCEDURES: dict[str, Procedure] = {"equal choices": equal_choices, "fresh pairs": fresh_pairs}


def shares(words: Sequence[str]) -> dict[str, float]:
    return {word: words.count(word) / len(words) for word in ("confirmed", "dismissed")}


def cell(case: Case, procedure: str, effect: float, rounds: int, runs: int) -> dict[str, float]:
    """Return the share of each word. The same arguments give the same answer."""
    chance = random.Random(f"{case.title} {effect} {rounds}")
    return shares([PROCEDURES[procedure](case, effect, rounds, chance) for _ in range(runs)])


def table(runs: int = RUNS) -> str:
    """Return the table of the guide: confirmed / dismissed in per cent."""
    heads = ["program, noise of a choice", "compared by", *(f"{100 * effect:.0f} %" for effect in EFFECTS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for case in cases():
        for rounds in PLANS:
            for procedure in PROCEDURES:
                how = (
                    f"{rounds} + {rounds} draws"
                    if procedure == "equal choices"
                    else f"{3 * rounds} fresh pairs"
                )
                found = [cell(case, procedure, effect, rounds, runs) for effect in EFFECTS]
                texts = [f"{100 * one['confirmed']:.0f} / {100 * one['dismissed']:.0f}" for one in found]
                lines.append("| " + " | ".join([case.title, how, *texts]) + " |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Noisy:
    """A program with one choice at each draw: the noise of a process, the share of processes that are slow,
    and by how much the change depends on whose draw it is (`apart`, a log ratio)."""

    noise: float
    slow_share: float = 0.0
    apart: float = 0.0

    def process(self, chance: random.Random) -> float:
        slow = chance.uniform(0.05, 0.4) if chance.random() < self.slow_share else 0.0
        return math.exp(chance.gauss(0, self.noise)) * (1 + slow)

    def round(self, first: int, effect: float, chance: random.Random) -> list[Draw]:
        """Return the draws of both sides, whose outliers were measured once more: of the free process, which
        shares the choices, and of the two pinned ones."""
        factors: dict[tuple[Side, Side], float] = {
            (owner, side): math.exp((math.log1p(effect) + self.apart / 2 * sign) * (side == "new"))
            for owner, sign in zip(_OWNERS, (1, -1), strict=True)
            for side in _OWNERS
        }
        places: list[tuple[Side, Side]] = [
            *factors,
            ("base", "base"),
            ("new", "new"),
        ]  # the last two are free
        times = [factors[place] * self.process(chance) for place in places]
        for number in outliers([(*place, value) for place, value in zip(places, times, strict=True)]):
            if number < len(factors):
                times[number] = factors[places[number]] * self.process(chance)
        return [Draw(first, "base", *times[:2]), Draw(first + 1, "new", *times[2:4])]

    def word(self, effect: float, most: int, chance: random.Random) -> str:
        """Return the answer of a comparison that may stop after each round from 3 + 3 draws on."""
        draws: list[Draw] = []
        while len(draws) < 6 or not enough(draws, most):
            draws += self.round(len(draws), effect, chance)
        return code_change(draws, most).word

    def shares(self, effect: float, most: int, runs: int) -> dict[str, float]:
        chance = random.Random(f"{self} {effect} {most}")
        return shares([self.word(effect, most, chance) for _ in range(runs)])


def without_best(case: Case, lost: int, rounds: int, chance: random.Random) -> tuple[KernelComparison, bool]:
    """Compare a program of one kernel with itself after a change of heuristics that drops its `lost` fastest
    choices. Return the answers, and whether they dismiss a suspect that chose as the candidate does."""
    ((slot, _kernel),) = case.compilations[0].items()
    usual_us: dict[str, list[float]] = {}
    for compilation in case.compilations:
        usual_us.setdefault(compilation[slot][0], []).append(compilation[slot][1])
    offered = frozenset(usual_us)
    left = frozenset(sorted(offered, key=lambda choice: median(usual_us[choice]))[lost:])

    def kernels(choice: str, candidates: frozenset[str]) -> Kernels:
        time_us = median(usual_us[choice]) * math.exp(chance.gauss(0, case.by_slot[slot]))
        return {slot: TimedChoice(choice, time_us, candidates)}

    draws: list[Draw] = []
    free: tuple[list[Kernels], list[Kernels]] = [], []
    pinned: list[tuple[Kernels, Kernels]] = []
    for number in range(2 * rounds):
        own = (offered, left)[number % 2]
        drawn = [one[slot][0] for one in case.compilations if one[slot][0] in own]
        choice = chance.choice(drawn)
        free[number % 2].append(kernels(choice, own))
        pinned.append((kernels(choice, offered), kernels(choice, left)))
        times_us = [side[slot].time_us for side in pinned[-1]]
        draws.append(Draw(number, _OWNERS[number % 2], *times_us))
    pinned += [(kernels(choice, offered), kernels(choice, left)) for choice in sorted(offered)]
    found = compare_kernels(*free, draws=draws, pinned=pinned)
    return found, found.code.word == "dismissed" and not draw_obstacle(*free, "cuda", free[1][:1])


def power_table() -> str:
    """Return the table of the guide on the power of a comparison."""
    lines = [
        "| noise | 6 draws find | 10 draws find | 3 % found and 1 % dismissed |",
        "|---" * 4 + "|",
    ]
    for noise in NOISES:
        finds = [f"{detects_percent(noise, count):.1f} %" for count in (6, 10)]
        cells = [f"{100 * noise:.1f} %", *finds, f"{draws_to_decide(noise)} draws"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


TABLES = {"simulated": table, "power": power_table}


def in_guide(name: str) -> tuple[str, str, str]:
    """Return the guide before, in and after a table."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, rest = GUIDE.read_text().split(begin)
    inside, after = rest.split(end)
    return before + begin, inside, end + after


if __name__ == "__main__":
    for each, make in TABLES.items():
        start, _old, stop = in_guide(each)
        GUIDE.write_text(start + make() + stop)
