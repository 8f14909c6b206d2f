"""Options of inductor: those that this process tries as the candidate of an A/B pair, and all that this
torch has."""

import json
import os
from typing import Literal, get_args, get_origin

import torch
from torch._inductor import config

from runner.launch.failures import TaskFailure
from runner.schema import compilations
from runner.schema.suite import BadRequest


def candidate_options() -> compilations.InductorOptions:
    """Return them by their paths in `torch._inductor.config`; they go before whatever a suite sets itself.

    Raise TaskFailure (unsupported) for one that may not be set or that this torch does not have.
    """
    text = os.environ.get(compilations.INDUCTOR_VARIABLE, "")
    if not text:
        return {}
    try:
        options = compilations.checked_inductor_options(json.loads(text), settable())
    except BadRequest as error:
        raise TaskFailure("unsupported", "no_such_option", str(error)) from error
    for path in options:
        check_option(path)
    return options


def settable() -> dict[str, str | list[str]]:
    """Return the options of this torch's inductor beside the listed ones, each with its kind: bool, int,
    float or a list of words. An older torch does not tell the types, and has none."""
    if not hasattr(config, "get_type"):
        return {}
    kinds = {
        name: _kind(config.get_type(name))
        for name in config.get_config_copy()
        if compilations.may_be_set(name) and name not in compilations.INDUCTOR_OPTIONS
    }
    return {name: kind for name, kind in kinds.items() if kind}


def _kind(annotation: object) -> str | list[str]:
    if annotation in {bool, int, float}:
        return str(getattr(annotation, "__name__", ""))
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    return list(words) if all(isinstance(word, str) for word in words) else []


def check_option(path: str) -> None:
    """Raise TaskFailure (unsupported) for an option that this torch's inductor does not have."""
    if not hasattr(config, path):
        reason = f"inductor of torch {torch.__version__} has no {path}"
        raise TaskFailure("unsupported", "no_such_option", reason)
