"""Which variables of the environment look like secrets."""

import re
from collections.abc import Mapping

# A benchmark is arbitrary code: our own keys and what looks like a secret stay out of its environment.
_SECRET = re.compile(
    r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|^(DATABASE|REDIS)_URL$|^PG|^HUD_",
    re.IGNORECASE,
)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names do not look like a secret."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}
