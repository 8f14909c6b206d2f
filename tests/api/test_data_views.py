"""Every page with a table or a chart is there as JSON and CSV too, under the same query string."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from django.core.management import call_command
from django.test import Client

from hud.accounts.keys import create_key
from hud.judging.judge import process_pending
from tests.support.factories import (
    create_measurement,
    create_regression,
    create_run,
    create_user,
    create_verdict,
)
from tests.support.observed import SAMPLES

pytestmark = pytest.mark.django_db
ELSEWHERE = ("/static/", "/api/", "/admin/", "/django-rq/", "/logout/", "/login/", "/metrics", "/healthz")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.has_rows = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        self.has_rows |= tag == "table" or "chart" in (given.get("class") or "").split()


@pytest.mark.parametrize("most_of_a_kind", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_every_page_with_rows_has_json_and_csv_views(client: Client, most_of_a_kind: int) -> None:
    """Pages of a kind differ in a number, or in what is asked of them."""
    call_command("ingest", str(SAMPLES))
    while process_pending():
        pass
    moved = create_measurement()
    create_verdict(moved, "regressed", change=-0.1)
    create_regression(moved, change=-0.1)
    create_run("failed", title="broken")
    create_key(name="k", scopes=["read"], who="t")
    client.force_login(create_user())
    waiting, seen, kinds = ["/", "/?arch=h200&mode=inference&dtype=bfloat16"], set[str](), dict[str, int]()
    with_rows = []
    while waiting:
        address = waiting.pop(0)
        if address in seen or address.startswith(ELSEWHERE):
            continue
        seen.add(address)
        path, query = urlsplit(address).path, urlsplit(address).query
        kind = re.sub(r"\d+", "0", path) + "?" + "&".join(sorted(re.findall(r"([^&=]+)=", query)))
        kinds[kind] = kinds.get(kind, 0) + 1
        if path.endswith((".json", ".csv")) or kinds[kind] > most_of_a_kind:
            continue
        answer = client.get(address)
        assert answer.status_code in {200, 302, 405}, address
        if answer.status_code != 200 or "text/html" not in answer["Content-Type"]:
            continue
        page = Page(answer.content.decode())
        links = [urljoin(address, link) for link in page.links if not urlsplit(link).netloc]
        waiting += [link.partition("#")[0] for link in links]
        if page.has_rows:
            with_rows.append(address)
            check_twins(client, address, links)
    assert {urlsplit(address).path for address in with_rows} >= {"/", "/suites/", "/runs/"}


def without_stream(query: str) -> str:
    return re.sub(r"(^|&)stream=[^&]*", "", query).removeprefix("&")


def check_twins(client: Client, address: str, links: list[str]) -> None:
    query = urlsplit(address).query
    found = {}
    for twin in ("json", "csv"):
        named = [link for link in links if urlsplit(link).path.endswith(f".{twin}")]
        same = [link for link in named if without_stream(urlsplit(link).query) == without_stream(query)]
        assert same, f"{address} has no link to itself as {twin}: {named}"
        found[twin] = client.get(same[0])
        assert found[twin].status_code == 200, same[0]
    lines = list(csv.reader(io.StringIO(found["csv"].content.decode())))
    assert len(lines) - 1 == len(found["json"].json()["items"]) or not found["json"].json()["items"], address
