"""Which cards of the fleet may be trusted, by their canaries: the ceilings that each reads. Numbers only.

A card is compared with its own first readings, so that a slow drift is seen too. Where most hosts move in one
night, the cause is shared (a driver, a power limit, the runner), and no card is blamed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.schema.statistics import median

NIGHT = timedelta(hours=20)  # the readings of one night lie closer together
_FEWEST = 5  # readings that make a baseline
_MOST = 14
_LEAST = 0.03  # of a drift, relative
_NOISES = 6.0  # median absolute deviations of the baseline
_GOOD = 3  # readings in a row that end a quarantine


@dataclass(frozen=True)
class Reading:
    time: datetime
    value: float
    throttled: bool = False


@dataclass(frozen=True)
class Card:
    pk: int
    host: str
    readings: dict[str, list[Reading]]  # by ceiling, oldest first, at least one
    since: datetime | None = None  # of its quarantine

    @property
    def newest(self) -> datetime:
        return max(readings[-1].time for readings in self.readings.values())

    def baseline(self, ceiling: str) -> list[float]:
        """Return the first readings; of a quarantined card those before it was."""
        earlier = (
            reading.value
            for reading in self.readings[ceiling][:-1]
            if not reading.throttled and (self.since is None or reading.time < self.since)
        )
        return list(earlier)[:_MOST]


@dataclass(frozen=True)
class Review:
    """`together` says that most hosts moved, which releases cards that were quarantined in the same night."""

    quarantined: Mapping[int, str]  # new ones, with the reason
    released: Sequence[int] = ()
    together: str = ""


def review(cards: Sequence[Card]) -> Review:
    if not cards:
        return Review({})
    night = max(card.newest for card in cards) - NIGHT
    known = [card for card in cards if card.newest > night and _is_known(card)]
    problems = {card.pk: problem for card in known if (problem := _problem(card))}
    hosts = {card.host for card in known}
    moved = {card.host for card in known if card.pk in problems}
    if len(moved) > max(1, len(hosts) / 2):
        words = f"{len(moved)} of {len(hosts)} hosts moved in one night, so no card is quarantined"
        tonight = [card.pk for card in cards if card.since and card.since > night]
        return Review({}, tonight, f"{words}: {min(problems.values())}")
    free = {card.pk for card in cards if card.since is None}
    quarantined = {pk: problem for pk, problem in problems.items() if pk in free}
    return Review(quarantined, [card.pk for card in cards if _is_back(card)])


def _is_known(card: Card) -> bool:
    return any(readings[-1].throttled for readings in card.readings.values()) or any(
        len(card.baseline(ceiling)) >= _FEWEST for ceiling in card.readings
    )


def _problem(card: Card) -> str:
    """Return what is wrong with the newest readings, or ''."""
    problems = (_fault(card, ceiling, readings[-1]) for ceiling, readings in sorted(card.readings.items()))
    return next(filter(None, problems), "")


def _fault(card: Card, ceiling: str, reading: Reading) -> str:
    if reading.throttled:
        return f"it was slowed (throttled) while it read {ceiling}"
    baseline = card.baseline(ceiling)
    if len(baseline) < _FEWEST:
        return ""
    usual = median(baseline)
    noise = median([abs(value / usual - 1) for value in baseline])
    change = reading.value / usual - 1
    is_drift = abs(change) > max(_LEAST, _NOISES * noise)
    return f"{ceiling} {change:+.1%} against its own canary" if is_drift else ""


def _is_back(card: Card) -> bool:
    """Return whether the latest readings since its quarantine are as they were before it."""
    since = card.since
    if since is None:
        return False
    later = {
        name: [reading for reading in readings if reading.time > since]
        for name, readings in card.readings.items()
    }
    return all(
        len(readings) >= _GOOD and not any(_fault(card, name, reading) for reading in readings[-_GOOD:])
        for name, readings in later.items()
    )
