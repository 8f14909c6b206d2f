"""The accepted level of a series, and what has moved away from it since. Numbers only.

Points are taken in order, one at a time. A point at the level becomes part of it. Points that moved are kept
apart: the level stays the baseline, so that a regression is never forgotten, however long it lasts. It ends
by coming back, by an improvement that stays, or by a decision: a person accepts the new level, or a
comparison in pairs shows that the code is not the cause; then the level begins anew where it moved.
"""

import math
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from hud.judging.verdict import FEWEST, Rule, Verdict, Word, judge, noise_of_median, series_noise
from runner.schema.statistics import median

KEPT = 100  # values of a level
_BACK = 3  # points in a row at the level end a move, if they are surely not the move's
_SURE = math.log(1e9)  # how much likelier they must be at the level
_AGREE = 2  # points that moved the same way are more than a suspect
_STAYS = 3  # points in a row that are better are the new level
_RUNS = 2  # of a level at least, before a timing can be called regressed against it
_TOLD = 20  # points of a move that tell its size
_EACH = 50  # points between two marks within a level
_MARKS = 5  # that are kept; what comes earlier still is judged from the beginning
_OF_INTERVAL = 3.0  # half 95 % intervals by which a regret must differ: 4.2 deviations of a difference
_OF_CARD = 5  # points of a card that was never at the level, until it counts as one of its cards


@dataclass(frozen=True)
class SeriesPoint:
    """The measurements of one run in one environment. `values` has one number for each compilation or fresh
    process that gave one; `groups` its variant, None where unknown."""

    run_id: int
    environment_id: int
    time: datetime
    values: tuple[float, ...]
    groups: tuple[str | None, ...] = ()
    card: str = ""  # of a GPU; '' where nothing says it
    good: bool = True  # every process has the status ok
    is_baseline: bool = True  # of the default branch, no rerun, and may decide: it may change the level
    is_rerun: bool = False
    quality: str = ""  # why it may not decide
    where: str = ""  # host, card and interpreter
    noise: float | None = None  # of the series, as the point was judged before
    spread: float | None = None  # over its compilations; of a regret half of its 95 % interval


@dataclass
class Move:
    """Points that left the level, the same way."""

    run_id: int  # the first one's
    time: datetime
    last_good_run: int | None
    worse: bool
    failed: bool = False  # they have no value, or a status other than ok
    points: int = 0  # of as many runs
    latest: float | None = None  # value of the newest
    certain: bool = False  # one of them was called regressed or improved, or a repeat agreed
    last_run: int = 0  # of the newest, and its time: points of one run at one time are one opinion
    last_time: datetime | None = None
    agreed_run: int | None = None  # the second run that says the same
    where: str = ""  # the first one's
    back: int = 0  # points in a row at the level since
    returned: list[float] = field(default_factory=list)  # how much worse those are than the level
    held: list[tuple[tuple[float, ...], tuple[str | None, ...]]] = field(default_factory=list)  # their values
    told: list[float] = field(default_factory=list)  # how much worse points are, at the size last told
    steps: int = 1  # the first one, and each further one for the worse
    further: int = 0  # points in a row that are worse than what was told

    @property
    def is_sure(self) -> bool:
        """Return whether it is more than a suspect: it opens a regression where no host repeats it."""
        return self.certain or self.points >= _AGREE


@dataclass(frozen=True)
class Mark:
    """A level as it was before the first point at `time`, as JSON: a late point after it is judged from here
    on, with what followed."""

    time: datetime
    until: datetime  # the newest point that the level knew
    taken: int
    start: datetime | None
    level: msgspec.Raw


@dataclass
class Level:
    """`values` of the points at the level, oldest first; `move` is what has left it, if anything has."""

    values: list[float] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    points: int = 0
    own_noise: float = 0.0  # of a point by its own compilations, root mean square
    start: datetime | None = None  # of the first one
    good: bool | None = None  # of the newest point at the level
    last_run: int | None = None  # the newest point at the level
    cards: list[str] = field(default_factory=list)  # of its points
    strangers: dict[str, int] = field(default_factory=dict)  # points of each other card, which all moved
    move: Move | None = None
    moved: list[tuple[tuple[float, ...], tuple[str | None, ...]]] = field(default_factory=list)
    taken: int = 0  # points of the default branch, at the level or not
    marks: list[Mark] = field(default_factory=list)  # where a late point can be judged from, oldest first


