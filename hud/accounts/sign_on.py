"""Single sign-on by OpenID Connect with mozilla-django-oidc, if `HUD_OIDC_ISSUER` is set.

People are known by the issuer's `sub`, never by name or e-mail address, so nobody gets another one's login.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, count
from typing import Any

import jwt
import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from mozilla_django_oidc.auth import OIDCAuthenticationBackend
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView

from hud.accounts.audit import note
from hud.accounts.roles import Role, role_of, set_role
from hud.models import SignOn

_WHO = "single sign-on"
_DISCOVERED = {  # setting of the library → name in the provider's own description
    "OIDC_OP_AUTHORIZATION_ENDPOINT": "authorization_endpoint",
    "OIDC_OP_TOKEN_ENDPOINT": "token_endpoint",
    "OIDC_OP_USER_ENDPOINT": "userinfo_endpoint",
    "OIDC_OP_JWKS_ENDPOINT": "jwks_uri",
}
_NO_NAME = re.compile(r"[^\w.@+-]")  # what Django's names must not have


@cache
def _discovery(issuer: str) -> dict[str, Any]:
    """Return the provider's description of itself. Raise RequestException; the next call tries again."""
    answer = requests.get(f"{issuer}/.well-known/openid-configuration", timeout=settings.OIDC_TIMEOUT)
    answer.raise_for_status()
    described: dict[str, Any] = answer.json()
    return described


def _setting(name: str, *default: Any) -> Any:
    if name in _DISCOVERED:
        return _discovery(settings.HUD_OIDC_ISSUER)[_DISCOVERED[name]]
    return getattr(settings, name, *default)


class SignOnBackend(OIDCAuthenticationBackend):  # type: ignore[misc]  # untyped library
    """Check the provider's answer and return the person's login, made at the first time."""

    get_settings = staticmethod(_setting)

    def __init__(self) -> None:
        """Read settings in `authenticate` only, since Django makes a backend for every check."""
        self.UserModel = User

    def authenticate(self, request: HttpRequest | None, **login: Any) -> User | None:
        if request is None or "nonce" not in login or "code" not in request.GET:
            return None  # a login with a password
        super().__init__()
        user: User | None = super().authenticate(request, **login)
        return user

    def get_user(self, user_id: int) -> User | None:
        """Return the person of a session, None if the login was disabled meanwhile."""
        return User.objects.filter(pk=user_id, is_active=True).first()

    def verify_token(self, token: str, **login: Any) -> dict[str, Any]:
        """Return the token's claims. Raise SuspiciousOperation if it is not from our issuer for us."""
        claims: dict[str, Any] = super().verify_token(token, **login)
        audience = claims.get("aud")
        ours = settings.OIDC_RP_CLIENT_ID in (audience if isinstance(audience, list) else [audience])
        if str(claims.get("iss", "")).rstrip("/") != settings.HUD_OIDC_ISSUER or not ours:
            raise SuspiciousOperation("the token has another issuer or audience")
        return claims

    @transaction.atomic
    def get_or_create_user(self, access_token: str, id_token: str, payload: dict[str, Any]) -> User | None:
        """Return the login of the token's subject, with the role that its groups have now."""
        known = self.get_userinfo(access_token, id_token, payload)
        if known.get("sub") != payload["sub"]:
            raise SuspiciousOperation("the provider's user is not the token's")
        claims = payload | known
        account = {"issuer": settings.HUD_OIDC_ISSUER, "subject": payload["sub"]}
        sign_on = SignOn.objects.select_related("user").filter(**account).first()
        user = sign_on.user if sign_on else _create(claims)
        if not sign_on:
            SignOn.objects.create(user=user, **account)
        if settings.HUD_OIDC_ROLES:  # the highest role of the person's groups, viewer without one
            claimed = claims.get(settings.HUD_OIDC_GROUPS_CLAIM) or []
            names = [claimed] if isinstance(claimed, str) else claimed
            groups = [settings.HUD_OIDC_ROLES.get(str(name), "") for name in names]
            set_role(user=user, role=role_of(superuser=False, groups=groups), who=_WHO)
        return user if user.is_active else None


def _create(claims: dict[str, Any]) -> User:
    claimed = claims.get("preferred_username") or claims.get("email") or claims["sub"]
    base = _NO_NAME.sub("_", str(claimed))[:140]
    names = chain([base], (f"{base}-{number}" for number in count(2)))
    name = next(name for name in names if not User.objects.filter(username=name).exists())
    user = User.objects.create_user(name, email=str(claims.get("email") or "")[:254])  # without a password
    note(who=_WHO, action="user.create", subject=name)
    set_role(user=user, role=Role.VIEWER, who=_WHO)
    return user


def _failed(reason: str) -> HttpResponse:
    detail = {"reason": reason.replace("\0", "")[:300]}
    note(who="", action="login.failed", subject=_WHO, detail=detail)
    return HttpResponseRedirect(settings.LOGIN_REDIRECT_URL_FAILURE)


def _of_provider(view: Callable[[HttpRequest], HttpResponseBase], request: HttpRequest) -> HttpResponseBase:
    """Answer with a view of the library, while single sign-on is on. What fails leads back to the login."""
    if not settings.HUD_OIDC_ISSUER:
        raise Http404("single sign-on is off")
    if refused := request.GET.get("error"):  # by the provider; the library would end the visitor's session
        return _failed(refused)
    try:
        return view(request)
    except (requests.RequestException, jwt.PyJWTError, SuspiciousOperation, KeyError) as error:
        return _failed(repr(error))


to_provider = partial(_of_provider, OIDCAuthenticationRequestView.as_view(get_settings=_setting))
from_provider = partial(_of_provider, OIDCAuthenticationCallbackView.as_view(get_settings=_setting))
