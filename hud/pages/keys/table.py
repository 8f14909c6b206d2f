"""The table of API keys."""

from dataclasses import dataclass
from datetime import datetime

from django.utils.safestring import SafeString

from hud.accounts.keys import effective_scopes
from hud.models import ApiKey
from hud.tables.formatting import address, ago
from hud.tables.html import NOTHING, code, dim, element, join, link, post_button
from hud.tables.table import Column, DataTable


@dataclass(frozen=True)
class KeysPage:
    of_all: bool  # for an admin
    now: datetime
    csrf: SafeString


def _owner(key: ApiKey, _page: KeysPage) -> object:
    if key.owner:
        return join(key.owner.username, NOTHING if key.owner.is_active else dim("(login disabled)"))
    return join(dim("host"), key.host.name) if key.host else dim("none")


def _scopes(key: ApiKey, _page: KeysPage) -> SafeString:
    effective = effective_scopes(key)
    title = "not in the role of its owner any more"
    lost = {scope for scope in key.scopes if key.owner and scope not in effective}
    shown = [element("s", one, css="dim", title=title) if one in lost else one for one in key.scopes]
    return join(*shown, by=", ")


def _stream(key: ApiKey, _page: KeysPage) -> SafeString:
    return link(f"/?stream={key.stream.name}", key.stream.name) if key.stream else NOTHING


def _state(key: ApiKey, page: KeysPage) -> object:
    if key.revoked:
        return join("revoked", ago(key.revoked))
    if key.expires and key.expires < page.now:
        return join("expired", ago(key.expires))
    return f"expires on {key.expires:%Y-%m-%d}" if key.expires else "active"


def _revoke(key: ApiKey, page: KeysPage) -> SafeString:
    if key.revoked:
        return NOTHING
    where, about = address(key.pk, "key_revoke"), f"Revoke {key.name}"
    return post_button(where, page.csrf, "Revoke", css="danger", aria_label=about)


KEYS = DataTable[ApiKey, KeysPage](
    Column("name", "Name", is_head=True),
    Column("prefix", "Prefix", show=lambda prefix: code(f"{prefix}…")),
    Column("owner", "Owner", "owner?.username", draw=_owner, label="owner", only=lambda page: page.of_all),
    Column("scopes", "Scopes", lambda key: " ".join(key.scopes), draw=_scopes, label="scopes"),
    "host=host?.name",
    Column("stream", "Stream", "stream?.name", draw=_stream, label="stream"),
    Column("created", "Created", show=ago, label="created"),
    Column(
        "last_used", "Last used", show=lambda used: ago(used) if used else dim("never"), label="last used"
    ),
    "expires revoked",
    Column("", "State", draw=_state),
    Column("", "Actions", draw=_revoke, hides_title=True),
)
