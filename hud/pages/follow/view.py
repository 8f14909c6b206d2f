"""List and change the follows of a person, for operators also the team's, with the messages they sent."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.feedgenerator import Rss201rev2Feed
from django.utils.safestring import SafeString

from hud.accounts.access import scopes_of
from hud.models import Channel, Delivery, Experiment, Follow, Regression, Stream
from hud.notifications import follows
from hud.notifications.follows import LOOK_BACK
from hud.notifications.texts import EVENTS, headline, plain_text, unlinked
from hud.pages import data, query_string
from hud.pages.query_string import number, words
from hud.tables.formatting import ago, moment
from hud.tables.html import NOTHING, badge_html, csrf_field, dim, join, link, post_button, span
from hud.tables.table import Column, DataTable
from runner.schema.devices import is_named

_USUAL = ("open", "confirmed", "resolved", "assigned", "overdue")
_ROWS = 20  # of messages, and of a feed
_SUGGESTED = 500  # cases
_WHOLE = Follow.objects.select_related("user", "owner", "stream", "regression")


@dataclass(frozen=True)
class FollowFilters:
    """The conditions of the follow that the form is about, with the one it changes."""

    suite: str = words(60, label="Suite")
    case: str = words(200, label="Case")
    arch: str = words(100, label="Arch")
    stream: str = words(60, label="Stream")
    owner: str = words(150, label="Owner", blank="anybody")
    regression: int | None = number(is_hidden=True)
    edit: int | None = number(is_hidden=True)

    def apply(self, follow: Follow) -> Follow:
        """Give a follow these conditions; an unknown name is none."""
        follow.suite, follow.case, follow.arch = self.suite, self.case, self.arch
        follow.stream = Stream.objects.filter(name=self.stream).first()
        follow.owner = User.objects.filter(username=self.owner).first()
        follow.regression = Regression.objects.filter(pk=self.regression or 0).first()
        return follow


class FollowForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    """The events and the channel of a new follow. Its conditions are in the address."""

    events = forms.MultipleChoiceField(
        choices=[(event, event) for event in EVENTS], widget=forms.CheckboxSelectMultiple
    )
    channel = forms.ChoiceField(
        label="By",
        choices=[
            (Channel.MAIL.value, "mail"),
            (Channel.SLACK.value, "Slack: an incoming webhook"),
            (Channel.STANDARD.value, "webhook: signed JSON"),
            (Channel.GITHUB.value, "GitHub: a comment on an issue or pull request"),
            (Channel.FEED.value, "feed (RSS)"),
        ],
    )
    hour = forms.TypedChoiceField(
        label="When",
        coerce=int,
        empty_value=None,
        required=False,
        choices=[("", "at once"), *((hour, f"digest, {hour:02}:00 UTC") for hour in range(24))],
    )
    url = forms.CharField(label="Address", max_length=500, required=False)
    team = forms.BooleanField(label="For the team", required=False, help_text="operators change it")

    class Meta:
        model = Follow
        fields = ("channel", "url", "secret", "hour", "name", "events")
        widgets: ClassVar = {"secret": forms.PasswordInput(attrs={"autocomplete": "off"})}
        help_texts: ClassVar = {
            "secret": "webhook: whsec_…, empty for a new one; GitHub: a token that may comment",
            "name": "optional",
        }

    def __init__(self, posted: Any, follow: Follow, *, is_operator: bool) -> None:
        self.before = (_receiver(follow), follow.secret) if follow.pk else ((), "")
        super().__init__(posted, instance=follow, initial={"team": not follow.user, "secret": ""})
        if not is_operator:
            del self.fields["team"]

    def described(self, person: User) -> Follow:
        """Return the follow that the form describes, with its secret unless that is for another receiver."""
        follow: Follow = self.instance
        receiver, secret = self.before
        if not follow.secret and receiver == _receiver(follow):
            follow.secret = secret
        if "team" in self.fields:
            follow.user = None if self.cleaned_data["team"] else follow.user or person
        return follow


def _receiver(follow: Follow) -> tuple[str, ...]:
    """Return what a secret was made for; another port or no TLS is another receiver."""
    return follow.channel, *follow.url.split("/")[:3]


def _what(follow: Follow, request: HttpRequest) -> SafeString:
    addresses = {"regression": f"{reverse('regressions')}?open={follow.regression_id}"}
    if follow.suite:
        with suppress(NoReverseMatch):  # no suite's address has a slash
            addresses["suite"] = reverse("suite", args=[follow.suite])
    about = [
        join(dim(name), link(addresses[name], word) if name in addresses else word)
        for name, word in follow.conditions.items()
    ]
    what = join(*about, by=", ") or "everything"
    whose = follow.user.get_username() if follow.user else "team"
    is_own = follow.user == request.user
    paused = NOTHING if follow.active else badge_html("paused")
    return join(what, span(follow.name, "fact"), NOTHING if is_own else span(whose, "tag"), paused)


def _place(follow: Follow) -> str:
    """Return where messages go: of an address no path, which may be a secret of its receiver."""
    return urlsplit(follow.url).hostname or follow.receiver[1]


def _how(follow: Follow, request: HttpRequest) -> SafeString:
    place: object = _place(follow)
    if follow.channel == Channel.FEED and follow.user in (None, request.user):
        place = link(reverse("follow_feed", args=[follow.secret]), "address of the feed")
    when = "at once" if follow.hour is None else f"digest, {follow.hour:02}:00 UTC"
    return join(follow.channel, place, span(f"{when}: {', '.join(follow.events)}", "fact"))


def _last(follow: Follow, _request: HttpRequest) -> SafeString:
    if not follow.last_at:
        return dim("nothing sent yet")
    shown = badge_html("ok", "received") if follow.last_ok else badge_html("failed")
    return join(shown, ago(follow.last_at), span(follow.last_result[:120], "reason"))


def _actions(follow: Follow, request: HttpRequest) -> SafeString:
    def button(action: str, **values: str) -> SafeString:
        where = reverse("follow_act", args=[follow.pk, action])
        about = f"{action.capitalize()} {follow}"
        return post_button(where, csrf_field(request), action.capitalize(), aria_label=about, **values)

    query = urlencode(follow.conditions | {"regression": follow.regression_id or "", "edit": follow.pk})
    return join(
        button("test"),
        link(f"?{query}#follow", "Edit", css="button"),
        button("pause" if follow.active else "resume"),
        button("delete", css="danger"),
    )


FOLLOWS = DataTable[Follow, HttpRequest](
    "id=pk user=user?.username name",
    Column("", "What", draw=_what, is_head=True),
    """suite case arch stream=stream?.name owner=owner?.username regression=regression_id channel host hour
    events active created last_at last_ok last_result waiting""",
    Column("", "How", draw=_how, cell_css="long"),
    Column("", "Last message", draw=_last, cell_css="long"),
    Column("sent", "Sent in 14 days", css="num", label="sent in 14 days"),
    Column("", "Actions", draw=_actions, hides_title=True, css="rule-actions"),
    host=_place,
)


def _state(delivery: Delivery) -> SafeString:
    if delivery.delivered:
        return join(badge_html("ok", "received"), ago(delivery.delivered))
    if delivery.given_up:
        unknown = "interrupted; whether it arrived is not known"
        return badge_html("unknown", unknown) if delivery.began else badge_html("failed", "given up")
    return join("waits for" if delivery.follow.hour is not None else "tried again at", moment(delivery.due))


SENT = DataTable[Delivery, None](
    Column("", "When", "created", show=ago, is_head=True),
    Column("", "Message", lambda one: link(one.data["url"], headline(one.event, one.data)), cell_css="long"),
    Column("", "To", lambda one: join(one.follow.channel, _place(one.follow))),
    Column("", "State", _state),
)


def follow_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer_table(data_format, "follow", FOLLOWS, _listed(request))
    edited = query_string.read(FollowFilters, request.GET)[0].edit
    follow = _follows(request).filter(pk=edited or 0).first()
    return _page(request, _form(request, follow or _new(request)))


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _new(request: HttpRequest) -> Follow:
    person = _person(request)
    channel = Channel.MAIL if person.email and settings.EMAIL_HOST else Channel.FEED
    return Follow(user=person, events=list(_USUAL), channel=channel)


def _follows(request: HttpRequest) -> QuerySet[Follow]:
    """Return those that the person may change: own ones, the team's for an operator, all for an admin."""
    scopes, own = scopes_of(request), Q(user=request.user.pk)
    if "admin" in scopes:
        own = Q()
    elif "rules" in scopes:
        own |= Q(user=None)
    return _WHOLE.filter(own)


