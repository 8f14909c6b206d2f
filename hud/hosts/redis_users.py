"""A Redis user of its own for each host, where the server lets us make one.

Such a user reaches the queues, wake-ups and workers of its own host and RQ's list of workers, and no
command that rules the server. Its password is derived from the host's key, so it is stored nowhere and ends
with the key. Redis forgets its users when it restarts: `manage.py tick` brings them back.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from hud.hosts import queues
from hud.models import ApiKey, Host

logger = logging.getLogger(__name__)
_EMBEDDED = "unix"
_COMMANDS = ["+@read", "+@write", "+@connection", "+@transaction", "-@admin", "-@dangerous", "+info"]


def url_of(host: Host) -> str:
    """The address under which a host reaches Redis: as its own user, unless the server is known to make
    none (`Host.redis_user`). A user that is not there yet is made by the next tick."""
    parts = urlsplit(settings.REDIS_URL)
    digest = _key_of(host) if host.redis_user is not False and parts.scheme != _EMBEDDED else None
    if digest is None:
        return str(settings.REDIS_URL)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{_name(host)}:{_password(digest)}@{place}"))


def sync() -> None:
    """Brings Redis's users to what the database says, and notes for each host whether it has one.

    Does nothing while Redis is away, or where it is the embedded one, which no other machine can reach.
    """
    if urlsplit(settings.REDIS_URL).scheme == _EMBEDDED:
        return
    attached = Host.objects.filter(detached_at__isnull=True)
    try:
        with queues.connect() as redis:
            _make_missing(redis, list(attached))
            _remove_gone(redis)
    except ResponseError as error:  # no such command before Redis 6; not permitted to the user of REDIS_URL
        if attached.exclude(redis_user=False).update(redis_user=False):
            logger.warning("all hosts share one Redis user, because the server makes no others: %s", error)
    except (RedisError, OSError) as error:
        logger.warning("Redis is away: %s", error)


def _make_missing(redis: Redis, hosts: list[Host]) -> None:
    rules = {line.split(" ")[1]: line for line in map(_text, redis.execute_command("ACL", "LIST"))}
    for host in hosts:
        digest = _key_of(host)
        if digest is None:
            continue
        password = _password(digest)
        if f"#{hashlib.sha256(password.encode()).hexdigest()}" not in rules.get(_name(host), ""):
            redis.execute_command("ACL", "SETUSER", _name(host), *_rules(host, password))
        if not host.redis_user:
            Host.objects.filter(pk=host.pk).update(redis_user=True)


def _remove_gone(redis: Redis) -> None:
    for host in Host.objects.filter(detached_at__isnull=False, redis_user=True):
        redis.execute_command("ACL", "DELUSER", _name(host))  # ends its connections, too
        Host.objects.filter(pk=host.pk).update(redis_user=None)


def _rules(host: Host, password: str) -> list[str]:
    """Queues, jobs and workers of one host (their names begin with the user's), and RQ's list of workers."""
    own = [f"~rq:{kind}:{_name(host)}-*" for kind in ("queue", "job", "worker", "workers")]
    return ["reset", "on", f">{password}", *own, "~rq:workers", *_COMMANDS]


def _name(host: Host) -> str:
    return f"host-{host.pk}"


def _key_of(host: Host) -> str | None:
    """Digest of its newest live key."""
    alive = ApiKey.objects.filter(host=host, revoked__isnull=True)
    return alive.order_by("-pk").values_list("digest", flat=True).first()


def _password(digest: str) -> str:
    made = hmac.new(settings.SECRET_KEY.encode(), f"redis user {digest}".encode(), hashlib.sha256)
    return made.hexdigest()


def _text(line: bytes | str) -> str:
    return line.decode() if isinstance(line, bytes) else line
