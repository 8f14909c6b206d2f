"""Turn a request for part of a suite into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.schema.suite import BadRequest, OptionValue, TaskSpec, suite_of

PROTOCOL = 1  # of agent and HUD; a host with another one is refused


@dataclass(frozen=True)
class Selection:
    """A choice of a suite's cases × modes × dtypes × backends. Empty means the suite's default."""

    suite: str
    device: str  # cuda or cpu
    cases: Sequence[str] = ()
    modes: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    backends: Sequence[str] = ()
    dynamic: bool = False
    knobs: Mapping[str, OptionValue] = field(default_factory=dict)
    timeout_s: int | None = None


def plan(asked: Selection) -> list[TaskSpec]:
    """Return the tasks of a selection, each once. Raise BadRequest for what the suite does not offer."""
    suite = suite_of(asked.suite)
    found = []
    for case in [suite.case(name) for name in asked.cases] or suite.cases:
        offered = _offered("dtype", asked.dtypes, case.dtypes, f"{suite.name}/{case.name}", bool(asked.cases))
        for dtype in offered:
            for mode in _offered("mode", asked.modes, suite.modes, suite.name, True)[: len(asked.modes) or 1]:
                for backend in asked.backends or suite.backends[:1]:
                    task = TaskSpec(
                        suite=suite.name,
                        case=case.name,
                        mode=mode,
                        dtype=dtype,
                        backend=backend,
                        device=asked.device,
                        dynamic=asked.dynamic,
                        knobs=asked.knobs,
                        timeout_s=suite.timeout_s if asked.timeout_s is None else asked.timeout_s,
                    )
                    suite.check(task)
                    found.append(suite.normalized(task))
    if not found:
        raise BadRequest(f"nothing of suite {suite.name} fits this request")
    return distinct(found)


def distinct(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the tasks without those that measure the same under another name of the backend."""
    found: dict[str, TaskSpec] = {}
    for task in tasks:
        found.setdefault(suite_of(task.suite).canonical(task).fingerprint(), task)
    return list(found.values())


def _offered(what: str, asked: Sequence[str], offered: Sequence[str], place: str, strict: bool) -> list[str]:
    if not asked:
        return list(offered)
    wrong = [name for name in asked if name not in offered]
    if wrong and strict:
        raise BadRequest(f"{place} has no {what} {wrong[0]!r}; it has: {', '.join(offered)}")
    return [name for name in asked if name in offered]
