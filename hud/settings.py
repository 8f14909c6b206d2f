"""Django's settings, from the environment; a wrong value is refused with the variable's name.

`HUD_DATA` (default `var/`) has all files that are written. Without `DATABASE_URL` and `REDIS_URL` the
servers are the embedded ones below it (`hud/server/embedded.py`).
"""

import logging
import os
import re
from http import HTTPStatus
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from hud.hosts import queues
from hud.replica import REPLICA
from hud.server import embedded, names
from runner.schema.variables import env_integer, env_number

BASE_DIR = Path(__file__).resolve().parent.parent
_REPOSITORY, _SCOPE = r"[\w.-]{1,39}/[\w.-]{1,100}", "(read|upload|run|code)"


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name, "")
    if value not in {"", "0", "1"}:
        raise ValueError(f"{name} is {value!r}; it must be 0 or 1")
    return default if value == "" else value == "1"


def link_template(name: str) -> str:
    """Return a variable that is the address of a page of a commit, with its place as `{commit}`."""
    text = os.environ.get(name, "")
    if text and not (text.startswith(("https://", "http://")) and "{commit}" in text):
        raise ValueError(f"{name} is {text!r}; it must be an http address with {{commit}} in it")
    return text


def pairs(name: str, parts: list[str], pattern: str, form: str) -> list[tuple[str, str]]:
    """Return the parts `KEY=VALUE` of a variable, which must match."""
    if wrong := [part for part in parts if not re.fullmatch(pattern, part)]:
        raise ValueError(f"{name} has {wrong[0]!r}; it must be {form}")
    return [(key, value) for key, _, value in (part.partition("=") for part in parts)]


def mirrors(name: str) -> dict[str, str]:
    """Return the path of the bare mirror of each repository of `owner/name=PATH,…`."""
    parts = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
    return dict(pairs(name, parts, f"{_REPOSITORY}=/.*", "owner/name=/absolute/path,…"))


def roles_by_group(text: str) -> dict[str, str]:
    """Return the role of each group of `admin=perf-leads operator=compiler,triton`."""
    pattern, form = "(viewer|uploader|operator|admin)=.+", "ROLE=GROUP,GROUP… of the known roles"
    groups_of = pairs("HUD_OIDC_ROLES", text.split(), pattern, form)
    return {group: role for role, groups in groups_of for group in groups.split(",")}


def scopes_by_repository(text: str) -> dict[str, list[str]]:
    """Return the scopes that `pytorch/pytorch=read,upload pytorch/benchmark=read` gives CI jobs."""
    pattern, form = f"{_REPOSITORY}={_SCOPE}(,{_SCOPE})*", "owner/name=read,upload,run,code"
    scopes_of = pairs("HUD_GITHUB_REPOSITORIES", text.split(), pattern, form)
    return {repository: scopes.split(",") for repository, scopes in scopes_of}


def without_traceback_of_refusal(record: logging.LogRecord) -> bool:
    """Leave the traceback of a 403 out of the log, since its line has the path."""
    if getattr(record, "status_code", 0) == HTTPStatus.FORBIDDEN:
        record.exc_info = None
    return True


HUD_ENV = os.environ.get("HUD_ENV", "development")
if HUD_ENV not in {"development", "production"}:
    raise ValueError(f"HUD_ENV is {HUD_ENV!r}; it must be development or production")
PRODUCTION = HUD_ENV == "production"
HUD_DATA = Path(os.environ.get("HUD_DATA") or BASE_DIR / "var").resolve()
HUD_FILES = os.environ.get("HUD_FILES", "").rstrip("/")  # of tasks and imports, else below HUD_DATA
if HUD_FILES and not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/[\w./-]+)?", HUD_FILES):
    raise ValueError(f"HUD_FILES is {HUD_FILES!r}; it must be s3://BUCKET or s3://BUCKET/PREFIX")
