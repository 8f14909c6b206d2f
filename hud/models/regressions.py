"""The present of each series, its regressions with their history, and who follows them.

`Notice` is the outbox: a row is written in the transaction of the event it tells of. The deliverer groups
notices into messages, and keeps one `Delivery` for each receiver until it has answered.
"""

import math
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.contrib.auth.models import User
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow, Real, choices_of
from hud.models.hosts import Accelerator
from hud.models.runs import Run
from hud.models.series import Environment, Series
from hud.models.streams import Stream
from hud.states.bisect import BisectState
from hud.states.regressions import ACTIVE, RegressionKind, RegressionState


class SeriesState(NamedRow):
    """A series in one class of environments, as of its newest point: enough to judge the next one and to show
    the newest without reading history. Made again from the measurements where an older point changes."""

    series = models.ForeignKey(Series, models.CASCADE, related_name="states")
    class_key = models.CharField(max_length=64)
    headline = models.BooleanField(default=False)  # it may open a regression
    level = models.JSONField()  # hud.judging.levels.Level
    # the newest point of the default branch that is no rerun; `Point` has its numbers and verdict
    run = models.ForeignKey(Run, models.DO_NOTHING, db_constraint=False, related_name="+")
    environment = models.ForeignKey(Environment, models.DO_NOTHING, db_constraint=False, related_name="+")
    order_time = models.DateTimeField()
    points = models.IntegerField(default=0)  # at the level
    seen_run = models.IntegerField(default=0, db_default=0)  # the newest run at the last look back
    recent = ArrayField(models.FloatField(null=True))  # values of the newest points, oldest first

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "class_key"], name="state_of_series")]
        indexes = [
            models.Index(fields=["run"], name="state_run"),
            models.Index(fields=["series"], condition=Q(headline=True), name="state_headline"),
        ]


class Cause(NamedRow):
    """A cause that moved series of one night together. Made when the night is complete; series may join it,
    it never splits, and the id of one that was merged leads to the other."""

    stream = models.ForeignKey(Stream, models.CASCADE, related_name="causes")
    night = models.DateTimeField()  # order time of the night's first run
    title = models.CharField(max_length=200)
    merged_into = models.ForeignKey("self", models.SET_NULL, null=True, related_name="merged")
    created = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["stream", "night"], name="cause_night")]


class Regression(NamedRow):
    """A series that left its accepted level for the worse, from then until it is closed."""

    State = RegressionState
    Kind = RegressionKind

    series = models.ForeignKey(Series, models.CASCADE, related_name="regressions")
    class_key = models.CharField(max_length=64)
    state = models.CharField(
        max_length=12, choices=choices_of(RegressionState), default=RegressionState.SUSPECT
    )
    kind = models.CharField(max_length=12, default=RegressionKind.STEP)
    first_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")  # that moved
    last_good_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")
    latest_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")
    repeat_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")  # silent, of a suspect
    pairs_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")  # requested by the judge
    concluded_run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")  # judged pairs
    since = models.DateTimeField()  # order time of the first run that moved
    points = models.IntegerField(default=1)  # that moved
    steps = models.SmallIntegerField(default=1, db_default=1)  # the first, and further ones for the worse
    before = models.FloatField(null=True)  # the accepted level
    after = models.FloatField(null=True)
    change = Real(null=True)  # relative; like the next one as its point has it
    factor = Real(null=True)  # change in units of the series' noise
    undecided = models.BooleanField(default=False, db_default=False)  # pairs were measured and cannot tell
    cause = models.CharField(max_length=200, blank=True)  # in words, where something tells it
    cause_row = models.ForeignKey(
        Cause, models.SET_NULL, null=True, db_column="cause_id", related_name="regressions"
    )
    canaries = models.CharField(max_length=6, blank=True, db_default="", default="")  # `Canaries`
    opened = models.DateTimeField(db_default=Now())
    state_since = models.DateTimeField(db_default=Now())
    owner = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    note = models.CharField(max_length=1000, blank=True)
    link = models.URLField(max_length=300, blank=True)
    muted_until = models.DateTimeField(null=True)
    recent: Sequence[float | None] = ()  # values of its series, oldest first, where a page adds them

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["series", "class_key"],
                condition=Q(state__in=[state.value for state in ACTIVE]),
                name="one_active_regression",
            )
        ]
        indexes = [models.Index(fields=["state", "-since"], name="regression_state")]

    @property
    def verdict(self) -> str:
        """Return regressed, inconclusive, drift, or failed where it has no value."""
        if self.kind == RegressionKind.FAILURE or self.change is None:
            return "failed"
        undecided = self.undecided and self.state in (RegressionState.SUSPECT, RegressionState.OPEN)
        return "inconclusive" if undecided else "drift" if self.kind == RegressionKind.DRIFT else "regressed"

    @property
    def cause_key(self) -> str:
        """Return what it shares with the other regressions of its cause."""
        return f"cause {self.cause_row_id}" if self.cause_row_id else f"{self.pk}"


