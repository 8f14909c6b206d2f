"""Identity tokens of GitHub's CI jobs: one gets a key of an hour, so that no repository stores a key."""

from datetime import timedelta
from functools import cache
from typing import Any

import jwt
from django.conf import settings

from hud.problems import Problem

LIFETIME = timedelta(hours=1)
_ALGORITHM = "RS256"  # the issuer's; others, such as `none`, or HS256 with its public key, are forgeries
_REQUIRED = ["exp", "iat", "iss", "aud", "repository"]
_LEEWAY_S = 30  # of the clocks
_TIMEOUT_S = 10


@cache
def _keys_of(issuer: str) -> jwt.PyJWKClient:
    """Return the issuer's public keys, which are fetched anew for a new one at most every half minute."""
    return jwt.PyJWKClient(f"{issuer}/.well-known/jwks", timeout=_TIMEOUT_S)


def repository_of(token: str) -> str:
    """Return the repository that a token of the issuer for this HUD is of. Raise Problem 401, and 503 while
    the issuer does not answer."""
    issuer, audience = settings.HUD_GITHUB_ISSUER, settings.HUD_PUBLIC_URL
    try:
        if jwt.get_unverified_header(token).get("alg") != _ALGORITHM:
            raise jwt.InvalidAlgorithmError(f"its algorithm is not {_ALGORITHM}")
        claims: dict[str, Any] = jwt.decode(
            token,
            _keys_of(issuer).get_signing_key_from_jwt(token).key,
            algorithms=[_ALGORITHM],
            audience=audience,
            issuer=issuer,
            leeway=_LEEWAY_S,
            options={"require": _REQUIRED},
        )
    except jwt.PyJWKClientConnectionError as error:
        raise Problem(503, f"{issuer} does not answer; try again", retry_after_s=5) from error
    except jwt.PyJWTError as error:
        raise Problem(401, f"no token of {issuer} for {audience}: {error}") from error
    return str(claims["repository"])


def scopes_for(repository: str) -> list[str]:
    """Return the scopes that the operator's rule gives a repository. Raise Problem 403 without one."""
    scopes: list[str] = settings.HUD_GITHUB_REPOSITORIES.get(repository, [])
    if not scopes:
        raise Problem(403, f"HUD_GITHUB_REPOSITORIES gives {repository[:200]} nothing")
    return scopes
