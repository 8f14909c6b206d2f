"""Settings of a web that is attacked: passwords are hashed and counted as in production."""

from django.conf import global_settings

from tests.settings import *  # noqa: F403

PASSWORD_HASHERS = [*global_settings.PASSWORD_HASHERS, *PASSWORD_HASHERS]  # noqa: F405 - those of the tests' users
HUD_WRONG_PASSWORDS = 10
