"""Decide whether a candidate is slower than a baseline: by what the HUD has stored, and where that cannot
decide, by pairs of both builds on one host at equal choices of the autotuner."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .connection import HudError, KeyRefused, Refused, WrongUsage
from .hud import Hud, run_by_ci
from .words import link, number, percent, safe, table, title_of

PASS, REGRESSED, CANNOT_TELL = "pass", "regressed", "cannot tell"
STATUS = {PASS: 0, REGRESSED: 1, CANNOT_TELL: 3}  # of the process
FILTERS = ("stream", "suite", "arch", "mode", "dtype", "metric")  # of stored results
_DRAWS = (12, 8, 5, 3)  # of each side, as time allows; a run ends earlier on a clear answer
_MOST_RUNS = 20
_MOST_SHOWN = 10
_MOST_WHY = 200
_ENVIRONMENT = "environment:"
_NEVER_JUDGED = {"not_judged", "no_direction"}  # by a rule, or because neither direction is better
_ICONS = {PASS: "✅", REGRESSED: "❌", CANNOT_TELL: "❔"}


@dataclass
class Case:
    """An experiment on both sides. `item` is what the HUD answers of it; `run` has its pairs."""

    item: dict[str, Any]
    answer: str
    why: str = ""
    run: int = 0

    def __post_init__(self) -> None:
        self.experiment = int(self.item["experiment"])

    def to_json(self) -> dict[str, Any]:
        return {**self.item, "answer": self.answer, "why": self.why, "run": self.run or None}


@dataclass
class Verdict:
    hud: Hud
    base: str
    head: str
    cases: list[Case]
    counts: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""
    notes: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)  # lines on the worst cases

    @property
    def answer(self) -> str:
        answers = {case.answer for case in self.cases} or {CANNOT_TELL}
        return next(answer for answer in (REGRESSED, CANNOT_TELL, PASS) if answer in answers)

    @property
    def status(self) -> int:
        return STATUS[self.answer]

    def to_json(self) -> dict[str, Any]:
        names = ("answer", "status", "base", "head", "link", "notes", "kernels")
        counts = {**self.counts, **{answer: len(self.of(answer)) for answer in STATUS}}
        about = {name: getattr(self, name) for name in names}
        return {**about, "counts": counts, "cases": [case.to_json() for case in self.cases]}

    def of(self, answer: str) -> list[Case]:
        return [case for case in self.cases if case.answer == answer]

    def markdown(self) -> str:
        """Return the answer with its worst cases and their permalinks."""
        counts = [f"{len(self.cases)} matched"]
        counts += [f"{len(self.of(answer))} {answer}" for answer in (REGRESSED, CANNOT_TELL, PASS)]
        for side, words in (("only_base", "on the baseline only"), ("only_head", "on the candidate only")):
            counts += [f"{self.counts[side]} {words}"] if self.counts.get(side) else []
        about = ", ".join(counts) + (f" · {link('comparison', self.link)}" if self.link else "")
        refs = f"{safe(self.base)} → {safe(self.head)}"
        title = f"### {_ICONS[self.answer]} {self.answer.capitalize()}: {refs}"
        worst = [*self.of(REGRESSED), *self.of(CANNOT_TELL)]
        worst += [case for case in self.of(PASS) if case.run]
        lines = [title, "", about, *(f"\n{safe(note)}" for note in self.notes)]
        if worst:
            rows = [self._row(case) for case in worst[:_MOST_SHOWN]]
            lines += ["", *table("case|metric|baseline:|candidate:|change:|× noise:|answer", rows)]
            more = len(worst) - _MOST_SHOWN
            lines += [f"\n{more} more in the {link('comparison', self.link)}"] if more > 0 else []
        lines += ["", *(f"- {line}" for line in self.kernels)] if self.kernels else []
        return "\n".join(lines) + "\n"

    def _row(self, case: Case) -> list[str]:
        item = case.item
        address = self.hud.link(f"experiments/{case.experiment}/", metric=item["metric"])
        base, head = (
            item[f"{side}_status"] if item[side] is None else number(item[side]) for side in ("base", "head")
        )
        pairs = link(f"run {case.run}", self.hud.link(f"runs/{case.run}/")) if case.run else ""
        factor = "" if item.get("factor") is None else f"{item['factor']:.1f}"
        answer = " · ".join(filter(None, [f"**{case.answer}**", safe(case.why), pairs]))
        values = [safe(base), safe(f"{head} {item['unit']}"), percent(item["change"])]
        return [link(title_of(item), address), safe(item["metric"]), *values, factor, answer]


def gate_refs(
    hud: Hud,
    base: str,
    head: str,
    *,
    budget_min: float = 0.0,
    cases: Iterable[str] = (),
    knobs: Mapping[str, Any] | None = None,
    **filters: str,
) -> Verdict:
    """Compare two refs: commits, branches, runs or other sides of the HUD, or two interpreters of its hosts
    (`environment:NAME`), of which the `cases` of a `suite` are measured now, with these `knobs`. Pairs are
    started as long as the budget holds, and are cancelled where it ends or the caller is interrupted. Raise
    HudError, and WrongUsage for refs that do not fit."""
    until = time.monotonic() + 60 * budget_min
    named = [ref.startswith(_ENVIRONMENT) for ref in (base, head)]
    wanted: list[tuple[dict[str, Any], Case | None]] = []
    if all(named) and filters.get("suite"):
        verdict = Verdict(hud, base, head, [])
        body = {"suite": filters["suite"], "cases": list(cases), "knobs": knobs}
        body["arch"] = filters.get("arch", "")
        body.update({f"{name}s": [filters[name]] for name in ("mode", "dtype") if filters.get(name)})
        builds = (base[len(_ENVIRONMENT) :], head[len(_ENVIRONMENT) :])
        wanted.append(({**body, "base_environment": builds[0], "environment": builds[1]}, None))
    elif any(named):
        raise WrongUsage("an environment is compared with another one, by the cases of a --suite")
    else:
        verdict = _stored(hud, side_of(base), side_of(head), filters)
        wanted += [
            ({"experiment": case.experiment, **case.item["pairs"]}, case)
            for case in (*verdict.of(REGRESSED), *verdict.of(CANNOT_TELL))
            if budget_min > 0 and case.item["verdict"] != "failed" and case.item.get("pairs")
        ]
    if len(wanted) > _MOST_RUNS:
        verdict.notes.append(f"pairs of the worst {_MOST_RUNS} of {len(wanted)} cases")
    _measure(verdict, until, wanted[:_MOST_RUNS])
    verdict.kernels += _kernels(verdict)
    return verdict


def side_of(ref: str) -> str:
    """Return a ref as the HUD names it: a commit, a day, or else a branch."""
    if ":" in ref or re.fullmatch(r"\d{4}-\d\d-\d\d", ref):
        return ref
    return f"commit:{ref}" if re.fullmatch(r"[0-9a-f]{7,40}", ref) else f"latest:{ref}"


def _stored(hud: Hud, base: str, head: str, filters: Mapping[str, str]) -> Verdict:
    verdict = Verdict(hud, base, head, [], link=hud.link("compare/", base=base, head=head, **filters))
    try:
        comparison = hud.get("compare", base=base, head=head, pairs=1, **filters)
    except Refused as error:
        if error.status != 404:
            raise
        verdict.notes.append(error.detail)  # nothing is stored of one side
        return verdict
    verdict.counts = {name: comparison["counts"][name] for name in ("matched", "only_base", "only_head")}
    for item in comparison["items"]:
        if "only" in item:
            continue
        word, reason = item["verdict"], item["reason"]
        if word in {"regressed", "failed"} and reason != "known_failure":
            verdict.cases.append(Case(item, REGRESSED))
        elif word == "inconclusive" and reason not in _NEVER_JUDGED:
            why = reason.replace("_", " ")
            verdict.cases.append(
                Case(item, CANNOT_TELL, f"{why}; {item.get('hindrance') or ''}".rstrip("; "))
            )
        else:
            verdict.cases.append(Case(item, PASS))
    if not verdict.cases:
        words = "nothing that both sides measured says which direction is better"
        verdict.notes.append(f"{words}: upload yours with one, or name a --metric")
    return verdict


def _measure(verdict: Verdict, until: float, wanted: Iterable[tuple[dict[str, Any], Case | None]]) -> None:
    """Start runs, each for a case or for all that it measures, and take their answers; cancel those that are
    still running where the time is over, or after Ctrl-C."""
    hud, running = verdict.hud, {}
    try:
        for body, case in wanted:
            run, why = _start(verdict, body, until)
            if run:
                running[run] = case
                verdict.link = verdict.link or hud.link(f"runs/{run}/")
            elif case:
                case.why = why
            else:
                verdict.notes.append(why)
        for run, case in list(running.items()):
            result = hud.result(run, until)
            if result["state"] in {"queued", "running"}:
                verdict.notes.append(f"the budget ended before run {run}")
                continue
            del running[run]
            lines = hud.page(f"runs/{run}")["pairs"]
            chosen = {(found["experiment"], found["metric"]) for found in result["verdicts"]}
            headlines = [line for line in lines if (line["experiment"], line["metric"]) in chosen]
            # a metric of an A/B run, as an item of a comparison
            own = [{**line, "head": line["new"], "head_status": line["new_status"]} for line in headlines]
            measured = [case] if case else [Case(item, CANNOT_TELL) for item in own]
            verdict.cases += [] if case else measured
            for one in measured:
                one.run = run
                _decide(one, lines, headlines)
    finally:
        for run in running:
            with contextlib.suppress(HudError):
                hud.cancel(run)


def _start(verdict: Verdict, body: Mapping[str, Any], until: float) -> tuple[int, str]:
    """Start pairs if the plan says that they end in time; return the run, or 0 and why not."""
    hud, about, needed_s = verdict.hud, run_by_ci(os.environ), 0.0
    kind, _, ref = verdict.head.partition(":")
    if kind != "environment":  # the job's own build may be none of the two
        about["commit"] = ref if kind == "commit" else ""
    for draws in _DRAWS:
        asked = {**about, **body, "class": "ci", "draws": draws}
        try:
            plan = hud.ask("POST", "runs?dry_run=1", asked)
            needed_s = (plan["starts_in_s"] or 0.0) + (plan["seconds"] or 0.0)
            if time.monotonic() + needed_s < until:
                return hud.start(asked), ""
        except Refused as error:
            needs = "a key with the scope run; " if isinstance(error, KeyRefused) else ""
            return 0, f"no pairs: {needs}{error.detail[:_MOST_WHY]}"
    return 0, f"its pairs need about {needed_s / 60:.0f} min, more than is left of the budget"


def _decide(case: Case, lines: Iterable[Mapping[str, Any]], headlines: Iterable[Mapping[str, Any]]) -> None:
    """Take the answer of pairs: that of the case's metric, or where that is of running, of the surest clock.
    Where they cannot tell either, the stored answer stays."""
    own, surest = (
        [line for line in of if line["experiment"] == case.experiment] for of in (lines, headlines)
    )
    line = next((line for line in own if line["metric"] == case.item["metric"]), None)
    if line is None or (line["is_of_running"] and line["verdict"] not in {"confirmed", "dismissed"}):
        line = surest[0] if surest else line
    if line is None:
        case.why = "its pairs have no result"
        return
    draws = f"{line['draws'] or line['pairs']} {'draws' if line['draws'] else 'pairs'}"
    interval = f", {percent(line['low'])} to {percent(line['high'])}" if line["low"] is not None else ""
    case.why = f"in pairs: {line['metric']} {percent(line['change'])}{interval}, {draws}, {line['verdict']}"
    if line["verdict"] == "inconclusive" and line.get("quality"):  # an older HUD does not say it
        case.why += f": {line['quality'].replace('_', ' ')}"
    if line["base"] is not None and line["new"] is None:
        case.answer, case.why = REGRESSED, f"in pairs: {line['new_status']}"
    elif line["verdict"] == "dismissed" or line["better"]:
        case.answer = PASS
    elif line["better"] is False:
        case.answer = REGRESSED


def _kernels(verdict: Verdict) -> list[str]:
    """Return what changed in the worst regressed cases, kernel by kernel, where kernels are known."""
    lines, hud = [], verdict.hud
    for case in verdict.of(REGRESSED)[:3]:
        item, own = case.item, f"/experiment:{case.experiment}"
        sides = (f"run:{case.run}{own}/side:base", f"run:{case.run}{own}/side:head")
        if not case.run:
            sides = (f"run:{item['base_run']}{own}", f"run:{item['head_run']}{own}")
        with contextlib.suppress(Refused):  # kernels of neither side, or of one alone
            changed = hud.get("attribution", base=sides[0], head=sides[1])["kernels"]
            changed.sort(key=lambda kernel: -abs(kernel["change_us"] or 0.0))
            words = [
                f"{safe(one['kernel'])} {one['change_us'] or 0:+.3g} µs ({one['cause'].replace('_', ' ')})"
                for one in changed[:3]
            ]
            address = hud.link("code/", base=sides[0], head=sides[1])
            lines.append(f"{link('kernels', address)} of {safe(title_of(item))}: {', '.join(words)}")
    return lines