def mark(level: Level, time: datetime, until: datetime) -> None:
    """Keep the level as it is before the points at `time`, if it is a new one or `_EACH` points have come."""
    marks = level.marks
    if not level.taken or (marks and marks[-1].start == level.start and level.taken % _EACH):
        return
    text = msgspec.Raw(msgspec.json.encode(replace(level, marks=[])))
    level.marks = [*marks, Mark(time, until, level.taken, level.start, text)][-_MARKS:]


def level_before(level: Level, time: datetime) -> tuple[Level, datetime | None]:
    """Return the level as it was at its newest mark before `time`, and its newest point then; without such a
    mark the level before all points, and None."""
    earlier = [mark for mark in level.marks if mark.time < time]
    if not earlier:
        return Level(), None
    before = msgspec.json.decode(earlier[-1].level, type=Level)
    before.marks = earlier[:-1]  # the first point that is judged makes the last one again
    return before, earlier[-1].until


def advance(level: Level, point: SeriesPoint, rule: Rule) -> Verdict:
    """Judge the next point. One of the default branch that may decide joins the level or its move."""
    verdict = assess(level, point, rule)
    if _is_undecided(point):
        return verdict
    if point.is_baseline and verdict.reason == "other_card":
        count = level.strangers[point.card] = level.strangers.get(point.card, 0) + 1
        if count >= _OF_CARD:
            _extend(level, point)
    elif point.is_baseline and verdict.verdict == "new":
        _extend(level, point)
    elif point.is_baseline and (level.values or (level.points and rule.kind == "status")):
        _take(level, point, verdict, rule)  # what has never worked does not get worse
    elif point.is_rerun and level.move:
        _hear(level, level.move, point, verdict, rule)
    return verdict


def assess(level: Level, point: SeriesPoint, rule: Rule) -> Verdict:
    """Judge a point against a level that it does not change. One that may not decide has no verdict."""
    if _is_undecided(point):
        return Verdict("inconclusive", reason=point.quality)
    return _named(level, point, rule, _judge(level, point, _with_own_noise(level, point, rule)))


def _is_undecided(point: SeriesPoint) -> bool:
    return bool(point.quality and point.values)  # a failure is one whatever else went on


def decides(level: Level, rule: Rule) -> bool:
    """Return whether the level, and what has left it, can tell a change; before, a reference judges."""
    values = len(level.values) + len(level.moved)
    return level.points + len(level.moved) >= _RUNS and (rule.kind != "timing" or values >= FEWEST)


def advance_young(level: Level, point: SeriesPoint, rule: Rule) -> None:
    """Take a point into a level that does not decide yet. Where times differ, most of them are the level."""
    advance(level, point, rule)
    move = level.move
    if move and not move.failed and rule.kind == "timing" and move.points > level.points:
        _settle(level, move, point)


def with_noise_of(reference: Level, level: Level, rule: Rule) -> Rule:
    """Return the rule for a level of few values: the noise that is assumed is its reference's, or their own
    range where that is larger, but not more than the metric's."""
    if rule.kind != "timing" or len(level.values) >= FEWEST or not any(level.values):
        return rule
    own = (max(level.values) - min(level.values)) / max(map(abs, level.values))
    noise = max(series_noise(reference.values, rule.prior_noise), own)
    return replace(rule, prior_noise=min(rule.prior_noise, noise))


def _hear(level: Level, move: Move, point: SeriesPoint, verdict: Verdict, rule: Rule) -> None:
    """Let a repeat on the same host, card and interpreter agree with a suspect for the worse, or end it."""
    if move.is_sure or not move.worse or move.failed or not point.values or _is_elsewhere(point, move):
        return
    if _left(verdict) and _is_worse(verdict, rule):
        move.certain, move.agreed_run = True, point.run_id
    elif not _left(verdict):
        level.move, level.moved = None, []


def begin_anew(level: Level, point: SeriesPoint) -> None:
    """Forget the level: the point is the first of the next one."""
    level.values, level.groups, level.points, level.start = [], [], 0, None
    level.move, level.moved, level.good = None, [], None
    level.cards, level.strangers = [], {}
    _extend(level, point)