class RegressionEvent(NamedRow):
    """What happened to a regression, in order; never changed."""

    regression = models.ForeignKey(Regression, models.CASCADE, related_name="events")
    at = models.DateTimeField(db_default=Now())
    who = models.CharField(max_length=150, blank=True)  # '' the judge
    event = models.CharField(max_length=20)
    before = models.CharField(max_length=12, blank=True)
    after = models.CharField(max_length=12)
    note = models.CharField(max_length=1000, blank=True)
    level_since = models.DateTimeField(null=True)  # of a decision that makes what moved the level
    run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")

    class Meta:
        indexes = [models.Index(fields=["at"], name="regression_event_at")]


class Bisect(NamedRow):
    """A search for the version of torch that made a regression, in rows so that it outlives a restart."""

    regression = models.ForeignKey(Regression, models.CASCADE, related_name="bisects")
    accelerator = models.ForeignKey(Accelerator, models.SET_NULL, null=True, related_name="+")
    builds = models.JSONField()  # hud.judging.bisect.work.Build, the oldest first
    state = models.CharField(max_length=20, default=BisectState.RUNNING)
    reason = models.CharField(max_length=500, blank=True)  # why it ended before its time
    # places in `builds`: the closest ones between which the change is
    good = models.SmallIntegerField(null=True)
    bad = models.SmallIntegerField(null=True)
    requested_by = models.CharField(max_length=150)
    created = models.DateTimeField(db_default=Now())
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["regression"], condition=Q(state=BisectState.RUNNING), name="one_running_bisect"
            )
        ]

    @property
    def conclusion(self) -> str:
        """The result in words; '' while it runs."""
        if self.good is None or self.bad is None:
            return self.reason
        ends = [self.builds[index] for index in (self.good, self.bad)]
        good, bad = (
            f"{end['torch']} ({end['commits']})" if end.get("commits") else end["torch"] for end in ends
        )
        if good == bad:
            good, bad = (
                f"{end['interpreter']} ({end.get('differs') or end['torch_git'][:9]})" for end in ends
            )
        return {
            BisectState.FOUND: f"{bad} is worse than {good}",
            BisectState.NOT_REPRODUCED: f"not reproduced today: {bad} against {good}",
            BisectState.CANNOT_TELL: f"between {good} and {bad}, no closer",
        }.get(BisectState(self.state), self.reason)


class BisectStep(NamedRow):
    """A comparison in pairs of two versions, by their places in `Bisect.builds`."""

    bisect = models.ForeignKey(Bisect, models.CASCADE, related_name="steps")
    base = models.SmallIntegerField()
    head = models.SmallIntegerField()
    run = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="+")
    pairs = models.JSONField(null=True)  # values of base and head; NULL until the run has ended
    # over all pairs of these two versions so far: worse, same, unclear, none
    word = models.CharField(max_length=8, blank=True)
    change = models.FloatField(null=True)  # relative
    low = models.FloatField(null=True)  # of the 95 % interval of the log ratio
    high = models.FloatField(null=True)
    finished = models.DateTimeField(null=True)

    @property
    def answer(self) -> str:
        return "no value" if self.word == "none" else self.word or "waits"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the change, relative."""
        if self.low is None or self.high is None:
            return None
        return math.expm1(self.low), math.expm1(min(self.high, 700))


class Backlog(NamedRow):
    """The judge's work since it was last done with everything: one row while series wait, none else."""

    began = models.DateTimeField()
    at = models.DateTimeField()  # end of its latest round
    judged = models.BigIntegerField(default=0)  # series since then


class Channel(StrEnum):
    """How a message reaches who follows."""

    STANDARD = "standard"  # https://www.standardwebhooks.com
    SLACK = "slack"
    GITHUB = "github"  # a comment on an issue or pull request
    MAIL = "mail"
    FEED = "rss"