HUD_PUBLIC_READ = env_bool("HUD_PUBLIC_READ", default=not PRODUCTION)
HUD_MAX_BODY_BYTES = env_integer("HUD_MAX_BODY_BYTES", 32 * 2**20)  # inflated
HUD_MAX_RECORDS = env_integer("HUD_MAX_RECORDS", 20_000)  # in one request
HUD_MAX_IMPORT_RECORDS = env_integer("HUD_MAX_IMPORT_RECORDS", 1_000_000)  # in one import job
HUD_IMPORT_MEMORY_MIB = env_integer("HUD_IMPORT_MEMORY_MIB", 1024)  # that an import job may take
HUD_IMPORT_S = env_number("HUD_IMPORT_S", 600)  # for one attempt of an import job
HUD_IMPORT_ATTEMPTS = 3  # processes that may die over one import job
HUD_READ_S = env_number("HUD_READ_S", 30)  # for receiving a request
HUD_UPLOADS_PER_MINUTE = env_integer("HUD_UPLOADS_PER_MINUTE", 600)  # by one key
HUD_UPLOAD_BYTES_PER_DAY = env_integer("HUD_UPLOAD_BYTES_PER_DAY", 20 * 2**30)  # by one key
HUD_HOST_BYTES_PER_DAY = env_integer("HUD_HOST_BYTES_PER_DAY", 20 * 2**30)  # logs and artifacts of one
HUD_WRONG_KEYS = env_integer("HUD_WRONG_KEYS", 30)  # a minute, from one address
HUD_WRONG_PASSWORDS = env_integer("HUD_WRONG_PASSWORDS", 10)  # in 5 minutes, by account and address
HUD_PROXIES = os.environ.get("HUD_PROXIES", "").replace(",", " ").split()  # trusted X-Forwarded-For
WEB_CONCURRENCY = env_integer("WEB_CONCURRENCY", 2)  # which gunicorn reads too
HUD_RUNS_PER_MINUTE = env_integer("HUD_RUNS_PER_MINUTE", 60)  # started by one key
HUD_ACCESS_LOG = env_bool("HUD_ACCESS_LOG", default=PRODUCTION)  # a line of JSON for each request
HUD_PUBLIC_URL = os.environ.get("HUD_PUBLIC_URL", "").rstrip("/")  # of links in messages
HUD_WEBHOOK_PRIVATE = env_bool("HUD_WEBHOOK_PRIVATE", default=False)  # webhooks may have private addresses
# of mail, under Django's names; without a host none is sent
EMAIL_HOST = os.environ.get("EMAIL_HOST", "")
EMAIL_PORT = env_integer("EMAIL_PORT", 25)
EMAIL_HOST_USER = os.environ.get("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = env_bool("EMAIL_USE_TLS", default=False)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("DEFAULT_FROM_EMAIL") or "compiler-hud@localhost"
HUD_DEFAULT_BRANCH = os.environ.get("HUD_DEFAULT_BRANCH") or "main"  # of runs that name no branch
HUD_REPO_URL = link_template("HUD_REPO_URL")  # https://github.com/pytorch/pytorch/commit/{commit}
HUD_REPO_MIRRORS = mirrors("HUD_REPO_MIRRORS")  # bare repositories that are read for the commits of a range

# Jobs of GitHub that get a key for their identity token; off unless a repository is named
HUD_GITHUB_ISSUER = os.environ.get("HUD_GITHUB_ISSUER", "").rstrip("/")
HUD_GITHUB_ISSUER = HUD_GITHUB_ISSUER or "https://token.actions.githubusercontent.com"
HUD_GITHUB_REPOSITORIES = scopes_by_repository(os.environ.get("HUD_GITHUB_REPOSITORIES", ""))
if HUD_GITHUB_REPOSITORIES and not HUD_PUBLIC_URL:
    raise ValueError("HUD_GITHUB_REPOSITORIES is set; HUD_PUBLIC_URL, the audience of tokens, must be too")

# Single sign-on by OpenID Connect; off unless the issuer is set
HUD_OIDC_ISSUER = os.environ.get("HUD_OIDC_ISSUER", "").rstrip("/")
HUD_OIDC_GROUPS_CLAIM = os.environ.get("HUD_OIDC_GROUPS_CLAIM") or "groups"
HUD_OIDC_ROLES = roles_by_group(os.environ.get("HUD_OIDC_ROLES", ""))  # role by group
OIDC_RP_CLIENT_ID = os.environ.get("HUD_OIDC_CLIENT_ID", "")
OIDC_RP_CLIENT_SECRET = os.environ.get("HUD_OIDC_CLIENT_SECRET", "")
OIDC_RP_SCOPES = os.environ.get("HUD_OIDC_SCOPES") or "openid email profile"
OIDC_RP_SIGN_ALGO = "RS256"  # which every provider has to offer
OIDC_USE_PKCE = True
OIDC_TIMEOUT = 10
OIDC_AUTHENTICATION_CALLBACK_URL = "sign_on_callback"
LOGIN_REDIRECT_URL_FAILURE = "/login/?sign_on=failed"
if HUD_OIDC_ISSUER and not (OIDC_RP_CLIENT_ID and OIDC_RP_CLIENT_SECRET):
    raise ValueError("HUD_OIDC_ISSUER is set; HUD_OIDC_CLIENT_ID and HUD_OIDC_CLIENT_SECRET must be too")
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
if HUD_OIDC_ISSUER:
    AUTHENTICATION_BACKENDS.append("hud.accounts.sign_on.SignOnBackend")

SECRET_KEY = os.environ.get("SECRET_KEY") or embedded.secret_key(HUD_DATA, required=PRODUCTION)
ALLOWED_HOSTS = names.allowed_hosts(os.environ, production=PRODUCTION)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "hud.apps.StaticFiles",
    "django_rq",
    "ninja",  # serves the scripts of the API page from its wheel
    "hud",
]
MIDDLEWARE = [
    "hud.pages.health.ProbeMiddleware",
    "hud.server.access_log.AccessLogMiddleware",
    "hud.server.names.HttpsMiddleware",
    "hud.sql.PreparedReadsMiddleware",
    "hud.replica.ReplicaMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "hud.accounts.access.AccessMiddleware",
    "hud.pages.renamed.RenamedMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "hud.problems.ProblemMiddleware",
    "hud.hosts.queues.UnknownIdMiddleware",
]
ROOT_URLCONF = "hud.urls"
WSGI_APPLICATION = "hud.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "hud.accounts.access.may",
                "hud.pages.streams.context",
            ],
            "builtins": ["hud.pages.tags"],
            "libraries": {
                "compare_tags": "hud.pages.compare.tags",
                "run_tags": "hud.pages.run.tags",
                "suite_tags": "hud.pages.suite.tags",
                "table_tags": "hud.pages.table_tags",
            },
        },
    }
]

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        # of `hud.sql`, not with DATABASE_URL: a pooler in between may lose what was prepared
        "OPTIONS": {"connect_timeout": 5, "prepare_threshold": 2},
        **embedded.database_settings(HUD_DATA),
    }
}
if os.environ.get("DATABASE_REPLICA_URL"):
    DATABASES[REPLICA] = {**DATABASES["default"], **embedded.database_of("DATABASE_REPLICA_URL")}
    DATABASE_ROUTERS = ["hud.replica.Router"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"  # int4, since every measurement has series and run ids

REDIS_URL = embedded.redis_url(HUD_DATA, SECRET_KEY)
RQ_QUEUES = queues.Queues()
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "inert_jobs": {"BACKEND": "hud.hosts.queues.InertJobs"},
}
RQ_SHOW_ADMIN_LINK = False  # its pages are at /django-rq/ alone

