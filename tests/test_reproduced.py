"""What this project's own runner measured can be measured again: a command and a rerun for each experiment."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from hud.models import Experiment
from hud.runs import spec_of
from tests.observed import SHIPPED


@pytest.mark.django_db
def test_every_shipped_experiment_of_the_runner_has_a_command() -> None:
    call_command("ingest", *(str(SHIPPED / name) for name in ("runner-h200", "runner-h200-models", "xla-cpu")))
    experiments = list(Experiment.objects.all())
    assert {one.suite for one in experiments} >= {"cache", "gpt_fast", "huggingface", "micro", "operators", "xla"}
    for one in experiments:
        if (one.suite, one.backend) == ("operators", "eager"):
            continue  # operatorbench's column of it, which is measured beside inductor's
        assert spec_of(one, device=one.device).command()
