"""The rerun of an experiment: its form, and the request that it makes."""

from __future__ import annotations

from typing import Any

from hud.models import Experiment, Stream
from hud.pages.hosts.query import Place
from hud.pages.rerun_form import RerunForm
from hud.runs.matching import ResourceRequest
from hud.runs.requests import InvalidRunRequest, RunOptions, spec_of
from runner.schema.suite import TaskSpec
from runner.suites import SUITES


def form_of(
    asked: Experiment, places: list[Place], *, spec: TaskSpec | None = None, **options: Any
) -> RerunForm:
    """Return the form, with a field for each knob of a suite that the runner has. `spec` is the task, where
    it is known."""
    try:
        spec = spec or spec_of(asked, device=asked.device)
    except InvalidRunRequest:
        return RerunForm(places=places, **options)
    suite = SUITES[asked.suite]
    return RerunForm(
        places=places,
        knobs=suite.options,
        own=spec.knobs,
        inductor=suite.takes_inductor_options(spec),
        compiles=suite.has_compilations(spec),
        **options,
    )


def options_of(form: RerunForm, asked: Experiment, who: str, stream: Stream) -> RunOptions:
    """Return where and how often; without any place, `request_rerun` raises what is missing."""
    if not form.places:
        return RunOptions(ResourceRequest(asked.device, arch=asked.arch), who, stream=stream)
    place, said = form.place_chosen(), form.cleaned_data
    resources = ResourceRequest(
        place.device,
        place.host,
        place.arch,
        interpreter=said["environment"],
        base_interpreter=said["base_environment"],
    )
    return RunOptions(
        resources,
        who,
        stream=stream,
        repeats=said["repeats"],
        compilations=said.get("compilations"),
        caches=said["caches"] or "fresh",
        pinned=said.get("pinned", ""),
        candidate_options=said.get("new_options", {}),
    )
