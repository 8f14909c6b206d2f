"""Webhooks, for operators."""

from urllib.parse import urlsplit

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from hud.models import Webhook, WebhookFormat
from hud.notifications import webhooks
from hud.notifications.messages import EVENTS
from hud.pages import data
from hud.sql import fetch_models
from hud.tables.table import DataTable

_COLUMNS = DataTable(  # without the path of the address, which may be a secret of its receiver
    "id=pk host name format events active created last_at last_ok last_result waiting",
    host=lambda webhook: urlsplit(webhook.url).hostname,
)
_USUAL = ("open", "confirmed", "resolved", "overdue")


class WebhookForm(forms.Form):
    name = forms.CharField(max_length=100, help_text="who is told")
    url = forms.URLField(label="URL", max_length=500, assume_scheme="https")
    format = forms.ChoiceField(
        choices=[
            (WebhookFormat.STANDARD.value, "Standard Webhooks: signed JSON"),
            (WebhookFormat.SLACK.value, "Slack: an incoming webhook"),
            (WebhookFormat.GITHUB.value, "GitHub: a comment on an issue or pull request"),
        ],
    )
    secret = forms.CharField(
        max_length=300,
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="standard: whsec_…, empty for a new one; GitHub: a token that may comment; Slack: none",
    )
    events = forms.MultipleChoiceField(
        choices=[(event, event) for event in EVENTS],
        initial=_USUAL,
        widget=forms.CheckboxSelectMultiple,
    )


def webhook_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer_table(data_format, "notifications", _COLUMNS, _webhooks())
    number = request.GET.get("edit", "")
    editing = Webhook.objects.filter(pk=number).first() if number.isdecimal() else None
    form = WebhookForm(initial=forms.model_to_dict(editing, exclude=["secret"])) if editing else WebhookForm()
    return _page(request, form, editing=editing)


def _page(
    request: HttpRequest,
    form: WebhookForm,
    *,
    editing: Webhook | None = None,
    secret: str = "",
    status: int = 200,
) -> HttpResponse:
    context = {"webhooks": _webhooks(), "form": form, "editing": editing, "secret": secret}
    response = render(request, "notifications/notifications.html", context, status=status)
    if secret:
        response["Cache-Control"] = "no-store"
    return response


def _webhooks() -> list[Webhook]:
    waiting = """(SELECT count(*) FROM hud_delivery
        WHERE webhook_id = own.id AND delivered IS NULL AND given_up IS NULL)"""
    return fetch_models(Webhook, "ORDER BY name", {}, computed={"waiting": waiting})


def create(request: HttpRequest) -> HttpResponse:
    return _save(request, Webhook())


def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Change, test, pause, resume or delete a webhook."""
    webhook, who = get_object_or_404(Webhook, pk=pk), request.user.get_username()
    if action == "change":
        return _save(request, webhook)
    if action == "test":
        if webhooks.test(webhook, who=who):
            messages.success(request, f"{webhook.name} answered {webhook.last_result[:100]}")
        else:
            messages.error(request, f"{webhook.name} did not take the message: {webhook.last_result}")
    elif action == "delete":
        webhooks.delete(webhook, who=who)
        messages.success(request, f"Deleted the webhook {webhook.name}.")
    elif action in {"pause", "resume"}:
        webhooks.set_active(webhook, active=action == "resume", who=who)
    else:
        raise Http404(f"a webhook knows no {action[:60]}")
    return redirect("notifications")


def _receiver(kind: str, url: str) -> tuple[str, ...]:
    """Return what a secret was made for; another port or no TLS is another receiver."""
    parts = urlsplit(url)
    return kind, parts.scheme, parts.netloc


def _save(request: HttpRequest, webhook: Webhook) -> HttpResponse:
    """Store what the form says, and show a secret that was made for it once."""
    form, editing = WebhookForm(request.POST), webhook if webhook.pk else None
    if not form.is_valid():
        return _page(request, form, editing=editing, status=422)
    said = form.cleaned_data
    given = said.pop("secret")
    if webhook.pk and _receiver(said["format"], said["url"]) != _receiver(webhook.format, webhook.url):
        webhook.secret = ""  # it was made for another receiver
    for name, value in {**said, **({"secret": given} if given else {})}.items():
        setattr(webhook, name, value)
    had = webhook.secret
    try:
        webhooks.save(webhook, who=request.user.get_username())
    except ValidationError as error:
        form.add_error(None, error)
        return _page(request, form, editing=editing, status=422)
    messages.success(request, f"Saved the webhook {webhook.name}.")
    if webhook.secret != had:
        return _page(request, WebhookForm(), secret=webhook.secret)
    return redirect("notifications")
