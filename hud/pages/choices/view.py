"""The choice ledger: what the autotuner's draw costs, and what its proven choices would return."""

from dataclasses import dataclass
from statistics import fmean

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.judging import proven_choices
from hud.judging.compare.kernel_table import short_name
from hud.judging.proven_choices import EXPERIMENTS, ExperimentLedger, Ledgers, SlotRow
from hud.pages import data, query_string, streams
from hud.pages.query_string import number, words
from hud.pages.sparkline import interval
from hud.tables.formatting import NONE, address, share
from hud.tables.html import NOTHING, dim, element, join, link, span
from hud.tables.table import Column, DataTable

_NOTHING = span("nothing certain", "dim")
_PROOFS = {"pairs": "pairs", "cards": "2 cards"}


@dataclass(frozen=True)
class ChoicesFilters(proven_choices.LedgerFilters):
    arch: str = words(100, label="Arch", blank=None)
    torch: str = words(100, label="Torch", blank=None)
    triton: str = words(100, label="Triton", blank=None)
    suite: str = words(60, label="Suite")
    backend: str = words(100, label="Backend")
    experiment: int | None = number()  # whose slots are shown


def _title(line: ExperimentLedger, _page: Ledgers) -> SafeString:
    own = line.experiment
    facts = " · ".join(filter(None, (own.suite, own.mode, own.dtype, own.backend)))
    title = link(streams.link(address(own.pk, "experiment")), own.title)
    return join(title, element("span", facts, css="dim under", title=facts))


def _interval(line: ExperimentLedger, page: Ledgers) -> SafeString:
    if line.ledger is None or line.ledger.cost is None:
        return NOTHING
    cost, spread = line.ledger.cost, line.ledger.spread or 0.0
    ends = [
        one.ledger.cost + (one.ledger.spread or 0.0) for one in page.lines if one.ledger and one.ledger.cost
    ]
    return interval(cost, max(0.0, cost - spread), cost + spread, axis=(0.0, max([0.02, *ends])))


def _returns(line: ExperimentLedger, _page: Ledgers) -> object:
    if line.cost is None:
        return NONE
    returns = line.ledger.returns if line.ledger else 0.0
    return element("b", f"≥ {share(returns)}", css="faster") if returns else _NOTHING


def _slots(line: ExperimentLedger, page: Ledgers) -> object:
    if line.ledger is None:
        return dim("needs 10 compilations")
    own = {name: getattr(page.filters, name) for name in ("arch", "torch", "triton", "suite", "backend")}
    shown = streams.link(reverse("choices"), **own, experiment=line.experiment.pk)
    return link(f"{shown}#slots", f"{line.proven} of {len(line.slots)}")


_EXPERIMENTS = DataTable[ExperimentLedger, Ledgers](
    Column("", "Experiment", draw=_title, is_head=True),
    Column("compilations", "Compilations", css="num"),
    Column("", "Busy time, µs", "busy_us", show=lambda us: f"{us[0]:.1f} to {us[1]:.1f}", css="num"),
    Column("", "Draw costs", "cost", show=lambda cost: element("b", share(cost)), css="num"),
    Column("", "95 % interval", draw=_interval, css="fpc", hides_title=True),
    Column("", "Ledger returns", draw=_returns, css="num"),
    Column("", "Slots proven", draw=_slots, css="num"),
)


def _kernel(row: SlotRow, _page: Ledgers) -> SafeString:
    operators = ", ".join(name.rpartition("aten.")[2] for name in row.kernel.origins[:3])
    name = element("code", short_name(row.kernel.name), title=row.kernel.name)
    return join(name, span(operators, "dim under", title=operators))


def _best(row: SlotRow, _page: Ledgers) -> object:
    best = row.record.best
    return element("code", row.kernel.config or best.choice, css="file") if best else NONE


def _elected(row: SlotRow, _page: Ledgers) -> str:
    best, line = row.record.best, row.of.ledger
    return f"{best.elected} of {line.compilations}" if best and line else NONE


def _against_mean(row: SlotRow, _page: Ledgers) -> str:
    best = row.record.best
    return share(best.time_us / row.record.mean_us - 1) if best and row.record.mean_us else NONE


def _proof(row: SlotRow, _page: Ledgers) -> object:
    return _PROOFS[row.record.best.proven_by] if row.record.best else dim("not yet")


_SLOTS = DataTable[SlotRow, Ledgers](
    Column("", "Kernel", draw=_kernel, is_head=True),
    Column("candidates", "Candidates", css="num"),
    Column("", "Best proven choice", draw=_best),
    Column("", "Elected", draw=_elected, css="num"),
    Column("", "µs a step", "record.mean_us", show=lambda us: f"{us:.1f}", css="num"),
    Column("", "Against mean", draw=_against_mean, css="num"),
    Column(
        "",
        "Returns, µs",
        draw=lambda row, _page: f"{row.record.returns_us:.1f}" if row.record.best else NONE,
        css="num",
    ),
    Column("", "Proven by", draw=_proof),
)


def choices(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ChoicesFilters, request.GET, data_format)
    stream = streams.of_request(request)
    page = proven_choices.read(filters, stream)
    if data_format:
        about = page.to_json()
        rows = about.pop("items")
        return data.answer(data_format, "choices", rows, EXPERIMENTS.names, stream=stream.name, **about)
    own = [line for line in page.lines if line.experiment.pk == filters.experiment]
    shown = (own or page.lines or [None])[0]
    ledgers = [line.ledger for line in page.lines if line.ledger and line.ledger.cost is not None]
    offered = {
        name: sorted(
            {getattr(subject, name) for subject in page.subjects if subject.arch == page.filters.arch}
        )
        for name in ("torch", "triton")
    }
    offered["arch"] = sorted({subject.arch for subject in page.subjects})
    offered |= {
        name: sorted(
            {getattr(line.experiment, name) for line in page.lines} | {getattr(filters, name)} - {""}
        )
        for name in ("suite", "backend")
    }
    clear = streams.link(reverse("choices"))
    context = {
        "page": page,
        "form": query_string.filter_form(
            page.filters, offered=offered, hidden={"stream": stream.name}, clear=clear, button="Show"
        ),
        "known": len(ledgers),
        "cost": fmean(ledger.cost or 0.0 for ledger in ledgers) if ledgers else None,
        "returns": fmean(ledger.returns for ledger in ledgers) if ledgers else None,
        "experiments": _EXPERIMENTS.html(page.lines, page),
        "shown": shown,
        "slots": _SLOTS.html(shown.slots, page, scroll="scroll tall") if shown and shown.slots else NOTHING,
        "complaints": complaints,
    }
    return render(request, "choices/choices.html", context)