def _with_own_noise(level: Level, point: SeriesPoint, rule: Rule) -> Rule:
    """Return the rule with the noise floor that a derived metric has from its own compilations: three that
    drew alike by chance say little, those of the whole level more."""
    if not rule.is_derived:
        return rule
    own = _OF_INTERVAL * (point.spread or 0.0) if rule.absolute_floor else 0.0
    return replace(
        rule,
        least_noise=max(noise_of_median(point.values), level.own_noise),
        absolute_floor=max(rule.absolute_floor, own),
    )


def _judge(level: Level, point: SeriesPoint, rule: Rule) -> Verdict:
    if rule.kind == "status":
        if level.good is None:
            return Verdict("new")
        word: Word = "unchanged" if level.good == point.good else "improved" if point.good else "regressed"
        return Verdict(word, baseline_n=level.points)
    if any(level.groups) and any(point.groups):
        return _judge_by_variant(level, point, rule)
    middle = [median(point.values)] if point.values else []
    alone = judge(level.values, middle, rule)
    move = level.move
    if not alone.suspect or move is None or move.latest is None:
        return alone
    if _is_same_run(point, move) or _is_elsewhere(point, move):  # neither may agree with its newest point
        return alone
    both = judge(level.values, [move.latest, *middle], rule)  # the second run that moved
    return both if _left(both) else alone


def _is_same_run(point: SeriesPoint, move: Move) -> bool:
    return (point.run_id, point.time) == (move.last_run, move.last_time)


def _is_elsewhere(point: SeriesPoint, move: Move) -> bool:
    """Return whether a point is a repeat in another place than the move's, which is no second opinion."""
    return point.is_rerun and point.where != move.where


def _judge_by_variant(level: Level, point: SeriesPoint, rule: Rule) -> Verdict:
    """Compare each compilation with those of its own variant; those of unknown ones say nothing then."""
    of_variant: dict[str | None, list[float]] = {}
    for value, group in zip(level.values, level.groups, strict=True):
        of_variant.setdefault(group, []).append(value)
    names = set(point.groups)
    known = [(v, g) for v, g in zip(point.values, point.groups, strict=True) if g and g in of_variant]
    if len(names) == 1 or not known:
        group = point.groups[0] if len(names) == 1 else None
        return judge(level.values, point.values, rule, groups=level.groups, group=group)
    usual = {group: median(values) for group, values in of_variant.items()}
    if not all(usual.values()):
        return judge(level.values, point.values, rule)
    history = [value / usual[group] for value, group in zip(level.values, level.groups, strict=True)]
    samples = [value / usual[group] for value, group in known]
    verdict = judge(history, samples, rule, groups=["own"] * len(history), group="own")
    return replace(verdict, baseline=median(level.values))


def _named(level: Level, point: SeriesPoint, rule: Rule, verdict: Verdict) -> Verdict:
    """Name a difference that is no regression: of a card that was never at the level, or from one run."""
    if rule.kind != "timing" or not _left(verdict) or verdict.verdict == "failed":
        return verdict
    strangers = level.strangers.keys() - {point.card}  # two cards that agree are no matter of the card
    if point.card and level.cards and point.card not in level.cards and not strangers:
        return replace(verdict, verdict="inconclusive", suspect=False, reason="other_card")
    if level.points < _RUNS:
        return replace(verdict, verdict="inconclusive", suspect=False, reason="few_runs")
    return verdict


def _take(level: Level, point: SeriesPoint, verdict: Verdict, rule: Rule) -> None:
    move, left = level.move, _left(verdict)
    worse, failed = _is_worse(verdict, rule), verdict.verdict == "failed"
    is_more = move is not None and move.is_sure
    if move and move.worse and is_more and not (left and worse):
        _come_back(level, move, point, verdict, rule)
        return
    if not left:
        if move:
            move.back += 1
            if move.back >= _BACK or not is_more:
                level.move, level.moved = None, []
        level.strangers = {}
        _extend(level, point)
        return
    if move is None or (move.worse, move.failed) != (worse, failed):
        level.moved = []
        move = level.move = Move(point.run_id, point.time, level.last_run, worse, failed, where=point.where)
    if not _is_same_run(point, move):
        move.points += 1
        move.agreed_run = move.agreed_run or (point.run_id if move.points > 1 else None)
    move.last_run, move.last_time = point.run_id, point.time
    move.latest = median(point.values) if point.values else None
    move.certain |= verdict.verdict != "inconclusive"
    level.moved = [*level.moved, (point.values, point.groups)][-KEPT:]
    if worse and not failed:
        _grow(move, verdict, rule)
    move.back, move.returned, move.held = 0, [], []
    if not worse and move.points >= _STAYS:
        _settle(level, move, point)


