"""The branch of a run. A run that names none belongs to the default branch, `HUD_DEFAULT_BRANCH`."""

from django.conf import settings


def stored_names(branch: str = "") -> list[str]:
    """Return the values of `Run.branch` that mean this branch; without one, the default branch."""
    name = branch_or_default(branch)
    return [name, ""] if name == settings.HUD_DEFAULT_BRANCH else [name]


def branch_or_default(stored: str) -> str:
    return stored or str(settings.HUD_DEFAULT_BRANCH)


def other_branch(stored: str) -> str:
    """Return the branch if it is not the default one, else ''."""
    return "" if stored == settings.HUD_DEFAULT_BRANCH else stored