def _listed(request: HttpRequest) -> list[Any]:
    since = Q(deliveries__delivered__gte=timezone.now() - LOOK_BACK)
    waits = Q(deliveries__delivered=None, deliveries__given_up=None, deliveries__isnull=False)
    counted = _follows(request).annotate(
        sent=Count("deliveries", filter=since), waiting=Count("deliveries", filter=waits)
    )
    return list(counted.order_by("pk"))


def _offered(follow: Follow, person: User) -> dict[str, Any]:
    known = Experiment.objects.order_by()
    suites, archs = (sorted(known.values_list(name, flat=True).distinct()) for name in ("suite", "arch"))
    owners = User.objects.filter(Q(pk=person.pk) | Q(pk__in=Regression.objects.values("owner")))
    cases = known.filter(suite=follow.suite).values_list("case", flat=True).distinct()
    offered = {
        "suite": suites,
        "arch": [arch for arch in archs if is_named(arch)],
        "stream": list(Stream.objects.filter(archived=None).order_by("name").values_list("name", flat=True)),
        "owner": list(owners.order_by("username").values_list("username", flat=True)),
    }
    for name, word in follow.conditions.items():  # also what has no results yet, or none any more
        if word not in offered.get(name, (word,)):
            offered[name].append(word)
    return {"offered": offered, "suggested": {"case": list(cases.order_by("case")[:_SUGGESTED])}}


