"""Numbers that environment variables give, shared with hud."""

import os

from runner.schema.suite import BadRequest


def env_number(name: str, default: float, *, or_zero: bool = False) -> float:
    """Return the number of a variable. Raise BadRequest, a ValueError, with its name for another value."""
    value = os.environ.get(name, "")
    try:
        number = float(value.replace("_", "x")) if value else default  # float takes 1_0 for 10
    except ValueError:
        raise BadRequest(f"{name} is {value!r}; it must be a number") from None
    if not (0 < number < 1e12 or (or_zero and number == 0)):
        raise BadRequest(f"{name} is {value!r}; it must be above 0" + (", or 0" if or_zero else ""))
    return number


def env_integer(name: str, default: int) -> int:
    """Return the whole number of a variable, also one like 1e9. Raise BadRequest."""
    number = env_number(name, default)
    if number % 1:
        raise BadRequest(f"{name} is {os.environ[name]!r}; it must be a whole number")
    return int(number)