def _settle(level: Level, move: Move, point: SeriesPoint) -> None:
    """Make the points that moved the new level."""
    moved, level.move = level.moved, None
    level.values, level.groups, level.points, level.moved = [], [], 0, []
    level.start = move.time
    for values, groups in moved:
        _extend(level, replace(point, values=values, groups=groups))


def _come_back(level: Level, move: Move, point: SeriesPoint, verdict: Verdict, rule: Rule) -> None:
    """Count a point at the level, or better, after a move for the worse. It joins the level when the move has
    ended: a few quiet points of a move neither end it nor blur what it is compared with."""
    move.back += 1
    if rule.kind == "timing" and (size := _slowdown(move, verdict, rule)) is not None:
        move.returned = [*move.returned, size][-KEPT:]
    if not _left(verdict):
        move.held = [*move.held, (point.values, point.groups)][-KEPT:]
    if move.back < _BACK or (move.told and move.returned and _of_move(move, verdict) > -_SURE):
        return
    level.move, level.moved, level.strangers = None, [], {}
    for values, groups in move.held:
        _extend(level, replace(point, values=values, groups=groups))


def _of_move(move: Move, verdict: Verdict) -> float:
    """Return the log likelihood ratio of the points that came back: of the move's size against the level."""
    size, noise = median(move.told), max(verdict.noise or 0.0, 1e-9)
    return size * (sum(move.returned) - len(move.returned) * size / 2) / noise**2


def _grow(move: Move, verdict: Verdict, rule: Rule) -> None:
    """Count a further step: a point worse than the size that was told, surely or for the second time."""
    size = _slowdown(move, verdict, rule)
    if size is None:
        return
    if not move.told:
        move.told = [size]
        return
    if move.returned and _of_move(move, verdict) > -_SURE / 3:
        move.told = [*move.told, *move.returned][-_TOLD:]  # quiet points of the move, not of the level
    beyond = size - median(move.told)
    noise = (verdict.noise or 0.0) * math.sqrt(1 + math.pi / 2 / len(move.told))
    is_exact = rule.kind == "deterministic"
    least = 0.0 if is_exact else max(math.log1p(rule.relative_floor), rule.suspect_factor * noise)
    if abs(beyond) <= least:
        move.told = [*move.told, size][-_TOLD:]
    move.further = move.further + 1 if beyond > least else 0
    if move.further and (is_exact or beyond > rule.noise_factor * noise or move.further >= _AGREE):
        move.steps, move.told, move.further = move.steps + 1, [size], 0


def _slowdown(move: Move, verdict: Verdict, rule: Rule) -> float | None:
    """Return how much worse the newest point of a move is than the level, in log space; of a count its
    value. None where that is no number."""
    if rule.kind == "deterministic":
        size = move.latest
    else:
        size = math.log1p(verdict.change) if verdict.change is not None and verdict.change > -1 else None
    return size if size is None or rule.direction == "down" else -size


def _extend(level: Level, point: SeriesPoint) -> None:
    values, groups = point.values, point.groups
    seen = min(level.points, KEPT)
    squares = seen * level.own_noise**2 + noise_of_median(values) ** 2
    level.own_noise = math.sqrt(squares / (seen + 1))
    if values and not any(groups):  # a point is one value: its compilations share the night
        values, groups = (median(values),), (None,)
    level.values = [*level.values, *values][-KEPT:]
    level.groups = [*level.groups, *groups][-KEPT:]
    level.points += 1
    level.start = level.start or point.time
    level.good, level.last_run = point.good, point.run_id
    if point.card and point.card not in level.cards:
        level.cards = [*level.cards, point.card]
        level.strangers.pop(point.card, None)


def _left(verdict: Verdict) -> bool:
    return verdict.verdict in {"improved", "regressed", "failed"} or verdict.suspect


def _is_worse(verdict: Verdict, rule: Rule) -> bool:
    if verdict.verdict in {"regressed", "failed"}:
        return True
    return verdict.verdict != "improved" and ((verdict.change or 0) > 0) == (rule.direction == "down")
