"""The states of a regression and the events that change them (contract: States and verdicts). Pure."""

from enum import StrEnum


class RegressionState(StrEnum):
    SUSPECT = "suspect"
    OPEN = "open"
    CONFIRMED = "confirmed"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    ACCEPTED = "accepted"
    DISMISSED = "dismissed"


class RegressionKind(StrEnum):
    """How a series left its level. The judge sees the first two at once; a look back finds the others."""

    STEP = "step"
    FAILURE = "failure"  # no value any more, or no right one
    SMALL_STEP = "small step"  # within the noise of one point
    DRIFT = "drift"  # no single step
    CHOICE = "choice"  # the code is as fast as it was; the autotuner chooses worse. Pairs find it


class Canaries(StrEnum):
    """The answer of a host's canaries for the night of a regression's newest run."""

    UNKNOWN = ""  # too few were measured
    QUIET = "quiet"
    MOVED = "moved"  # the host is the cause


AT_ONCE = (RegressionKind.STEP, RegressionKind.FAILURE)


class Event(StrEnum):
    """An event in the life of a regression. The first group comes from the judge, the second from people."""

    AGREED = "agreed"  # a repeat or the next night shows the same
    DISAGREED = "disagreed"
    CONFIRMED_BY_PAIRS = "confirmed by pairs"
    NOT_REPRODUCED = "not reproduced"
    RECOVERED = "recovered"
    MOVED_AGAIN = "moved again"
    MOVED_FURTHER = "moved further"  # a larger size supersedes what was told; the state stays
    HOST_MOVED = "host moved"  # like the next one it leaves the state as it is
    HOST_BACK = "host is back"

    CONFIRM = "confirm"
    ACKNOWLEDGE = "acknowledge"
    ACCEPT = "accept"
    DISMISS = "dismiss"
    REOPEN = "reopen"  # takes a decision back: the level is what it was before


BY_PEOPLE = (Event.CONFIRM, Event.ACKNOWLEDGE, Event.ACCEPT, Event.DISMISS, Event.REOPEN)
_S, _E = RegressionState, Event
ACTIVE = (_S.SUSPECT, _S.OPEN, _S.CONFIRMED, _S.ACKNOWLEDGED)
TOLD = (_S.OPEN, _S.CONFIRMED, _S.ACKNOWLEDGED)  # somebody may have been told of it
SETTLED = (_S.ACCEPTED, _S.DISMISSED)  # the level begins anew where the series moved

# Event, the states in which it means something, and the state after it
_TRANSITIONS: tuple[tuple[Event, tuple[RegressionState, ...], RegressionState], ...] = (
    (_E.AGREED, (_S.SUSPECT,), _S.OPEN),
    (_E.DISAGREED, (_S.SUSPECT,), _S.DISMISSED),
    (_E.CONFIRMED_BY_PAIRS, (_S.SUSPECT, _S.OPEN, _S.ACKNOWLEDGED), _S.CONFIRMED),
    (_E.NOT_REPRODUCED, (_S.SUSPECT, _S.OPEN), _S.DISMISSED),
    (_E.RECOVERED, TOLD, _S.RESOLVED),
    (_E.MOVED_AGAIN, (_S.RESOLVED, _S.DISMISSED), _S.OPEN),
    (_E.CONFIRM, (_S.SUSPECT,), _S.OPEN),
    (_E.CONFIRM, (_S.OPEN,), _S.CONFIRMED),
    (_E.ACKNOWLEDGE, (_S.OPEN, _S.CONFIRMED), _S.ACKNOWLEDGED),
    (_E.ACCEPT, TOLD, _S.ACCEPTED),
    (_E.DISMISS, (_S.SUSPECT, _S.OPEN), _S.DISMISSED),
    (_E.REOPEN, SETTLED, _S.OPEN),
)
_NEXT = {(before, event): after for event, states, after in _TRANSITIONS for before in states}


def next_state(state: RegressionState, event: Event) -> RegressionState | None:
    """Return the state after the event, None if the event means nothing in this state."""
    return _NEXT.get((state, event))


def possible(state: RegressionState) -> list[Event]:
    """Return what a person can do to a regression in this state."""
    return [event for event in BY_PEOPLE if (state, event) in _NEXT]
