"""A table, declared once: its columns with their data and their cells. JSON, CSV and HTML come from it.

>>> KEYS = DataTable[ApiKey, HttpRequest](
...     Column("name", "Name", is_head=True),
...     Column("owner", "Owner", "owner?.username", label="owner", only=_is_of_all),
...     "expires revoked",
...     Column("", "State", draw=_state),
... )
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Generic
from urllib.parse import urlencode

from django.utils.safestring import SafeString
from typing_extensions import TypeVar

from hud.models import Experiment
from hud.tables.html import NOTHING, attributes, element, icon_html, join, link, text

Row = TypeVar("Row", default=Any)
Page = TypeVar("Page", default=Any)  # what the cells need besides their row


@dataclass(frozen=True)
class Column(Generic[Row, Page]):
    """A column. Without a `name` it is only on the page, without a `title` only in JSON and CSV.

    A cell shows what `draw` returns, else what `show` makes of the value. Both return text, which is escaped,
    or HTML as a SafeString.
    """

    name: str = ""  # the key in JSON and CSV
    title: str | Callable[[Page], object] = ""  # the head on the page
    value: str | Callable[[Row], Any] = ""  # a path; `owner?.name`: '' without owner; `a?`: or None
    _: KW_ONLY
    draw: Callable[[Row, Page], object] | None = None
    show: Callable[[Any], object] | None = None
    css: str = ""  # classes of the head and of the cells
    cell_css: str = ""  # of the cells alone
    label: str = ""  # before the cell where a phone shows rows as blocks
    is_head: bool = False  # the cell names its row
    hides_title: bool = False  # from all but screen readers
    tooltip: str = ""  # of the head
    cell_tooltip: Callable[[Row], str | None] | None = None
    sort: str = ""  # the word of the address that sorts by it
    kind: str = ""  # of the values, as `float|None`; what the API's document says
    only: Callable[[Page], bool] | None = None  # whether the page has it

    def read(self) -> Callable[[Row], Any]:
        """Return what reads the value of a row."""
        if callable(self.value):
            return self.value
        path = self.value or self.name
        if path.endswith("?"):
            own = attrgetter(path[:-1])
            return lambda row: own(row) or None
        first, _sign, rest = path.partition("?.")
        if not rest:
            return attrgetter(path)
        owner_of, value_of = attrgetter(first), attrgetter(rest)
        return lambda row: "" if (owner := owner_of(row)) is None else value_of(owner)

    def content(self) -> Callable[[Row, Page], object]:
        """Return what draws the inside of a cell."""
        read, show = self.read(), self.show
        if show and not self.draw:
            return lambda row, _page: show(read(row))
        return self.draw or (lambda row, _page: read(row))


@dataclass(frozen=True)
class Order:
    """How a table is sorted, and what the addresses of its other orders share."""

    current: str  # the `sort` of a column, with a minus if downwards
    others: str = ""  # the rest of the page's query, after an &
    anchor: str = ""

    def link(self, name: str, content: str) -> tuple[SafeString, str]:
        """Return a head that sorts, first upwards, then downwards, then as it was, and its `aria-sort`."""
        orders = {name: (f"-{name}", "ascending", "up"), f"-{name}": ("", "descending", "down")}
        following, direction, arrow = orders.get(self.current, (name, "", ""))
        shown = join(SafeString(content), icon_html(arrow)) if arrow else SafeString(content)
        query = urlencode({"sort": following}) + self.others if following else self.others[1:]
        return link(f"?{query}{self.anchor}", shown), direction


class DataTable(Generic[Row, Page]):
    """The columns of a table in their order; a text has columns that are only data, as ``id:int=pk at who``,
    of which `computed` says how some are read."""

    def __init__(self, *columns: Column[Row, Page] | str, **computed: Callable[[Row], Any]) -> None:
        self.columns: list[Column[Row, Page]] = []
        for column in columns:
            if isinstance(column, Column):
                self.columns.append(column)
                continue
            for words, _sign, path in (part.partition("=") for part in column.split()):
                name, _colon, kind = words.partition(":")
                self.columns.append(Column(name, "", computed.get(name) or path, kind=kind))
        self._readers = {column.name: column.read() for column in self.columns if column.name}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the header of the CSV, and the keys of a row in JSON."""
        return tuple(self._readers)

    def row(self, row: Row) -> dict[str, Any]:
        return {name: read(row) for name, read in self._readers.items()}

    def rows(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        return [self.row(row) for row in rows]

    def html(
        self,
        rows: Sequence[Row],
        page: Page,
        *,
        caption: str = "",
        empty: object = "",  # in place of a table without rows
        order: Order | None = None,
        scroll: str = "scroll",  # classes of the box around the table
        frame: Callable[[Row, str], str] | None = None,  # of `body`
        **of_table: str,
    ) -> SafeString:
        """Return the table, with its attributes, in its box."""
        if not rows and empty:
            return element("p", empty, css="empty")
        title = element("caption", caption) if caption else NOTHING
        of_table["css"] = f"blocks {of_table.get('css', '')}".strip()
        return SafeString(
            f'<div class="{scroll}"><table{attributes(**of_table)}>{title}'
            f"<thead><tr>{self.head(page, order)}</tr></thead>"
            f"<tbody>{self.body(rows, page, frame)}</tbody></table></div>"
        )

    def head(self, page: Page, order: Order | None = None) -> SafeString:
        return SafeString("".join(_head(column, page, order) for column in self._of(page)))

    def body(
        self, rows: Iterable[Row], page: Page, frame: Callable[[Row, str], str] | None = None
    ) -> SafeString:
        """Return the rows: what `frame` makes of a row and its cells, by default a tr without attributes."""
        cells = [_cell(column, page) for column in self._of(page)]
        framed = frame or (lambda _row, content: f"<tr>{content}</tr>")
        return SafeString(
            "".join([framed(row, "".join([draw(row, page) for draw in cells])) for row in rows])
        )

    def _of(self, page: Page) -> list[Column[Row, Page]]:
        return [column for column in self.columns if column.title and (not column.only or column.only(page))]


def under(path: str, names: str) -> str:
    """Return columns, with or without their kinds, that are attributes of one part: ``a:int=path.a``."""
    return " ".join(f"{name}={path}.{name.partition(':')[0]}" for name in names.split())


_IDENTITY = """suite:str case:str knobs:dict[str,Any] mode:str dtype:str backend:str device:str arch:str
    dynamic:bool"""


def experiment_of(path: str) -> str:
    """Return the columns that identify the experiment at a path."""
    return f"experiment:int={path}.pk {under(path, _IDENTITY)}"


EXPERIMENT = experiment_of("experiment")


def _title(column: Column[Row, Page], page: Page) -> object:
    return column.title(page) if callable(column.title) else column.title


def _head(column: Column[Row, Page], page: Page, order: Order | None) -> SafeString:
    content = text(_title(column, page))
    direction = ""
    if column.hides_title:
        content = f'<span class="visually-hidden">{content}</span>'
    if order and column.sort:
        content, direction = order.link(column.sort, content)
    about = {"css": column.css, "aria_sort": direction, "title": column.tooltip}
    return element("th", SafeString(content), scope="col", **about)


def _cell(column: Column[Row, Page], page: Page) -> Callable[[Row, Page], str]:
    """Return what draws a cell of a column; a number has its title beside it on a phone."""
    label = column.label or (str(_title(column, page)) if column.css == "num" else "")
    draw, tooltip = column.content(), column.cell_tooltip
    classes = f"{column.css} {column.cell_css}".strip()
    name, scope = ("th", ' scope="row"') if column.is_head else ("td", "")
    start = f"<{name}{scope}{attributes(css=classes, data_label=label)}"
    end = f"</{name}>"
    if tooltip is None:
        return lambda row, page: f"{start}>{text(draw(row, page))}{end}"
    return lambda row, page: f"{start}{attributes(title=tooltip(row))}>{text(draw(row, page))}{end}"


IDENTITY = DataTable[Experiment](f"experiment:int=pk {_IDENTITY}")
