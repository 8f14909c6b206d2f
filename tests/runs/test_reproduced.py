"""What this project's own runner measured can be measured again: each experiment has a command."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from hud.models import Experiment
from hud.runs.requests import spec_of
from tests.support.observed import SHIPPED

_SUITES = {"cache", "ceilings", "gpt_fast", "huggingface", "micro", "operators", "timm", "torchbench", "xla"}


def _only_told(one: Experiment) -> bool:
    """operatorbench's column of eager calls, which are measured beside inductor's; a device nobody has."""
    return (one.suite, one.backend) == ("operators", "eager") or one.device == "tpu"


@pytest.mark.django_db
def test_every_shipped_experiment_of_the_runner_has_a_command() -> None:
    call_command(
        "ingest", *(str(SHIPPED / name) for name in ("runner-h200", "runner-h200-models", "xla-cpu"))
    )
    found = [one for one in Experiment.objects.all() if not _only_told(one)]
    assert {one.suite for one in found} == _SUITES
    for one in found:
        assert spec_of(one, device=one.device).command()
