"""The choice ledger: what the autotuner's draw costs, and what its proven choices would return."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.judging import proven_choices
from hud.judging.kernels.table import short_name
from hud.judging.ledger import ChoiceRecord
from hud.judging.proven_choices import EXPERIMENTS, SUBJECT, ExperimentLedger, Ledgers, SlotRow
from hud.pages import data, query_string, streams
from hud.pages.query_string import number, words
from hud.pages.sparkline import interval
from hud.tables.formatting import NONE, address, microseconds, share
from hud.tables.html import NOTHING, code, dim, element, join, link, span
from hud.tables.table import Column, DataTable

_PROOFS = {"pairs": "pairs", "cards": "2 cards"}


@dataclass(frozen=True)
class ChoicesFilters(proven_choices.LedgerFilters):
    arch: str = words(100, label="Arch", blank=None)
    torch: str = words(100, label="Torch", blank=None)
    triton: str = words(100, label="Triton", blank=None)
    suite: str = words(60)
    backend: str = words(100)
    experiment: int | None = number()  # whose slots are shown


def _title(line: ExperimentLedger, _page: Ledgers) -> SafeString:
    own = line.experiment
    facts = " · ".join(filter(None, (own.suite, own.mode, own.dtype, own.backend)))
    title = link(streams.link(address(own.pk, "experiment")), own.title)
    return join(title, element("span", facts, css="dim under", title=facts))


def _interval(line: ExperimentLedger, page: Ledgers) -> SafeString:
    if line.known is None:
        return NOTHING
    cost, spread = line.known.cost, line.known.spread
    longest = max([0.02, *(ledger.cost + ledger.spread for ledger in page.known)])
    return interval(cost, max(0.0, cost - spread), cost + spread, axis=(0.0, longest))


def _returns(line: ExperimentLedger, _page: Ledgers) -> object:
    if line.known is None:
        return NONE
    returns = line.known.returns
    return element("b", f"≥ {share(returns)}", css="faster") if returns else dim("nothing certain")


def _slots(line: ExperimentLedger, page: Ledgers) -> object:
    if line.ledger is None:
        return dim("needs 10 compilations")
    own = {name: getattr(page.filters, name) for name in (*SUBJECT, "suite", "backend")}
    shown = streams.link(reverse("choices"), **own, experiment=line.experiment.pk)
    return link(f"{shown}#slots", f"{line.ledger.proven} of {len(line.slots)}")


_EXPERIMENTS = DataTable[ExperimentLedger, Ledgers](
    Column("", "Experiment", draw=_title, is_head=True),
    Column("", "Compilations", "elected", css="num"),
    Column("", "Busy time, µs", "busy_us", show=lambda us: f"{us[0]:.1f} to {us[1]:.1f}", css="num"),
    Column("", "Draw costs", "known", show=lambda known: share(known.cost) if known else NONE, css="num"),
    Column("", "95 % interval", draw=_interval, css="fpc", hides_title=True),
    Column("", "Ledger returns", draw=_returns, css="num"),
    Column("", "Slots proven", draw=_slots, css="num"),
)


def _kernel(row: SlotRow, _page: Ledgers) -> SafeString:
    operators = ", ".join(name.rpartition("aten.")[2] for name in row.kernel.origins[:3])
    name = element("code", short_name(row.kernel.name), title=row.kernel.name)
    return join(name, span(operators, "dim under", title=operators))


def _of_best(draw: Callable[[SlotRow, ChoiceRecord], object]) -> Callable[[SlotRow, Ledgers], object]:
    """Return what draws something of the best proven choice."""
    return lambda row, _page: draw(row, row.record.best) if row.record.best else NONE


_SLOTS = DataTable[SlotRow, Ledgers](
    Column("", "Kernel", draw=_kernel, is_head=True),
    Column("candidates", "Candidates", css="num"),
    Column("", "Best proven choice", draw=_of_best(lambda row, _best: code(row.kernel.config))),
    Column("", "Elected", draw=_of_best(lambda row, best: f"{best.elected} of {row.of.elected}"), css="num"),
    Column("", "µs a step", "record.mean_us", show=microseconds, css="num"),
    Column("", "Returns, µs", draw=_of_best(lambda row, _: microseconds(row.record.returns_us)), css="num"),
    Column("", "Proven by", draw=_of_best(lambda _row, best: _PROOFS[best.proven_by])),
)


def choices(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ChoicesFilters, request.GET, data_format)
    stream = streams.of_request(request)
    page = proven_choices.read(filters, stream)
    if data_format:
        about = page.to_json()
        rows = about.pop("items")
        return data.answer(data_format, "choices", rows, EXPERIMENTS.names, stream=stream.name, **about)
    shown = next((line for line in page.lines if line.experiment.pk == filters.experiment), None)
    shown = shown or next(iter(page.lines), None)
    known = page.known
    offered = {name: sorted({getattr(one, name) for one in page.subjects}) for name in SUBJECT}
    clear = streams.link(reverse("choices"))
    context = {
        "page": page,
        "form": query_string.filter_form(
            page.filters, offered=offered, hidden={"stream": stream.name}, clear=clear, button="Show"
        ),
        "known": len(known),
        "cost": fmean(ledger.cost for ledger in known) if known else None,
        "returns": fmean(ledger.returns for ledger in known) if known else None,
        "experiments": _EXPERIMENTS.html(page.lines, page),
        "shown": shown,
        "slots": _SLOTS.html(shown.slots, page, scroll="scroll tall") if shown and shown.slots else "",
        "complaints": complaints,
    }
    return render(request, "choices/choices.html", context)
