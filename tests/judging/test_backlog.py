"""Catching up is seen: how many series wait, since when, until about when."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hud.ingest import ingest
from hud.judging.backlog import note_round, waiting
from hud.judging.judge import process_pending
from hud.models import Backlog, Stream
from hud.sql import execute, fetch_tuples
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db


def upload(stream: str, cases: int, day: int = 0) -> None:
    time = 1_700_000_000 + day * 86_400
    records = (v3_record(case=f"case {number}", timestamp=time) for number in range(cases))
    ingest(as_lines(*records), Parameters(stream=stream))


def test_what_waits_is_counted_by_stream_until_it_is_judged() -> None:
    upload("nightly", 5)
    upload("laptop", 2)
    nightly = Stream.objects.get(name="nightly").pk
    assert (waiting(nightly).series, waiting().series) == (5, 7)
    while process_pending():
        pass
    assert waiting().series == 0


def test_points_that_are_judged_are_not_read() -> None:
    """Though the planner knows nothing of a table that is mostly empty."""
    for day in range(20):
        upload("nightly", 10, day)
    while process_pending(10**6):
        pass
    upload("nightly", 3, 20)
    execute("SET LOCAL enable_seqscan = off")  # of a table this small all pages are read
    before = points_read()
    assert waiting().series == 3
    assert points_read() - before <= 3


def points_read() -> int:
    statement = """SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables
        WHERE relname = 'hud_point'"""
    return int(fetch_tuples(statement)[0][0])


def test_the_end_follows_from_the_rate_so_far() -> None:
    upload("nightly", 4)
    began = timezone.now() - timedelta(seconds=60)
    note_round(20, began)
    note_round(10, timezone.now())
    row = Backlog.objects.get()
    behind = waiting()
    assert (row.judged, behind.since) == (30, began)
    assert behind.until
    assert abs((behind.until - row.at).total_seconds() - 4 * 2) < 1
    note_round(0, timezone.now())
    assert waiting().since is None


def test_the_pages_of_a_stream_say_that_judging_catches_up(client: Client) -> None:
    upload("nightly", 5)
    upload("laptop", 1)
    while process_pending():
        pass
    upload("laptop", 2)
    note_round(1, timezone.now() - timedelta(seconds=9))
    pages = ("/", "/compilers/", "/suites/micro/", "/regressions/")

    def said(stream: str) -> list[list[str]]:
        texts = [client.get(f"{page}?stream={stream}").content.decode() for page in pages]
        return [re.findall(r'class="catching-up">(\d+) series wait', text) for text in texts]

    assert said("laptop") == [["2"]] * len(pages)
    assert said("nightly") == [[]] * len(pages)
    while process_pending():
        pass
    assert said("laptop") == [[]] * len(pages)
