"""A table's columns give its data and its cells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from django.http import QueryDict
from ninja import Schema
from pydantic import Field

from hud.api.schemas import of_table
from hud.pages.query_string import Choices, day, filter_form, number, one_of, read, words
from hud.tables.html import code, join, link, post_button
from hud.tables.table import Column, DataTable, Order


@dataclass(frozen=True)
class Owner:
    name: str


@dataclass(frozen=True)
class Line:
    name: str
    time_us: float | None = None
    owner: Owner | None = None


@dataclass(frozen=True)
class Shown:
    with_owner: bool = True


LINES = DataTable[Line, Shown](
    Column("name", "Name", is_head=True, sort="name"),
    Column("time_us", "Time", show=lambda time_us: time_us and f"{time_us:.1f}", css="num"),
    "double",
    Column("owner", "Owner", "owner?.name", label="owner", only=lambda page: page.with_owner),
    Column("", "Actions", draw=lambda line, page: link(f"?open={line.name}", "Open"), hides_title=True),
    double=lambda line: 2 * (line.time_us or 0.0),
)


def test_data_have_the_named_columns_in_their_order() -> None:
    assert LINES.names == ("name", "time_us", "double", "owner")
    assert LINES.rows([Line("a", 1.5, Owner("eva")), Line("b")]) == [
        {"name": "a", "time_us": 1.5, "double": 3.0, "owner": "eva"},
        {"name": "b", "time_us": None, "double": 0.0, "owner": ""},
    ]


def test_a_cell_shows_its_value_escaped_and_keeps_html() -> None:
    body = LINES.body([Line("<a>", 1.25, Owner("e&a")), Line("b")], Shown())
    assert body == (
        '<tr><th scope="row">&lt;a&gt;</th><td class="num" data-label="Time">1.2</td>'
        '<td data-label="owner">e&amp;a</td><td><a href="?open=&lt;a&gt;">Open</a></td></tr>'
        '<tr><th scope="row">b</th><td class="num" data-label="Time"></td><td data-label="owner"></td>'
        '<td><a href="?open=b">Open</a></td></tr>'
    )


def test_the_head_has_what_the_page_shows() -> None:
    head = LINES.head(Shown(with_owner=False))
    assert head == (
        '<th scope="col">Name</th><th scope="col" class="num">Time</th>'
        '<th scope="col"><span class="visually-hidden">Actions</span></th>'
    )
    assert LINES.body([Line("a")], Shown(with_owner=False)).count("data-label") == 1, "the time's"


def test_a_table_without_rows_says_so() -> None:
    assert LINES.html([], Shown(), empty="None <yet>.") == '<p class="empty">None &lt;yet&gt;.</p>'
    table = LINES.html([Line("a")], Shown(), caption="Lines", empty="None yet.")
    assert table.startswith('<div class="scroll"><table class="blocks"><caption>Lines</caption><thead>')


def test_a_head_sorts_upwards_then_downwards_then_not() -> None:
    for current, expected in (
        ("", '<th scope="col"><a href="?sort=name&amp;q=x#t">Name</a></th>'),
        ("name", '<th scope="col" aria-sort="ascending"><a href="?sort=-name&amp;q=x#t">Name '),
        ("-name", '<th scope="col" aria-sort="descending"><a href="?q=x#t">Name '),
    ):
        assert LINES.head(Shown(), Order(current, "&q=x", "#t")).startswith(expected)


def test_pieces_escape_texts() -> None:
    button = post_button("/a?b&c", join(""), "<Go>", css="danger", aria_label='"x"')
    assert button == (
        '<form method="post" action="/a?b&amp;c" class="inline">'
        '<button class="danger" aria-label="&quot;x&quot;">&lt;Go&gt;</button></form>'
    )
    assert join("<", code("<"), "", None, by=" · ") == "&lt; · <code>&lt;</code>"


@dataclass(frozen=True)
class Narrowed:
    q: str = words(50, label="Search", placeholder="any", data_key="/")
    suite: str = words(label="Suite", blank="all")
    arch: str = words(label="Arch", blank=None)
    since: date | None = day(names=("from",), label="From")  # noqa: RUF009 - as in a page
    tab: str = one_of("inbox", "muted", is_hidden=True)
    page: int | None = number()


def test_the_form_of_filters_has_those_with_a_label() -> None:
    filters, _faults = read(Narrowed, QueryDict("q=%22&arch=h200&from=2026-01-02&tab=muted&page=2"))
    offered: dict[str, Choices] = {"suite": [], "arch": ["b200", ("h200", "H200 <x>")]}
    form = filter_form(
        filters, offered=offered, suggested={"q": ["a&b"]}, hidden={"stream": "s"}, clear="/x/"
    )
    assert form == (
        '<form class="filters" method="get" role="search" data-filters>'
        '<input type="hidden" name="stream" value="s"> '
        '<label>Search <input placeholder="any" data-key="/" name="q" value="&quot;" maxlength="50"'
        ' list="q-suggested"></label>'
        '<datalist id="q-suggested"><option value="a&amp;b"></option></datalist> '
        '<label>Arch <select name="arch"><option value="b200">b200</option>'
        '<option value="h200" selected>H200 &lt;x&gt;</option></select></label> '
        '<label>From <input type="date" name="from" value="2026-01-02"></label> '
        '<input type="hidden" name="tab" value="muted"> '
        '<button>Filter</button><a href="/x/">Clear</a></form>'
    )


def test_a_schema_of_the_api_has_the_columns_that_say_their_kind() -> None:
    table = DataTable[Line]("name:str time_us:float|None owner=owner?.name", Column("at", kind="list[int]"))

    @of_table(table)
    class LineOut(Schema):
        owner: str = Field(description="who has it")

    document = LineOut.model_json_schema()
    kinds = {name: column.get("type") or column["anyOf"] for name, column in document["properties"].items()}
    assert kinds == {
        "owner": "string",
        "name": "string",
        "time_us": [{"type": "number"}, {"type": "null"}],
        "at": "array",
    }
    assert set(document["required"]) == set(kinds)
    assert LineOut.__name__ == "LineOut"
