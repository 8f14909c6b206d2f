"""Match accelerators and runs: one rule for claims, wake-ups, queue positions and refused requests.

In the SQL `a` is the accelerator, `h` its host, `r` the run and `q` the run's request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hud.hosts.registration import unavailable_suites
from hud.models import Accelerator, Host
from runner.schema.suite import TaskSpec, suite_of

# The accelerator could take a task of the run, now or later. While the host that the run began on is there,
# another one only with the same torch and Triton, where it says so.
FITS = """
    (a.present AND h.detached_at IS NULL
    AND q.device = a.device AND q.arch IN ('', a.arch) AND (q.host_id IS NULL OR q.host_id = a.host_id)
    AND a.labels @> q.labels
    AND a.catalog->'suites' ? (q.selection->>'suite')
    AND (r.interpreter = '' OR a.catalog->'pythons' ? r.interpreter)
    AND (r.base_interpreter = '' OR a.catalog->'pythons' ? r.base_interpreter)
    AND NOT EXISTS (
        SELECT FROM jsonb_each(q.fingerprints) AS begun(python, interpreter)
        JOIN hud_host b ON b.id = (interpreter->>'host')::int AND b.id <> h.id
        WHERE b.detached_at IS NULL AND b.last_beat > clock_timestamp() - interval '10 min'
            AND NOT h.facts->'pythons'->begun.python->'fingerprint'
                @> (interpreter - '{host,packages}'::text[])))
"""
# Accelerators, each with the unended runs that it fits.
FITTING_RUNS = f"""
    hud_accelerator a JOIN hud_host h ON h.id = a.host_id
    JOIN hud_run r ON r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
    JOIN hud_runrequest q ON q.run_id = r.id AND {FITS}
"""
# The accelerator may be given new tasks now.
OPEN = """
    (a.unavailable_reason = '' AND NOT h.drained
    AND (h.paused_until IS NULL OR h.paused_until <= clock_timestamp()))
"""
# Its host sent a heartbeat within the last `lost` seconds.
HEARD = "(h.last_beat > clock_timestamp() - %(lost)s * interval '1 s')"
# Runs that a person waits for go first; then first come, first served.
ORDER = "NOT q.interactive, r.created, r.id"


@dataclass(frozen=True)
class ResourceRequest:
    """The accelerator that a run needs; '' and None mean any."""

    device: str  # cuda or cpu
    host: Host | None = None
    arch: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""  # by name
    base_interpreter: str = ""  # the baseline of an A/B comparison


def eligible_accelerators(
    request: ResourceRequest, suites: set[str], accelerators: Sequence[Accelerator]
) -> tuple[list[Accelerator], str]:
    """Return the accelerators that could take such a run, and the reason if none could."""
    if not accelerators:
        return [], "no host is attached; attach one with: python -m runner attach --hud URL --token TOKEN"
    left = [item for item in accelerators if request.host is None or item.host_id == request.host.pk]
    if request.host and not left:
        return [], f"host {request.host.name} is not attached"
    whose = f"host {request.host.name}" if request.host else "no attached host"
    fulfilled: list[str] = []
    for text, wanted, offered in _needs(request, suites):
        able = [item for item in left if wanted <= offered(item)]
        if not able:
            such = f" with {' and '.join(fulfilled)}" if fulfilled else ""
            lacks = "has not" if request.host else "has"
            reasons = [unavailable_suites(item.host.facts) for item in left] if wanted is suites else []
            why = "; ".join(sorted({found[name] for found in reasons for name in wanted if name in found}))
            there = ", ".join(sorted(set().union(*map(offered, left)))) or "nothing"
            return [], f"{whose}{such} {lacks} {text}{why and f' ({why})'}; there are: {there}"
        left = able
        fulfilled.append(text)
    return left, ""


def _needs(
    request: ResourceRequest, suites: set[str]
) -> Iterator[tuple[str, set[str], Callable[[Accelerator], set[str]]]]:
    """Yield each need in the order of the checks: its text, the wanted words, and a reader of the offered."""
    if request.arch:
        yield f"arch {request.arch}", {request.arch}, lambda item: {item.arch}
    yield f"device {request.device}", {request.device}, lambda item: {item.device}
    for key, value in sorted(request.labels.items()):
        label = f"{key}={value}"
        yield f"the label {label}", {label}, partial(_label, key=key)
    for name in filter(None, (request.interpreter, request.base_interpreter)):
        yield f"an interpreter called {name}", {name}, lambda item: set(item.catalog.get("pythons", []))
    text = f"the suite {', '.join(sorted(suites))}"
    yield text, suites, lambda item: set(item.catalog.get("suites", []))


def _label(item: Accelerator, key: str) -> set[str]:
    return {f"{key}={item.labels[key]}"} if key in item.labels else set()


def reasons_of(suites: Iterable[str], there: Sequence[Accelerator]) -> dict[str, str]:
    """Return the reason for each suite that none of these accelerators' hosts offers; {} without any."""
    lacks = {name: why for item in there for name, why in unavailable_suites(item.host.facts).items()}
    offered = {name for item in there for name in item.catalog.get("suites", [])}
    missing = set(suites) - offered if there else set()
    return {name: lacks.get(name, "no attached host offers it") for name in missing}


def missing_packages(
    specs: Sequence[TaskSpec], accelerators: Iterable[Accelerator], interpreters: Iterable[str] = ()
) -> str:
    """Return why none of these tasks can start on these accelerators for want of a package, '' if one can.

    `interpreters` are those that the run names; without any, one of each host has to fit. A host that does
    not say what its interpreters have may have everything.
    """
    named = [name for name in interpreters if name]
    reports = []
    for item in accelerators:
        said = item.host.facts.get("pythons")
        pythons = said if isinstance(said, dict) else {}
        usable = {name: facts for name, facts in pythons.items() if "error" not in facts}
        groups = [[usable[name]] for name in named if name in usable] or [list(usable.values())]
        reports += [[facts.get("modules") for facts in group] for group in groups]
    missing: dict[str, set[str]] = {}
    for spec in specs:
        needs = set(suite_of(spec.suite).packages_of(spec))
        lacks = [
            min(
                (needs - set(found) if found is not None else set() for found in group),
                key=len,
                default=set(),
            )
            for group in reports
        ]
        if not lacks or not all(lacks):
            return ""
        missing[f"{spec.suite}/{spec.case}"] = min(lacks, key=len)
    task, packages = next(iter(missing.items()), ("", set()))
    return f"no attached host has {' and '.join(sorted(packages))}, which {task} needs" if task else ""
