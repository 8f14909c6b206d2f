"""Settings of the tests: the project's own, over a data folder that lives as long as the session.

Servers named by the developer's environment are never touched. Processes that a test starts inherit
`HUD_TEST_DATA`, and with it the same folder and the same servers. Where pytest-xdist runs several workers,
each has a folder of its own below the session's, and with it servers, database and device locks of its own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child that ends
        shutil.rmtree(folder, ignore_errors=True)


if "HUD_TEST_DATA" not in os.environ:
    # directly below /tmp: a socket's path must stay short
    os.environ["HUD_TEST_DATA"] = tempfile.mkdtemp(prefix="hud-tests-", dir="/tmp")
    atexit.register(_remove, os.environ["HUD_TEST_DATA"], os.getpid())
    for name in (
        "DATABASE_URL",
        "DATABASE_REPLICA_URL",
        "REDIS_URL",
        "HUD_ENV",
        "ALLOWED_HOSTS",
        "HUD_PUBLIC_READ",
        "SECRET_KEY",
    ):
        os.environ.pop(name, None)
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if _worker and Path(os.environ["HUD_TEST_DATA"]).name != _worker:
    os.environ["HUD_TEST_DATA"] += f"/{_worker}"
    Path(os.environ["HUD_TEST_DATA"]).mkdir()
os.environ["HUD_DATA"] = os.environ["HUD_TEST_DATA"]
os.environ["RUNNER_LOCKS"] = os.environ["HUD_TEST_DATA"] + "/locks"
# Of inductor: no trial compiles of vector instructions, which take ten seconds with empty caches, and no
# processes to compile in, each of which imports torch.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from hud.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # PBKDF2 takes a third of a second
HUD_WRONG_KEYS = HUD_WRONG_PASSWORDS = 10**6  # all tests come from one address
STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"  # noqa: F405
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