def _page(request: HttpRequest, form: FollowForm, *, secret: str = "", status: int = 200) -> HttpResponse:
    filters, complaints = query_string.read(FollowFilters, request.GET)
    follow, person = form.instance, _person(request)
    sent = Delivery.objects.filter(follow__in=_follows(request)).select_related("follow__user")
    context = {
        "conditions": query_string.filter_form(
            filters, **_offered(follow, person), clear=reverse("follow"), button="Count"
        ),
        "form": form,
        "matched": follows.matched(follow),
        "digest": follows.preview(follow),
        "look_back": LOOK_BACK.days,
        "may_mail": bool(person.email),
        "table": FOLLOWS.html(_listed(request), request, empty="You follow nothing yet."),
        "sent": SENT.html(list(sent.order_by("-created", "-pk")[:_ROWS]), None, empty="No message yet."),
        "secret": secret,
        "complaints": complaints,
    }
    response = render(request, "follow/follow.html", context, status=status)
    if secret:
        response["Cache-Control"] = "no-store"
    return response


def create(request: HttpRequest) -> HttpResponse:
    return _save(request, _new(request))


def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Change, test, pause, resume or delete a follow."""
    follow, who = get_object_or_404(_follows(request), pk=pk), request.user.get_username()
    if action == "change":
        return _save(request, follow)
    if action == "test":
        if follows.test(follow, who=who):
            messages.success(request, f"{follow}: {follow.last_result[:100]}")
        else:
            messages.error(request, f"{follow}: the message was not taken: {follow.last_result}")
    elif action == "delete":
        follows.delete(follow, who=who)
        messages.success(request, f"No longer followed: {follow}.")
    elif action in {"pause", "resume"}:
        follows.set_active(follow, active=action == "resume", who=who)
    else:
        raise Http404(f"a follow knows no {action[:60]}")
    return redirect("follow")


def _form(request: HttpRequest, follow: Follow, posted: Any = None) -> FollowForm:
    """Return the form of a follow that has the conditions of the address."""
    filters, _complaints = query_string.read(FollowFilters, request.GET)
    return FollowForm(posted, filters.apply(follow), is_operator="rules" in scopes_of(request))


def _save(request: HttpRequest, follow: Follow) -> HttpResponse:
    """Store what the form says, and show a secret that was made for it once."""
    person, form = _person(request), _form(request, follow, request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    follow = form.described(person)
    typed = follow.secret
    try:
        follows.save(follow, who=person.get_username())
    except ValidationError as error:
        form.add_error(None, error)
        return _page(request, form, status=422)
    messages.success(request, f"Followed: {follow}.")
    if follow.channel == Channel.STANDARD and follow.secret != typed:
        return _page(request, _form(request, _new(request)), secret=follow.secret)
    return redirect("follow")


def feed(request: HttpRequest, token: str) -> HttpResponse:
    """Answer the newest messages of a follow as RSS, to who knows its token."""
    known = _WHOLE.exclude(user__is_active=False)
    follow = get_object_or_404(known, channel=Channel.FEED, secret=token)
    home = request.build_absolute_uri("/")
    rss = Rss201rev2Feed(
        title=f"Compiler HUD: {unlinked(str(follow))}", link=home, description=unlinked(follow.subject)
    )
    for delivery in follow.deliveries.filter(delivered__isnull=False).order_by("-pk")[:_ROWS]:
        rss.add_item(
            title=unlinked(headline(delivery.event, delivery.data)),
            link=request.build_absolute_uri(delivery.data.get("url", "/")),
            description=plain_text(delivery),
            pubdate=delivery.delivered,
            unique_id=str(delivery.message_id),
            unique_id_is_permalink=False,
        )
    return HttpResponse(rss.writeString("utf-8"), content_type="application/rss+xml; charset=utf-8")
