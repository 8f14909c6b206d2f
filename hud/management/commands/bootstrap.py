"""`manage.py bootstrap`: create what the first page needs; runs at every start."""

import json
import platform
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from hud import replica
from hud.accounts.keys import create_key, find_key
from hud.accounts.roles import Role, create_user
from hud.hosts import heartbeats
from hud.models import Host, Metric
from hud.runs import schedules
from hud.server.embedded import make_folder, write_private
from runner.schema.metrics import METRICS

WHO = "bootstrap"
OPERATOR = "operator"


class Command(BaseCommand):
    help = "Create the operator's account, the registry of metrics and the daily schedule of ceilings."

    def add_arguments(self, parser: CommandParser) -> None:
        text = "also create this machine as a host with its key; the web's address for its agent"
        parser.add_argument("--hud", default="", help=text)

    @transaction.atomic
    def handle(self, *_args: Any, hud: str, **_options: Any) -> None:
        make_folder(settings.HUD_DATA)
        heartbeats.join()
        sync_metrics()
        schedules.create_default()
        host = sync_host(settings.HUD_DATA / "host.json", hud=hud) if hud else None
        path = settings.HUD_DATA / "operator.json"
        password = sync_operator(path)
        if password:
            self.stdout.write(f'Operator account "{OPERATOR}", password {password} (kept in {path})')
        else:
            self.stdout.write(f'The password of the account "{OPERATOR}" is in {path}')
        if condition := "".join(replica.condition()):
            self.stdout.write(condition)
        if host and host.detached_at:
            self.stdout.write(
                f"This machine runs nothing: an operator detached the host {host.name} on"
                f" {host.detached_at:%Y-%m-%d}. To attach it again, create a token on {hud}/hosts/"
                " and run the command shown there."
            )


def sync_metrics() -> None:
    """Store the metrics of `runner.schema.metrics`; rows of other metrics stay."""
    rows = [info.to_row() for info in METRICS.values()]
    Metric.objects.bulk_create(
        [Metric(**row) for row in rows],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=[name for name in rows[0] if name != "name"],
    )


def sync_host(path: Path, *, hud: str) -> Host:
    """Create a host for this machine, and return it. A valid key stays, since an agent may be using it."""
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    name = known.get("name") or platform.node() or "localhost"
    host, _new = Host.objects.get_or_create(name=name)
    if host.detached_at:  # by an operator; only a registration token attaches it again
        return host
    key = find_key(known.get("key", ""))
    secret = known.get("key", "")
    if key is None or key.host_id != host.pk:
        _key, secret = create_key(name=f"host {name}"[:100], scopes=["host"], who=WHO, host=host)
    write_private(path, json.dumps({"hud": hud, "name": name, "key": secret}))
    return host


def sync_operator(path: Path) -> str:
    """Create the first account; return its password, or '' if the account exists.

    An existing account keeps its password, even if the file with the password is lost.
    """
    if User.objects.filter(username=OPERATOR).exists():
        return ""
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    password = known.get("password") or secrets.token_urlsafe(12)
    create_user(name=OPERATOR, role=Role.ADMIN, who=WHO, password=password)
    write_private(path, json.dumps({"username": OPERATOR, "password": password}))
    return password
