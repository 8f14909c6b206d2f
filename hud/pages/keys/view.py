"""Login and logout; each person's API keys, and for admins those of all."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import LoginView, LogoutView
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.safestring import SafeString

from hud.accounts.access import scopes_of
from hud.accounts.keys import create_key, effective_scopes, revoke_key, with_owners
from hud.accounts.roles import SCOPES
from hud.models import ApiKey
from hud.pages import data
from hud.problems import Problem
from hud.runs.streams import of_new_key
from hud.tables.formatting import address, ago
from hud.tables.html import NOTHING, code, csrf_field, dim, element, join, link, post_button
from hud.tables.table import Column, DataTable


def _is_of_all(request: HttpRequest) -> bool:
    return "admin" in scopes_of(request)


def _owner(key: ApiKey, _request: HttpRequest) -> object:
    if key.owner:
        return join(key.owner.username, NOTHING if key.owner.is_active else dim("(login disabled)"))
    return join(dim("host"), key.host.name) if key.host else dim("none")


def _scopes(key: ApiKey, _request: HttpRequest) -> SafeString:
    effective = effective_scopes(key)
    title = "not in the role of its owner any more"
    lost = {scope for scope in key.scopes if key.owner and scope not in effective}
    shown = [element("s", scope, css="dim", title=title) if scope in lost else scope for scope in key.scopes]
    return join(*shown, by=", ")


def _stream(name: str) -> object:
    return name and link(f"/?stream={name}", name)


def _state(key: ApiKey) -> object:
    if key.revoked:
        return join("revoked", ago(key.revoked))
    if key.expires and key.expires < timezone.now():
        return join("expired", ago(key.expires))
    return f"expires on {key.expires:%Y-%m-%d}" if key.expires else "active"


def _revoke(key: ApiKey, request: HttpRequest) -> SafeString:
    if key.revoked:
        return NOTHING
    where, about = address(key.pk, "key_revoke"), f"Revoke {key.name}"
    return post_button(where, csrf_field(request), "Revoke", css="danger", aria_label=about)


KEYS = DataTable[ApiKey, HttpRequest](
    Column("name", "Name", is_head=True),
    Column("prefix", "Prefix", show=lambda prefix: code(f"{prefix}…")),
    Column("owner", "Owner", "owner?.username", draw=_owner, label="owner", only=_is_of_all),
    Column("scopes", "Scopes", lambda key: " ".join(key.scopes), draw=_scopes, label="scopes"),
    "host=host?.name",
    Column("stream", "Stream", "stream?.name", show=_stream, label="stream"),
    Column("created", "Created", show=ago, label="created"),
    Column(
        "last_used", "Last used", show=lambda used: ago(used) if used else dim("never"), label="last used"
    ),
    "expires revoked",
    Column("", "State", _state),
    Column("", "Actions", draw=_revoke, hides_title=True),
)

ROWS = 200


class KeyForm(forms.Form):
    """A new key, with scopes of those that its owner has."""

    name = forms.CharField(label="Name", max_length=100, help_text="what will use it")
    scopes = forms.MultipleChoiceField(label="Scopes", widget=forms.CheckboxSelectMultiple)
    stream = forms.CharField(
        label="Stream", max_length=60, required=False, help_text="of its uploads; default: one of its name"
    )
    days = forms.TypedChoiceField(
        label="Expires",
        coerce=int,
        empty_value=None,
        required=False,
        choices=[("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never")],
        initial="90",
    )

    def __init__(self, data: Any = None, *, scopes: Collection[str]) -> None:
        super().__init__(data)
        field = self.fields["scopes"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(scope, meaning) for scope, meaning in SCOPES.items() if scope in scopes]


login = LoginView.as_view(
    template_name="keys/login.html",
    redirect_authenticated_user=True,
    extra_context={"sign_on": lambda: bool(settings.HUD_OIDC_ISSUER)},
)
logout = LogoutView.as_view()


def key_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer_table(data_format, "keys", KEYS, _keys(request))
    return _page(request, KeyForm(scopes=scopes_of(request)))


def _page(request: HttpRequest, form: KeyForm, *, secret: str = "", status: int = 200) -> HttpResponse:
    keys = _keys(request)
    table = KEYS.html(
        keys,
        request,
        caption=f"{'Keys of everybody' if _is_of_all(request) else 'Your keys'}, newest first",
        empty="No keys yet.",
    )
    context = {"table": table, "form": form, "secret": secret, "most": ROWS if len(keys) == ROWS else None}
    return render(request, "keys/keys.html", context, status=status)


def _keys(request: HttpRequest) -> list[ApiKey]:
    """Return the newest keys that the person may see: all for an admin, else the own ones."""
    condition = "%(of_all)s OR own.owner_id = %(person)s ORDER BY own.id DESC LIMIT %(most)s"
    return with_owners(condition, of_all=_is_of_all(request), person=request.user.pk, most=ROWS)


def create(request: HttpRequest) -> HttpResponse:
    """Create a key of the person and show its secret once."""
    form = KeyForm(request.POST, scopes=scopes_of(request))
    if not form.is_valid():
        return _page(request, form, status=422)
    said, user = form.cleaned_data, request.user
    assert user.is_authenticated
    expires = timezone.now() + timedelta(days=said["days"]) if said["days"] else None
    try:
        with transaction.atomic():
            stream = of_new_key(
                said["name"],
                said["stream"],
                scopes=said["scopes"],
                owner=user,
                is_operator="rules" in scopes_of(request),
            )
            _key, secret = create_key(
                name=said["name"],
                scopes=said["scopes"],
                who=user.get_username(),
                owner=user,
                expires=expires,
                stream=stream,
            )
    except Problem as error:
        form.add_error("stream", str(error))
        return _page(request, form, status=error.status)
    response = _page(request, KeyForm(scopes=scopes_of(request)), secret=secret)
    response["Cache-Control"] = "no-store"
    return response


def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke a key of the person's own, or as an admin any."""
    found = ApiKey.objects.all()
    if not _is_of_all(request):
        found = found.filter(owner=request.user.pk)
    key = get_object_or_404(found, pk=pk)
    revoke_key(key=key, who=request.user.get_username())
    messages.success(request, f"Revoked key {key}.")
    return redirect("keys")
