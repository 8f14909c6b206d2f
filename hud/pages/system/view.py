"""Show operators the parts of `/statusz` and `/readyz`, figures of `/metrics`, and versions."""

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import django
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString
from redis.exceptions import RedisError

from hud.hosts import heartbeats, queues
from hud.judging.regressions import fleet
from hud.pages import data
from hud.pages.health import failed_requests, node_problems, shared_parts, site_figures
from hud.sql import fetch_tuples
from hud.tables.formatting import ago, bytes_text, duration, plain, plain_count
from hud.tables.html import NOTHING, badge_html, facts, join, span
from hud.tables.table import Column, DataTable
from runner.schema import protocol


@dataclass(frozen=True)
class Part:
    name: str
    problem: str
    warning: str = ""
    age_s: float | None = None  # since its last heartbeat
    waiting: int | None = None
    oldest_s: float | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    meaning: str
    of: str
    value: float


def _state(part: Part, _page: None) -> SafeString:
    return join(badge_html("failed" if part.problem else "ok"), span(part.problem or part.warning, "reason"))


def _seconds(value_s: float | None) -> object:
    return NOTHING if value_s is None else duration(value_s)


_PARTS = DataTable[Part, None](
    Column("name", "Part", show=plain, is_head=True),
    Column("problem", "State", draw=_state),
    "warning",
    Column("age_s", "Last heartbeat", show=_seconds, css="num"),
    Column("waiting", "Waiting", css="num"),
    Column("oldest_s", "For", lambda part: part.oldest_s if part.waiting else None, show=_seconds, css="num"),
)
_FIGURES = DataTable[Figure, None](
    Column("meaning", "Figure", is_head=True),
    Column("of", "Of"),
    Column("value", "Value", draw=lambda figure, _page: _value(figure), css="num"),
)


def system(request: HttpRequest, data_format: str = "") -> HttpResponse:
    shared = shared_parts()
    problems = {name: {"problem": problem} for name, problem in node_problems().items()}
    parts = [Part(name, **part) for name, part in (problems | shared).items()]
    versions, nodes = _versions(), heartbeats.nodes()
    figures = list(_figures())
    if data_format:
        listed = [asdict(figure) for figure in figures]
        about: dict[str, Any] = {"versions": versions, "nodes": nodes, "figures": listed}
        return data.answer_table(data_format, "system", _PARTS, parts, **about)
    context = {
        "wrong": sum(bool(part.problem) for part in parts),
        "moved_together": fleet.moved_together(),
        "parts": _PARTS.html(parts, None),
        "nodes": facts((name, ago(last)) for name, last in nodes.items()),
        "versions": facts(versions.items()),
        "figures": _FIGURES.html(figures, None),
    }
    return render(request, "system/system.html", context)


def _figures() -> Iterable[Figure]:
    """Yield the gauges that are not 0, and this node's failed requests."""
    samples = [(family, sample) for family in site_figures() for sample in family.samples]
    for family, sample in samples:
        if sample.value or not sample.labels:
            label = " ".join(sample.labels.values())
            yield Figure(sample.name, family.documentation.rstrip("."), label, sample.value)
    for view, count in sorted(failed_requests().items()) or [("", 0)]:
        yield Figure("hud_http_requests_total", "Requests that this node answered with a 5xx", view, count)


def _value(figure: Figure) -> str:
    return (bytes_text if figure.name.endswith("_bytes") else plain_count)(figure.value)


def _versions() -> dict[str, str]:
    ((postgresql,),) = fetch_tuples("SHOW server_version")
    try:
        with queues.connect() as redis:
            server = redis.info("server")
    except (RedisError, OSError):
        server = {}
    own = f"Valkey {server['valkey_version']}" if "valkey_version" in server else ""
    return {
        "Compiler HUD": protocol.version(),
        "host protocol": f"{protocol.PROTOCOL}, {protocol.PROTOCOL - 1}",
        "PostgreSQL": str(postgresql),
        "Redis": own or str(server.get("redis_version", "")),
        "Python": platform.python_version(),
        "Django": django.get_version(),
    }
