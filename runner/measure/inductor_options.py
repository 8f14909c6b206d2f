"""Inductor's options that the candidate side of an A/B pair tries (`runner.pairs`)."""

from __future__ import annotations

import os

import torch

from runner.catalog import BadRequest
from runner.catalog.inductor_options import VARIABLE, InductorOptions, of_variable
from runner.failures import TaskFailure


def candidate_options() -> InductorOptions:
    """Return the options by their paths in `torch._inductor.config`; they override what a suite sets itself.

    Raise TaskFailure (unsupported) for one that the catalogue or this torch does not have.
    """
    try:
        options = of_variable(os.environ.get(VARIABLE, ""))
    except BadRequest as error:
        raise TaskFailure("unsupported", "no_such_option", str(error)) from error
    for path in options:
        check_option(path)
    return options


def check_option(path: str) -> None:
    """Raise TaskFailure (unsupported) for an option that this torch's inductor does not have."""
    from torch._inductor import config  # noqa: PLC0415 - not every backend needs inductor

    *places, name = path.split(".")
    place = config
    for step in places:
        place = getattr(place, step, None)
    if not hasattr(place, name):
        raise TaskFailure(
            "unsupported", "no_such_option", f"inductor of torch {torch.__version__} has no {path}"
        )
