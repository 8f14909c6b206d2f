"""Lost milliseconds and autotune regret of an arch."""

from dataclasses import asdict
from itertools import accumulate
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.judging.kernels.lines import without_folders
from hud.judging.kernels.table import short_name
from hud.models import Experiment
from hud.pages import data, query_string, streams
from hud.pages.limits import query
from hud.pages.limits.query import LimitsPage
from hud.pages.sparkline import bars
from hud.points.kernels import is_any_runnable
from hud.tables.formatting import NONE, address, microseconds, plain_count, share
from hud.tables.html import NOTHING, dim, element, join, link
from hud.tables.table import IDENTITY, Column, DataTable


def _part(part: float | None) -> str:
    return NONE if part is None else f"{part:.2f}"


def _kernel(line: Any, _page: LimitsPage) -> SafeString:
    side, names = f"run:{line.run}/experiment:{line.pk}", [one.rpartition("aten.")[2] for one in line.origins]
    source = streams.link(reverse("code"), base=side, head=side, kernel=line.slot)
    name = link(f"{source}#source", element("code", short_name(line.name), title=line.name))
    calls = dim(f"× {plain_count(line.calls)}") if line.calls != 1 else NOTHING
    operators = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    about = join(line.bound, line.kind, operators, by=" · ")
    short, lines = without_folders(_lines(line)), ", ".join(_lines(line))
    below = element("span", short, css="dim under", title=lines) if lines else NOTHING
    return join(name, calls, element("span", about, css="dim under", title=operators), below)


def _lines(line: Any) -> list[str]:
    return (line.lines or "").splitlines()


def _experiment(experiment: Experiment) -> SafeString:
    return link(streams.link(address(experiment.pk, "experiment")), experiment.title)


def _facts(experiment: Experiment, page: LimitsPage) -> SafeString:
    return join(*(getattr(experiment, name) for name in page.varying), by=" · ")


def _experiment_of_kernel(line: Any, page: LimitsPage) -> SafeString:
    facts = _facts(line, page)
    return join(_experiment(line), element("span", facts, css="dim under", title=facts))


def _bar_of_kernel(line: Any, page: LimitsPage) -> SafeString:
    return bars([("slower", 0.0, line.time_us), ("whole", 0.0, line.floor_us)], page.longest_kernel_us)


KERNELS = DataTable[Any, LimitsPage](
    *IDENTITY.columns,
    Column("kernel", "Kernel", "name", draw=_kernel, is_head=True),
    Column("", "Experiment", draw=_experiment_of_kernel),
    "kind slot calls",
    Column("time_us", "Time", show=microseconds, css="num"),
    Column("ceiling_us", "At ceiling", "floor_us", show=microseconds, css="num", cell_css="dim"),
    Column("", "Bar", draw=_bar_of_kernel, css="bars", hides_title=True),
    Column("", "Of ceiling", "share", show=_part, css="num"),
    Column("lost_us", "Lost", show=lambda us: element("b", microseconds(us)), css="num"),
    "share_of_ceiling=share bound run lines",
    lines=_lines,
)


def _end(line: Any, sign: int) -> float | None:
    """Return an end of the 95 % interval of a regret, where it is known."""
    return None if line.spread is None else max(0.0, line.value + sign * line.spread)


REGRETS = DataTable[Any](
    *IDENTITY.columns,
    "regret=value low high compilations note",
    low=lambda line: _end(line, -1),
    high=lambda line: _end(line, 1),
    compilations=lambda line: None if line.spread is None else line.samples,
)


def _bar_of_experiment(line: Any, page: LimitsPage) -> SafeString:
    nameless_us = max(line.busy_us - line.covered_us, 0.0)  # of kernels without a formula
    lengths_us = line.floor_us, line.lost_us, nameless_us, line.gaps_us
    starts_us = accumulate(lengths_us, initial=0.0)
    parts = zip(("whole", "slower", "draw", "none"), starts_us, lengths_us, strict=False)
    return bars(parts, page.longest_us)


EXPERIMENTS = DataTable[Any, LimitsPage](
    *IDENTITY.columns,
    Column(
        "",
        "Experiment",
        draw=lambda line, page: join(_experiment(line), dim(_facts(line, page))),
        is_head=True,
    ),
    Column("busy_us", "Device time", show=microseconds, css="num"),
    Column("", "Bar", draw=_bar_of_experiment, css="bars", hides_title=True),
    Column("", "Of ceiling", "share", show=_part, css="num"),
    "gaps_us",
    Column("lost_us", "Lost", show=lambda us: element("b", microseconds(us)), css="num"),
    "run ceiling_us=floor_us share_of_ceiling=share",
    Column("covered", "Covered", "coverage", show=share, css="num"),
)

LINES = DataTable[Any, LimitsPage](
    Column("line", "Line", show=lambda name: element("code", name), is_head=True),
    Column("time_us", "Time", show=microseconds, css="num"),
    Column("lost_us", "Lost", show=lambda us: NONE if us is None else microseconds(us), css="num"),
    Column("kernels", "Kernels", css="num"),
    Column("experiments", "Experiments", css="num"),
)
NAMELESS = DataTable[Any, LimitsPage](
    Column("kernel", "Kernel", show=lambda name: element("code", name, css="file"), is_head=True),
    Column("kind", "Kind"),
    Column("time_us", "Time, µs", show=microseconds, css="num"),
    Column("experiments", "Experiments", css="num"),
)

_NO_KERNELS = "No kernel has bytes or FLOPs and a measured ceiling."


def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.LimitsFilters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(filters, stream, everything=bool(data_format))
    if data_format:
        return data.answer_table(
            data_format,
            "limits",
            KERNELS,
            page.kernels,
            constant={"stream": stream.name},
            stream=stream.name,
            arch=page.filters.arch,
            ceilings=asdict(page.ceilings),
            models=EXPERIMENTS.rows(page.models),
            autotune_regret=REGRETS.rows(page.regrets),
            lines=LINES.rows(page.lines),
            without_formula=NAMELESS.rows(page.nameless),
        )
    clear = streams.link(reverse("limits"))
    context = {
        "page": page,
        "form": query_string.filter_form(
            page.filters,
            offered={"arch": [(arch, arch or "unknown") for arch, *_about in page.arches], **page.words},
            hidden={"stream": stream.name},
            clear=clear,
            button="Show",
        ),
        "kernels": KERNELS.html(page.kernels, page, css="attribution", empty=_NO_KERNELS),
        "experiments": EXPERIMENTS.html(page.models, page, css="attribution", scroll="scroll tall"),
        "lines": LINES.html(page.lines, page) if page.lines else "",
        "nameless": NAMELESS.html(page.nameless, page, scroll="scroll tall"),
        "is_any_runnable": bool(page.kernels) and is_any_runnable(stream, page.filters.arch),
        "none": query_string.none_matches(clear, "No experiment"),
        "complaints": complaints,
    }
    return render(request, "limits/limits.html", context)
