"""Which stream results go to, and who may write there."""

import re
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from hud.accounts.keys import effective_scopes
from hud.models import IMPORT, NIGHTLY, OPERATORS_OWN, ApiKey, Stream
from hud.models.streams import NAME_PATTERN, adhoc
from hud.problems import Problem

_NAME = re.compile(NAME_PATTERN)
_OPERATOR = "rules"  # a scope that operators have and uploaders lack


def slug(name: str) -> str:
    """Return a stream's name for a key's name; '' if nothing is left of it."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:60]


def named(name: str) -> QuerySet[Stream]:
    """Return the stream of this name, or that had it before it was renamed or merged."""
    known = Q(name=name) | Q(aliases__contains=[name])
    return Stream.objects.filter(known) if "\0" not in name else Stream.objects.none()


def check_name(name: str) -> None:
    """Raise Problem 422 for a name that no stream can have."""
    if not _NAME.fullmatch(name):
        allowed = "1 to 60 lower-case letters, digits, dots, dashes and underscores"
        raise Problem(422, f"{name[:60]!r} names no stream, whose name has {allowed}", at="?stream")


def check_open(stream: Stream) -> Stream:
    """Return a stream that takes results. Raise Problem 403 for an archived one."""
    if stream.archived:
        raise Problem(
            403, f"the stream {stream.name} is archived: an operator can open it again on /streams/"
        )
    return stream


def for_upload(name: str, key: ApiKey | None) -> Stream:
    """Return the stream of an upload, made if its name is new. Without a name it is the key's, or `import`
    for the command line, which acts as an operator. Raise Problem 403, 422."""
    if not name:
        if key is None:
            return check_open(Stream.objects.get_or_create(name=IMPORT)[0])
        return check_open(Stream.objects.filter(keys=key).first() or adhoc())  # what it is by now
    return find_or_make(name, key=key, owner=key.owner if key else None, is_operator=_is_operator(key))


def may_write(stream: Stream, key: ApiKey | None) -> bool:
    """Return whether an upload with this key, or of the command line, may write to a stream."""
    return _is_operator(key) or _is_of(stream, key, key.owner if key else None)


def _is_operator(key: ApiKey | None) -> bool:
    return key is None or _OPERATOR in effective_scopes(key)


def _is_of(stream: Stream, key: ApiKey | None, owner: User | None) -> bool:
    """Return whether a stream is the key's own, its owner's, or made by the key."""
    if owner is not None and stream.owner_id == owner.pk:
        return True
    return key is not None and (stream.key_id == key.pk or stream.keys.filter(pk=key.pk).exists())


def find_or_make(
    name: str, *, key: ApiKey | None = None, owner: User | None = None, is_operator: bool = False
) -> Stream:
    """Return a stream that the caller may write to. An unknown name is made; it belongs to the caller, and
    its reference is the front stream that an operator chose, else `nightly`. Raise Problem 403, 422."""
    check_name(name)
    stream = named(name).first()
    if stream is None:
        if name in OPERATORS_OWN and not is_operator:
            raise Problem(403, f"the stream {name} belongs to somebody else")
        reference = Stream.objects.filter(Q(is_front=True) | Q(name=NIGHTLY)).order_by("-is_front").first()
        made = {"owner": owner, "key": None if owner else key, "reference": reference}
        stream, _new = Stream.objects.get_or_create(name=name, defaults=made)
    if not (is_operator or _is_of(stream, key, owner)):
        raise Problem(403, f"the stream {stream.name} belongs to somebody else")
    return check_open(stream)


def of_new_key(
    name: str, stream_name: str, *, scopes: Sequence[str], owner: User | None, is_operator: bool
) -> Stream | None:
    """Return the stream of a new key: the named one, else that of the owner's earlier key of the same name,
    else one of the key's own name; None for a key that may not upload. Raise Problem 403 where it belongs
    to somebody else, 422 for a name that none can have."""
    if not {"upload", "admin"} & set(scopes):
        return None
    earlier = ApiKey.objects.filter(name=name, owner=owner, host=None, stream__isnull=False)
    replaced = earlier.order_by("pk").values_list("stream__name", flat=True).last()
    try:
        return find_or_make(stream_name or replaced or slug(name), owner=owner, is_operator=is_operator)
    except Problem as error:
        detail = f"{error}; name the key otherwise, or give it a stream of your own"
        raise Problem(error.status, detail, errors=error.errors) from error
