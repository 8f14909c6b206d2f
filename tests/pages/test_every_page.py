"""Every page in a browser, as `hud/urls.py` lists them: nothing is refused or fails, nothing scrolls
sideways, axe-core finds nothing, and names that attack are only text.

`make test` walks them once, `make soak` in every size, both themes and without JavaScript, and prints bytes.
"""

from __future__ import annotations

import gzip
import itertools
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from django.test import Client
from django.urls import URLPattern, get_resolver

from hud.accounts.roles import Role, needs_of
from tests.support.contents import fill
from tests.support.factories import create_user

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.browser
WIDTHS = (1440, 768, 390)
ALL_WIDTHS = (1920, 1440, 1280, 768, 390)
LARGEST_BYTES = 150_000  # of a page, gzip, beside the chart library
_TELL_VIOLATIONS = """document.addEventListener("securitypolicyviolation",
    (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""
_AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
_SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"
_TOO_WIDE = """() => [...document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth + 1)
    .filter((one) => one.clientWidth && !one.closest(".scroll"))
    .filter((one) => getComputedStyle(one).overflowX === "visible")
    .map((one) => one.cloneNode(false).outerHTML.slice(0, 100)).slice(-3).join(" ")"""

# What a reader cannot see: text cut off without a title that has it whole, columns beyond the edge on wide
# screens and phones, broken numbers, labels of a chart that lie on each other, characters that no font has.
_HIDDEN = r"""() => {
    const faults = [];
    const shown = (element) => element.checkVisibility() && element.getBoundingClientRect().width;
    const words = (element) => element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);
    for (const element of document.querySelectorAll("main *")) {
        if (!shown(element) || element.matches("input, .visually-hidden")) continue;
        const style = getComputedStyle(element);
        const clips = style.overflowX === "hidden" || style.overflowX === "clip";
        if (clips && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 1
                && !element.closest("[title]") && !element.closest("svg"))
            faults.push(`cut: ${element.tagName} ${element.className} ${words(element)}`);
        const isWhole = innerWidth >= 1280 || innerWidth <= 600;
        if (element.matches(".scroll") && isWhole && element.scrollWidth > element.clientWidth + 1)
            faults.push(`cut columns: ${element.scrollWidth - element.clientWidth} px of ${words(element)}`);
        if (element.matches("td.num, span.num") && !element.children.length && element.textContent.trim()) {
            const range = document.createRange();
            range.selectNodeContents(element);
            const lines = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)));
            if (lines.size > 1) faults.push(`broken number: ${words(element)}`);
        }
    }
    for (const chart of document.querySelectorAll("main svg")) {
        const labels = [...chart.querySelectorAll("text")].filter(shown)
            .map((label) => [label.textContent, label.getBoundingClientRect()]);
        const frame = chart.closest("section, .card, main").getBoundingClientRect();
        for (const [text, box] of labels)
            if (box.right > frame.right || box.left < frame.left) faults.push(`beyond its card: ${text}`);
        labels.forEach(([text, box], index) => labels.slice(index + 1).forEach(([other, rect]) => {
            const across = Math.min(box.right, rect.right) - Math.max(box.left, rect.left);
            const down = Math.min(box.bottom, rect.bottom) - Math.max(box.top, rect.top);
            if (across > 1 && down > 3) faults.push(`labels overlap: ${text} and ${other}`);
        }));
    }
    const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const drawn = (character) => {
        pen.clearRect(0, 0, 40, 40);
        pen.font = `20px ${getComputedStyle(document.body).fontFamily}`;
        pen.fillText(character, 5, 25);
        return pen.getImageData(0, 0, 40, 40).data.join();
    };
    const missing = drawn(String.fromCodePoint(0x10fffd));
    for (const character of new Set(document.body.innerText.replace(/[\x00-\x7f\s]|\p{Cf}/gu, "")))
        if (drawn(character) === missing) faults.push(`no glyph: ${character}`);
    return faults;
}"""


@dataclass
class World:
    """Something on every page, under hostile names, and the addresses of all pages."""

    hud: Hud
    client: Client
    parts: dict[str, Any]  # what stands for <int:pk> or <name:name>, by the first word of the address
    more: list[str] = field(default_factory=list)  # pages that only a query string fills

    def addresses(self) -> list[str]:
        """Return every page that can be read: what `urls.py` offers for GET and answers with HTML."""
        found = [self._address(pattern) for pattern in get_resolver().url_patterns if _is_readable(pattern)]
        return [address for address in dict.fromkeys([*found, *self.more]) if self._is_page(address)]

    def _address(self, pattern: Any) -> str:
        route = str(pattern.pattern)
        place = route.partition("/")[0]
        for name, converter in pattern.pattern.converters.items():
            assert place in self.parts, f"tests/pages/test_every_page.py needs an object for /{route}"
            kind = next(kind for kind in ("int", "name", "case", "str") if f"<{kind}:{name}>" in route)
            route = route.replace(f"<{kind}:{name}>", converter.to_url(self.parts[place]))
        return f"/{route}"

    def _is_page(self, address: str) -> bool:
        answer = self.client.get(address)
        return answer.status_code == 200 and b"<!doctype html>" in answer.content[:100]


def _is_readable(pattern: Any) -> bool:
    if not isinstance(pattern, URLPattern):  # Django's own pages
        return False
    needs = needs_of(pattern.name or "") or {}
    own = {"data_format", "artifact_pk", "binary"}.isdisjoint(pattern.pattern.converters)
    return "GET" in needs and own


@pytest.fixture
def world(live_hud: Hud) -> World:
    contents = fill()
    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(create_user(role=Role.ADMIN))
    return World(live_hud, client, contents.parts, contents.more)


@dataclass
class Walk:
    """A browser that is logged in, and everything it complained of."""

    page: Page
    hud: Hud
    faults: list[str] = field(default_factory=list)

    def open(self, address: str) -> None:
        """Open a page; what the browser complains of is noted under its address."""
        self.begin(address)
        self.wait()

    def begin(self, address: str) -> None:
        self.address = address
        answer = self.page.goto(f"{self.hud.url}{address}", wait_until="commit")
        assert answer
        if answer.status != 200:
            self.note(f"status {answer.status}")

    def wait(self) -> None:
        self.page.wait_for_load_state("networkidle" if "/runs/" not in self.address else "load")
        if self.page.evaluate("window.hacked"):
            self.note("a name ran as a script")

    def note(self, fault: str) -> None:
        self.faults.append(f"{self.address} at {(self.page.viewport_size or {}).get('width')} px: {fault}")

    def look_at_widths(self) -> None:
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            sideways = self.page.evaluate(_SIDEWAYS)
            if sideways > 0:
                self.note(f"scrolls sideways by {sideways} px: {self.page.evaluate(_TOO_WIDE)}")

    def run_axe(self) -> None:
        found = Axe().run(self.page, options=_AXE)
        for one in found.response["violations"]:
            where = "; ".join(node["html"][:160] for node in one["nodes"][:3])
            self.note(f"axe {one['id']} ({len(one['nodes'])}): {where}")


def _walk(browser: Browser, world: World, **options: Any) -> tuple[BrowserContext, Walk]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
    session = world.client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": session, "url": world.hud.url}])
    page = context.new_page()
    walk = Walk(page, world.hud)
    page.add_init_script(_TELL_VIOLATIONS)
    page.on("pageerror", lambda error: walk.note(f"script: {error}"))
    page.on("console", lambda said: walk.note(f"console: {said.text}") if said.type == "error" else None)
    page.on("dialog", lambda dialog: walk.note(f"dialog: {dialog.message}"))
    return context, walk


def _each_opened(addresses: list[str], *walks: Walk) -> Iterator[Walk]:
    """Yield a walk at each of the pages. The next one is loading meanwhile, which is mostly waiting."""
    before: Walk | None = None
    for address, walk in zip(addresses, itertools.cycle(walks), strict=False):
        walk.begin(address)
        if before:
            before.wait()
            yield before
        before = walk
    assert before
    before.wait()
    yield before


def test_every_page_opens_without_a_complaint(browser: Browser, world: World) -> None:
    addresses = world.addresses()
    assert len(addresses) >= 15
    (context, walk), (second_context, second) = (
        _walk(browser, world, timezone_id="Asia/Tokyo") for _ in range(2)
    )
    for one in _each_opened(addresses, walk, second):
        one.run_axe()
        one.look_at_widths()
        one.page.set_viewport_size({"width": 1440, "height": 900})
    walk.open(f"/runs/{world.parts['runs']}/")
    time = walk.page.locator("time[data-local]").first
    local, utc = (
        datetime.fromisoformat(f"{text[:16]}+00:00")
        for text in (time.inner_text(), time.get_attribute("title") or "")
    )
    assert local - utc == timedelta(hours=9), "the reader's time, with UTC in the title"
    context.close()
    second_context.close()
    assert not walk.faults + second.faults, "\n".join(walk.faults + second.faults)


@pytest.mark.soak
def test_every_page_in_every_size_and_theme(browser: Browser, world: World) -> None:
    faults: list[str] = []
    for scheme in ("light", "dark"):
        context, walk = _walk(browser, world, color_scheme=scheme)
        for address in world.addresses():
            walk.open(address)
            for width in ALL_WIDTHS:
                walk.page.set_viewport_size({"width": width, "height": 900})
                walk.run_axe()
                for fault in walk.page.evaluate(_HIDDEN):
                    walk.note(fault)
        faults += [f"{scheme}: {fault}" for fault in walk.faults]
        context.close()
    assert not faults, "\n".join(faults)


def _heads_and_rows(page: Page, url: str) -> tuple[int, int]:
    page.goto(url)
    heads = page.locator("main h1:visible, main h2:visible").count()
    return heads, page.locator("main table tbody tr:visible").count()


@pytest.mark.soak
def test_every_page_is_read_without_javascript(browser: Browser, world: World) -> None:
    """Headings and rows of tables are those that a browser with JavaScript shows."""
    (context, walk), (plain_context, plain) = (
        _walk(browser, world, java_script_enabled=enabled) for enabled in (True, False)
    )
    for address in world.addresses():
        for _attempt in range(3):  # some pages say what goes on at the moment
            drawn, read = (_heads_and_rows(one.page, world.hud.url + address) for one in (walk, plain))
            if drawn == read:
                break
        assert drawn == read, address
    context.close()
    plain_context.close()


@pytest.mark.soak
def test_no_page_is_heavy(world: World, browser: Browser) -> None:
    context, walk = _walk(browser, world)
    cookie = f"sessionid={world.client.cookies['sessionid'].value}"
    rows = []
    for address in world.addresses():
        request = urllib.request.Request(
            world.hud.url + address.replace(" ", "%20"), headers={"Cookie": cookie, "Accept-Encoding": "gzip"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
            sent = len(body) if answer.headers.get("Content-Encoding") else len(gzip.compress(body))
        walk.open(address)
        timing = walk.page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        files = walk.page.evaluate(
            "performance.getEntriesByType('resource').filter(one => !one.name.includes('plotly'))"
            ".reduce((sum, one) => sum + one.encodedBodySize, 0)"
        )
        rows.append((sent, files, timing, address))
    context.close()
    for sent, files, timing, address in sorted(rows, reverse=True):
        print(f"{sent / 1000:8.1f} kB page, {files / 1000:7.1f} kB files, {timing:6.0f} ms  {address}")
    assert max(rows)[0] < LARGEST_BYTES