# Tasks and hosts, in seconds of the database's clock. Tests scale them down.
HUD_LEASE_S = env_number("HUD_LEASE_S", 45)
HUD_BEAT_S = env_number("HUD_BEAT_S", 10)
HUD_LATE_S = env_number("HUD_LATE_S", 30)
HUD_LOST_S = env_number("HUD_LOST_S", 60)
HUD_TICK_S = env_number("HUD_TICK_S", 5)
HUD_GRACE_S = env_number("HUD_GRACE_S", 60)  # after an outage of tick, before it breaks leases
HUD_RING_S = env_number("HUD_RING_S", 15)  # between wake-ups of an idle accelerator
# for a task that waits for the card on which its series was last measured, while another is free; 0: no wait
HUD_SAME_CARD_S = env_number("HUD_SAME_CARD_S", 600, or_zero=True)
HUD_MAX_ATTEMPTS = 2  # a lost task is tried once more
HUD_MAX_LOG_BYTES = 64 * 2**20
HUD_MAX_ARTIFACT_BYTES = 64 * 2**20

# Days after which `tick` and `manage.py prune` remove what has ended (`hud/retention.py`).
HUD_CONFIRM_MINUTES = env_number("HUD_CONFIRM_MINUTES", 60, or_zero=True)  # of hosts a day; 0: no repeats
HUD_KEEP_LOGS_DAYS = env_number("HUD_KEEP_LOGS_DAYS", 90)
HUD_KEEP_ARTIFACTS_DAYS = env_number("HUD_KEEP_ARTIFACTS_DAYS", 180)
HUD_KEEP_REQUESTS_DAYS = env_number("HUD_KEEP_REQUESTS_DAYS", 30)  # idempotency keys, imports, use of limits
HUD_KEEP_AUDIT_DAYS = env_number("HUD_KEEP_AUDIT_DAYS", 730)
HUD_KEEP_SAMPLES_DAYS = env_number("HUD_KEEP_SAMPLES_DAYS", 0, or_zero=True)  # of archived months; 0: all

DATA_UPLOAD_MAX_MEMORY_SIZE = HUD_MAX_BODY_BYTES
PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
TIME_ZONE = "UTC"
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = HUD_DATA / "static"
_PLOTLY = str(distribution("plotly").locate_file("plotly/package_data"))
STATICFILES_DIRS: list[Any] = [BASE_DIR / "static", ("plotly", _PLOTLY)]
STORAGES = {
    "default": {"BACKEND": "hud.files.bucket.Bucket" if HUD_FILES else "hud.files.folder.Folder"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# what HttpsMiddleware sends; plotly writes style attributes and rules
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
SILENCED_SYSTEM_CHECKS = ["security.W001"]  # HttpsMiddleware is Django's SecurityMiddleware
if PRODUCTION:
    SECURE_SSL_REDIRECT = env_bool("HUD_SSL_REDIRECT", default=True)
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
        "access": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "hud.access": {"handlers": ["access"], "propagate": False},
        "rq": {"level": "WARNING"},
        "waitress": {"level": "WARNING"},
        "waitress.queue": {"level": "ERROR"},
        "django.request": {"filters": [without_traceback_of_refusal]},
    },
}