class Follow(NamedRow):
    """Something that a person or the team is told of: what meets all conditions that are not empty."""

    user = models.ForeignKey(User, models.CASCADE, null=True, related_name="follows")  # NULL: the team
    name = models.CharField(max_length=100, blank=True)
    stream = models.ForeignKey(Stream, models.CASCADE, null=True, related_name="follows")
    suite = models.CharField(max_length=60, blank=True, default="", db_default="")
    case = models.CharField(max_length=200, blank=True, default="", db_default="")
    arch = models.CharField(max_length=100, blank=True, default="", db_default="")
    owner = models.ForeignKey(User, models.CASCADE, null=True, related_name="+")  # of regressions
    regression = models.ForeignKey(Regression, models.CASCADE, null=True, related_name="+")  # with its cause
    events = ArrayField(models.CharField(max_length=20))  # of hud.notifications.texts.EVENTS
    channel = models.CharField(max_length=10, choices=choices_of(Channel), default=Channel.STANDARD)
    url = models.CharField(max_length=500, blank=True)  # a mail address; '' that of the user
    # signs standard messages; of GitHub the token that may write, of a feed the one in its address
    secret = models.CharField(max_length=300, blank=True)
    hour = models.SmallIntegerField(null=True)  # of a daily digest, UTC; NULL at once
    active = models.BooleanField(default=True)
    created = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(null=True)  # of the latest attempt
    last_ok = models.BooleanField(null=True)
    last_result = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return self.name or self.subject

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions that are not empty, by name."""
        words: dict[str, Any] = {"suite": self.suite, "case": self.case, "arch": self.arch}
        words["stream"] = self.stream.name if self.stream else ""
        words["owner"] = self.owner.get_username() if self.owner else ""
        words["regression"] = self.regression.cause_key if self.regression else ""
        return {name: word for name, word in words.items() if word}

    @property
    def subject(self) -> str:
        return ", ".join(f"{name} {word}" for name, word in self.conditions.items()) or "everything"

    @property
    def receiver(self) -> tuple[str, str, str]:
        """Return what is told once of each change, whatever follows lead to it."""
        own = self.user.email if self.user and self.channel == Channel.MAIL else ""
        return self.channel, self.url or own, self.secret

    def next_due(self, now: datetime) -> datetime:
        if self.hour is None:
            return now
        due = now.replace(hour=self.hour, minute=0, second=0, microsecond=0)
        return due if due > now else due + timedelta(days=1)


class Notice(NamedRow):
    """A change of a regression that who follows it is to be told of."""

    regression = models.ForeignKey(Regression, models.CASCADE, related_name="+")
    state = models.CharField(max_length=12)  # the new one, or `assigned`
    note = models.CharField(max_length=1000, blank=True)
    who = models.CharField(max_length=150, blank=True)  # '' the judge
    created = models.DateTimeField(db_default=Now(), db_index=True)


class RunEnd(NamedRow):
    """A run that has ended, of which who follows is to be told."""

    run = models.OneToOneField(Run, models.CASCADE, related_name="+")
    created = models.DateTimeField(db_default=Now())


class Delivery(NamedRow):
    """A message for one receiver."""

    follow = models.ForeignKey(Follow, models.CASCADE, related_name="deliveries")
    message_id = models.UUIDField(default=uuid.uuid4)  # the same in every attempt
    event = models.CharField(max_length=30)
    data = models.JSONField()
    created = models.DateTimeField(db_default=Now())
    attempts = models.IntegerField(default=0)
    due = models.DateTimeField(db_default=Now())  # of the next attempt
    began = models.DateTimeField(null=True)  # to send, without a known end so far
    delivered = models.DateTimeField(null=True)
    given_up = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["due"], condition=Q(delivered=None, given_up=None), name="delivery_waiting"),
            models.Index(fields=["created"], name="delivery_created"),
        ]


class OverdueSuite(NamedRow):
    """A period without results that was told of."""

    stream = models.CharField(max_length=60, db_default="")
    suite = models.CharField(max_length=60)
    branch = models.CharField(max_length=200)
    arch = models.CharField(max_length=100)
    since = models.DateTimeField()  # of the latest result

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stream", "suite", "branch", "arch", "since"], name="overdue_once"
            )
        ]
