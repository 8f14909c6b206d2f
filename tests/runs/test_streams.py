"""Which stream a result goes to, and who may write there (rule S1)."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.accounts.keys import create_key, revoke_key, with_owners
from hud.accounts.roles import Role, scopes_of_user, set_role
from hud.ingest import Receipt, ingest
from hud.ingest.export import export
from hud.models import (
    ADHOC,
    IMPORT,
    NIGHTLY,
    OPERATORS_OWN,
    ApiKey,
    Run,
    Schedule,
    Series,
    Stream,
    Upload,
)
from hud.models.streams import adhoc
from hud.problems import Problem
from hud.runs import requests, schedules, streams
from hud.runs.matching import ResourceRequest
from runner.formats.parameters import Parameters
from runner.schema.suite import BadRequest
from runner.schema.tasks import Selection
from tests.support.factories import create_accelerator, create_run, create_user
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db
BODY = as_list(v3_record())


def key_of(
    name: str, scopes: tuple[str, ...] = ("upload",), owner: User | None = None, **given: Any
) -> ApiKey:
    """Return a new key with its stream, as pages and the command make it."""
    operates = owner is None or "rules" in scopes_of_user(owner)
    stream = streams.of_new_key(
        name, given.pop("stream", ""), scopes=scopes, owner=owner, is_operator=given.pop("operates", operates)
    )
    key = create_key(name=name, scopes=list(scopes), who="t", owner=owner, stream=stream, **given)[0]
    return with_owners("own.id = %(pk)s", pk=key.pk)[0]


def upload(key: ApiKey | None, stream: str = "", body: bytes = BODY, **given: str) -> Receipt:
    return ingest(body, Parameters(stream=stream, **given), key=key)


def stream_of(receipt: Receipt) -> str:
    assert receipt.id
    return Upload.objects.get(pk=receipt.id).stream.name


def test_an_upload_goes_to_the_named_stream_else_to_its_keys() -> None:
    key = key_of("My Laptop!")
    assert key.stream
    assert key.stream.name == "my-laptop"
    assert stream_of(upload(key)) == "my-laptop"
    assert stream_of(upload(key, "other")) == "other"
    assert stream_of(upload(None)) == IMPORT
    assert set(Run.objects.values_list("stream__name", flat=True)) == {"my-laptop", "other", IMPORT}
    assert adhoc().name == ADHOC
    assert create_run(stream=adhoc()).stream.name == ADHOC
    assert key_of("reader", ("read",)).stream is None


def test_the_same_file_in_two_streams_is_stored_twice_and_inside_one_once() -> None:
    key = key_of("k")
    first, other, again = upload(key, "one"), upload(key, "two"), upload(key, "one")
    assert (first.stored, other.stored, again.stored, again.duplicates) == (1, 1, 0, 1)
    assert (again.id, Series.objects.count(), Run.objects.count()) == (first.id, 2, 2)
    assert (first.links["stream"], again.links["stream"]) == ("/?stream=one", "/?stream=one")


def test_an_idempotency_key_of_one_stream_answers_for_no_other() -> None:
    key = key_of("k")
    ingest(BODY, Parameters(stream="one"), key=key, idempotency_key="night")
    assert ingest(BODY, Parameters(stream="one"), key=key, idempotency_key="night").replayed
    with pytest.raises(Problem):
        ingest(BODY, Parameters(stream="two"), key=key, idempotency_key="night")


def test_an_upload_adds_nothing_to_a_run_of_another_stream() -> None:
    """It has a copy of the run in its own."""
    key = key_of("k")
    upload(key, "one")
    exported = b"".join(export("v3", {}))
    again = upload(key, "two", exported)
    assert (again.stored, again.duplicates) == (1, 0)
    record = json.loads(exported.splitlines()[0])
    more = copy.deepcopy(record)
    more["benchmark"]["extra_info"]["hud"]["case"] = "other"
    receipt = upload(key, "two", as_lines(record, more))
    assert (receipt.stored, receipt.duplicates, len(receipt.skipped)) == (1, 1, 0)
    assert Run.objects.filter(stream__name="one").get().pk not in receipt.run_ids
    assert [Series.objects.filter(stream__name=name).count() for name in ("one", "two")] == [1, 2]


@pytest.mark.parametrize("name", ["Upper", "-x", ".x", "a b", "a/b", "ä", "x" * 61, "a\n"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(Problem) as refusal:
        streams.find_or_make(name, is_operator=True)
    assert (refusal.value.status, refusal.value.errors[0].pointer) == (422, "?stream")
    assert not Stream.objects.exclude(name__in=OPERATORS_OWN).exists()


def test_an_archived_stream_takes_nothing_in_whatever_way() -> None:
    key = key_of("k")
    assert key.stream
    Stream.objects.filter(pk=key.stream.pk).update(archived="2026-11-20T00:00:00Z")
    key = with_owners("own.id = %(pk)s", pk=key.pk)[0]
    for caller, name in ((key, ""), (key, "k"), (None, "k")):
        with pytest.raises(Problem, match="archived"):
            upload(caller, name)
    create_accelerator()
    experiment_run = create_run(stream=key.stream)
    with pytest.raises(BadRequest, match="archived"):
        requests.request_suite(
            Selection("micro", "cuda", cases=["layer_norm"]),
            requests.RunOptions(ResourceRequest("cuda"), "t", stream=key.stream),
        )
    schedule = schedules.save(Schedule(name="s", cron="0 4 * * *", suite="micro", stream=key.stream), who="t")
    trigger = schedules.fire(schedule, schedule.created)
    assert trigger
    assert "archived" in trigger.reason
    assert list(Run.objects.all()) == [experiment_run]


def test_a_schedule_writes_to_nightly_unless_it_has_a_stream() -> None:
    create_accelerator()
    own = Stream.objects.create(name="own")
    for name, stream in (("a", None), ("b", own)):
        schedule = schedules.save(
            Schedule(name=name, cron="0 4 * * *", suite="micro", stream=stream), who="t"
        )
        trigger = schedules.fire(schedule, schedule.created)
        assert trigger
        assert {one.run.stream.name for one in trigger.requests.all()} == {stream.name if stream else NIGHTLY}
    assert Schedule.objects.count() == 2


def test_a_key_of_the_same_name_keeps_the_stream_of_the_one_it_replaces() -> None:
    owner = create_user("olga", Role.UPLOADER)
    first = key_of("ci", owner=owner, stream="ci-main")
    revoke_key(key=first, who="olga")
    assert key_of("ci", owner=owner).stream == first.stream
    other = create_user("mara", Role.UPLOADER)
    assert key_of("ci", owner=other).stream == Stream.objects.get(name="ci", owner=other)
    with pytest.raises(Problem, match="ci-main"):
        key_of("second", owner=other, stream="ci-main")


def test_a_new_key_whose_default_stream_is_somebody_elses_is_refused() -> None:
    key_of("laptop", owner=create_user("olga", Role.UPLOADER))
    mara = create_user("mara", Role.UPLOADER)
    for name in ("laptop", "Laptop", *OPERATORS_OWN):
        with pytest.raises(Problem, match="name the key otherwise"):
            key_of(name, owner=mara)
    call_command("create_key", "laptop", "--scopes", "upload")  # acts as an operator
    with pytest.raises(CommandError, match="give it a stream"):
        call_command("create_key", "日本", "--scopes", "upload")


def test_a_stream_outlives_its_owner_and_key() -> None:
    owner = create_user("olga", Role.UPLOADER)
    mine, keys_own = key_of("a", owner=owner), key_of("b")
    upload(mine)
    upload(keys_own, "made")
    owner.delete()
    ApiKey.objects.all().delete()
    assert {"a", "b", "made"} <= set(Stream.objects.values_list("name", flat=True))
    assert Series.objects.count() == 2
    with pytest.raises(Problem):
        upload(key_of("c", owner=create_user("mara", Role.UPLOADER)), "a")


def test_the_old_name_of_a_stream_goes_on() -> None:
    key = key_of("k")
    stream = streams.find_or_make("new", key=key)
    Stream.objects.filter(pk=stream.pk).update(aliases=["old"])
    assert stream_of(upload(key, "old")) == "new"
    with pytest.raises(Problem, match="new"):
        upload(key_of("other"), "old")


@dataclass
class Model:
    """Rule S1, once more: who may write to which stream."""

    owner: dict[str, str] = field(default_factory=lambda: dict.fromkeys(OPERATORS_OWN, "nobody"))

    def writes(self, key: str, person: str, own: str, name: str, *, operates: bool) -> bool:
        """Return whether a key may write, and make the stream if so."""
        me = person or f"key {key}"
        if operates:
            self.owner.setdefault(name, me)
            return True
        if name == own:
            return True
        return self.owner.setdefault(name, me) == me


PEOPLE = {"": None, "ulla": Role.UPLOADER, "udo": Role.UPLOADER, "oskar": Role.OPERATOR, "ada": Role.ADMIN}
NAMES = ["one", "two", "k0", "k1", "k2", "k3", *OPERATORS_OWN]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    makers=st.lists(
        st.tuples(
            st.sampled_from(list(PEOPLE)),
            st.sampled_from([("upload",), ("upload", "read"), ("upload", "rules"), ("admin",)]),
            st.sampled_from(["", *NAMES]),
        ),
        min_size=1,
        max_size=4,
    ),
    writes=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", *NAMES])), max_size=12),
)
def test_rights_are_those_of_the_rule(
    makers: list[tuple[str, tuple[str, ...], str]], writes: list[tuple[int, str]]
) -> None:
    with transaction.atomic():
        model = Model()
        people = {name: create_user(name, role) for name, role in PEOPLE.items() if role}
        keys: list[tuple[ApiKey, str, str, bool]] = []
        for number, (person, wanted, named) in enumerate(makers):
            operator = person in {"", "oskar", "ada"}  # the command line acts as one
            above = not operator or (person == "oskar" and "admin" in wanted)
            scopes = ("upload", "rules") if above and operator else ("upload",) if above else wanted
            own = named or f"k{number}"
            may = operator or model.owner.get(own, person) == person
            try:
                key = key_of(f"k{number}", scopes, people.get(person), stream=named)
            except Problem:
                assert not may, (person, own, model)
                continue
            assert may, (person, own, model)
            model.owner.setdefault(own, person or "nobody")
            assert key.stream
            assert key.stream.name == own
            keys.append((key, person, own, bool({"rules", "admin"} & set(scopes))))
        for number, named in writes:
            if number >= len(keys):
                continue
            key, person, own, operates = keys[number]
            name = named or own
            may = model.writes(str(key.pk), person, own, name, operates=operates)
            try:
                assert streams.for_upload(named, key).name == name
            except Problem:
                assert not may, (key.name, person, name, model)
            else:
                assert may, (key.name, person, name, model)
        transaction.set_rollback(True)


def test_a_demoted_operators_key_writes_only_its_own() -> None:
    olga = create_user("olga", Role.OPERATOR)
    key = key_of("k", ("upload", "rules"), owner=olga)
    assert stream_of(upload(key, NIGHTLY)) == NIGHTLY
    set_role(user=olga, role=Role.UPLOADER, who="t")
    key = with_owners("own.id = %(pk)s", pk=key.pk)[0]
    with pytest.raises(Problem, match=NIGHTLY):
        upload(key, NIGHTLY)
    assert stream_of(upload(key)) == "k"
