"""The hosts on which an experiment can be measured again, and one with both versions of torch."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.utils import timezone

from hud.hosts.registration import state_of, visible_accelerators
from hud.models import Accelerator, Environment, Experiment, Host, Regression
from hud.tables.formatting import duration

USABLE = {"online", "late"}  # states of a host
Torch = tuple[str, str]  # version and commit


@dataclass(frozen=True)
class Rerun:
    """The query string that fills an experiment's rerun form."""

    query: str
    in_pairs: bool = False  # of both versions, on one host
    hindrance: str = ""  # why it is not in pairs, or cannot be at all
    pairs: Mapping[str, str] | None = None  # the host and its two interpreters, as a program requests them


class Builds:
    """The versions of torch of the attached hosts."""

    def __init__(self) -> None:
        """Read the accelerators: 1 statement."""
        self.accelerators = visible_accelerators()
        self._interpreters = [(accelerator, _interpreters(accelerator)) for accelerator in self.accelerators]

    def once(self, experiment: Experiment, metric: str) -> Rerun:
        """Return how to measure an experiment once more where its series would go on."""
        arch = experiment.arch or experiment.device
        same = [accelerator for accelerator, _names in self._interpreters if _fits(accelerator, experiment)]
        hindrance = ""
        if not same:
            hindrance = f"no {arch} is attached"
        elif not any(_offers(accelerator, experiment) for accelerator in same):
            hindrance = f"no attached {arch} offers {experiment.suite}"
        return Rerun(urlencode({"metric": metric}), hindrance=hindrance)

    def pairs(self, experiment: Experiment, metric: str, base: Torch | None, head: Torch | None) -> Rerun:
        """Return how to compare these two versions; None is one that is not known."""
        once = self.once(experiment, metric)
        if once.hindrance:
            return once
        if base and base == head:
            return replace(once, hindrance="both have the same torch")
        for accelerator, names in self._interpreters:
            if (
                names.keys() >= {base, head}
                and _fits(accelerator, experiment)
                and _offers(accelerator, experiment)
            ):
                both = {"environment": names[head], "base_environment": names[base]}
                place = f"{accelerator.host_id}:{accelerator.device}:{accelerator.arch}"
                query = urlencode({"metric": metric, "place": place, **both})
                return Rerun(query, in_pairs=True, pairs={"host": accelerator.host.name, **both})
        return replace(once, hindrance="no host has both versions of torch")

    def of_regressions(self, regressions: Collection[Regression]) -> dict[int, Rerun]:
        """Return how to compare the last good run of each with the first that moved: 1 statement, where any
        host has two versions. The experiments and metrics of their series are read already."""
        can_pair = any(len(names) > 1 for _accelerator, names in self._interpreters)
        runs = {run for row in regressions for run in (row.last_good_run_id, row.first_run_id) if run}
        of_points = Environment.objects.filter(point__series__in={row.series_id for row in regressions})
        names = ("point__series", "point__run", "torch", "torch_git")
        rows = of_points.filter(point__run__in=runs).values_list(*names) if can_pair else ()
        torches = {(series, run): (torch, git) for series, run, torch, git in rows}
        return {
            regression.pk: self.pairs(
                regression.series.experiment,
                regression.series.metric.name,
                torches.get((regression.series_id, regression.last_good_run_id)),
                torches.get((regression.series_id, regression.first_run_id)),
            )
            for regression in regressions
        }


def _fits(accelerator: Accelerator, experiment: Experiment) -> bool:
    return (accelerator.device, accelerator.arch) == (experiment.device, experiment.arch)


def _offers(accelerator: Accelerator, experiment: Experiment) -> bool:
    return experiment.suite in accelerator.catalog.get("suites", [])


def _interpreters(accelerator: Accelerator) -> dict[Torch | None, str]:
    """Return the accelerator's interpreters by their torch."""
    offered = accelerator.catalog.get("pythons", [])
    return {
        (str(facts["torch"]), str(facts.get("torch_git", ""))): name
        for name, facts in accelerator.host.facts.get("pythons", {}).items()
        if name in offered and facts.get("torch")
    }


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a rerun: one host's device of an arch, or any host that has it."""

    host: Host | None
    device: str
    arch: str
    state: str  # of the host; of the best one for "any"
    same_arch: bool  # its points would continue the experiment's own series
    pythons: tuple[str, ...] = ()  # environments by name
    process_s: float | None = None  # that a process of the experiment took lately

    @property
    def key(self) -> str:
        return f"{self.host.pk if self.host else 'any'}:{self.device}:{self.arch}"

    @property
    def label(self) -> str:
        name = self.host.name if self.host else "any host"
        state = "" if self.state == "online" else f", {self.state}"
        about = "" if self.process_s is None else f", about {duration(self.process_s)} a process"
        return f"{name} · {self.arch}{state}{about}"


def places_for(experiment: Experiment, accelerators: Iterable[Accelerator]) -> list[Place]:
    """Return where these accelerators offer the suite, the experiment's own arch first."""
    now = timezone.now()
    single: dict[tuple[int, tuple[str, str]], Place] = {}
    for accelerator in accelerators:
        if experiment.suite in accelerator.catalog.get("suites", []):
            host, device = accelerator.host, (accelerator.device, accelerator.arch)
            same_arch = device == (experiment.device, experiment.arch)
            pythons = tuple(accelerator.catalog.get("pythons", []))
            single[host.pk, device] = Place(host, *device, state_of(host, now), same_arch, pythons)
    by_arch: dict[tuple[str, str], list[Place]] = {}
    for place in single.values():
        by_arch.setdefault((place.device, place.arch), []).append(place)
    anywhere = []
    for group in by_arch.values():
        usable = any(place.state in USABLE for place in group)
        pythons = tuple(dict.fromkeys(name for place in group for name in place.pythons))
        state = "online" if usable else group[0].state
        anywhere.append(replace(group[0], host=None, state=state, pythons=pythons))
    return sorted(
        [*anywhere, *single.values()],
        key=lambda place: (not place.same_arch, place.arch, place.host is not None),
    )
