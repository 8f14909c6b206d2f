"""One Redis user for each host, if the server permits it.

Such a user reaches the queues, jobs and workers of its own host and RQ's list of workers, and no
administrative command. Its password is derived from the host's key, so it is stored nowhere and ends with the
key. Redis forgets its users when it restarts; `manage.py tick` restores them.
"""

import hmac
import logging
import re
from collections import Counter
from contextlib import suppress
from itertools import islice
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from hud.hosts import queues
from hud.hosts.registration import control
from hud.models import Accelerator, ApiKey, Host

logger = logging.getLogger(__name__)
_COMMANDS = (  # what RQ's worker needs; others, such as PFCOUNT, have had holes
    *("+auth", "+hello", "+select", "+ping", "+multi", "+exec", "+info", "+exists", "+del", "+expire"),
    *("+hget", "+hstrlen", "+hexists", "+hset", "+sadd", "+srem", "+blmove"),
)
_CLOSED = "hud:rq_workers_closed"  # set once a host has filled the one list that all of them write
_OWNED = re.compile(rb"rq:(?:queue|job|worker|workers):host-(\d+)-")
_MOST_BYTES = 2**20  # of a host's keys; those of RQ's workers have a hundredth


def url_of(host: Host) -> str:
    """Return the Redis URL of a host, with its own user unless the server permits none (`Host.redis_user`).
    A missing user is created by the next tick."""
    parts = urlsplit(settings.REDIS_URL)
    digest = key_digest_of(host.pk) if host.redis_user is not False else None
    if digest is None:
        return str(settings.REDIS_URL)
    server = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{_name(host)}:{_password(digest)}@{server}"))


def sync() -> None:
    """Create and delete Redis users to match the attached hosts, with the rights of this release; store for
    each host whether it has one. A host whose keys are too large is drained, and has neither them nor a user
    until it is resumed. Do nothing while Redis is down."""
    try:
        with queues.connect() as redis:
            is_too_large = (redis.memory_usage(REDIS_WORKER_KEYS, samples=0) or 0) > _MOST_BYTES
            _set_users(redis, may_list_workers=not is_too_large and not redis.exists(_CLOSED))
            for host in Host.objects.filter(pk__in=_with_large_keys(redis), redis_user=True):
                _shut_out(redis, host)
            _list_workers(redis)
            if is_too_large:
                logger.warning("%s was filled: hosts of an earlier release are not woken", REDIS_WORKER_KEYS)
                redis.set(_CLOSED, 1)
    except (RedisError, OSError) as error:
        logger.warning("Redis is away or full: %s", error)


def _set_users(redis: Redis, *, may_list_workers: bool) -> None:
    attached = Host.objects.filter(detached_at__isnull=True)
    shared = ["~rq:workers"] if may_list_workers else []
    try:
        for host in attached.filter(drained=False):
            if digest := key_digest_of(host.pk):
                rules = [*_rules(host, _password(digest)), *shared]
                redis.execute_command("ACL", "SETUSER", _name(host), *rules)
                if not host.redis_user:
                    Host.objects.filter(pk=host.pk).update(redis_user=True)
        for host in Host.objects.filter(detached_at__isnull=False, redis_user=True):
            redis.execute_command("ACL", "DELUSER", _name(host))  # also ends its connections
            Host.objects.filter(pk=host.pk).update(redis_user=None)
    except ResponseError as error:  # Redis before 6 has no such command; REDIS_URL's user may lack the right
        if attached.exclude(redis_user=False).update(redis_user=False):
            logger.warning("all hosts share one Redis user, because the server makes no others: %s", error)


def _with_large_keys(redis: Redis) -> list[int]:
    """Return the hosts whose keys have more than `_MOST_BYTES`."""
    held_bytes: Counter[bytes] = Counter()
    for key in redis.scan_iter("rq:*:host-*", count=1000):
        if (owned := _OWNED.match(key)) and held_bytes[owned[1]] <= _MOST_BYTES:
            held_bytes[owned[1]] += redis.memory_usage(key, samples=0) or 0
    return [int(host) for host, size_bytes in held_bytes.items() if size_bytes > _MOST_BYTES]


def _shut_out(redis: Redis, host: Host) -> None:
    redis.execute_command("ACL", "DELUSER", _name(host))  # also ends its connections
    keys = redis.scan_iter(f"rq:*:{_name(host)}-*", count=1000)
    while some := list(islice(keys, 1000)):
        redis.unlink(*some)
    note = f"It filled Redis with more than {_MOST_BYTES >> 10} KiB of its own. Resume it when it is safe."
    logger.warning("%s is drained: %s", host.name, note)
    control("drain", host=host, note=note, who="tick")


def _list_workers(redis: Redis) -> None:
    """Write RQ's list of all workers, for its pages, from those of the hosts' queues: hosts of an earlier
    release write it too, and may have made something else of it."""
    workers: set[bytes] = set()
    for accelerator in Accelerator.objects.filter(host__detached_at=None):
        with suppress(ResponseError):  # the host made something else of its own list
            workers |= redis.smembers(WORKERS_BY_QUEUE_KEY % accelerator.queue)
    redis.delete(REDIS_WORKER_KEYS)  # by itself, since a full Redis takes no transaction with a write
    if workers:
        redis.sadd(REDIS_WORKER_KEYS, *workers)


def _rules(host: Host, password: str) -> list[str]:
    own = [f"~rq:{kind}:{_name(host)}-*" for kind in ("queue", "job", "worker", "workers")]
    return ["reset", "on", f">{password}", *own, *_COMMANDS]


def _name(host: Host) -> str:
    return f"host-{host.pk}"


def key_digest_of(host: int) -> str | None:
    """Return the digest of the host's newest valid key."""
    alive = ApiKey.objects.filter(host_id=host, scopes=["host"], revoked__isnull=True)
    return alive.order_by("-pk").values_list("digest", flat=True).first()


def _password(digest: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), f"redis user {digest}".encode(), "sha256").hexdigest()
