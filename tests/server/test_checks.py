"""`manage.py check`: clean as shipped, and each finding names its remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from hud import apps
from tests.support.servers import ROOT


def check(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "HUD_"))}
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--fail-level", "WARNING", *arguments],
        cwd=ROOT,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_development_is_clean(tmp_path: Path) -> None:
    done = check(HUD_DATA=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_production_needs_a_secret_key_and_allowed_hosts_alone(tmp_path: Path) -> None:
    production = {"HUD_DATA": str(tmp_path), "HUD_ENV": "production", "ALLOWED_HOSTS": "hud.example"}
    done = check("--deploy", **production)
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr
    done = check("--deploy", **production, SECRET_KEY="".join(map(chr, range(48, 123))))
    assert done.returncode == 0, done.stderr
    assert "hud.I004" in done.stderr  # embedded servers in production: said, not refused


def ids(messages: Sequence[object]) -> list[str]:
    return [str(getattr(message, "id", "")) for message in messages]


@pytest.mark.django_db
def test_an_old_database_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert apps.check_databases(databases=["default"]) == []
    monkeypatch.setattr(apps, "MINIMUM_POSTGRES", 990_000)
    assert ids(apps.check_databases(databases=["default"])) == ["hud.E003"]


def test_any_host_name_in_production_is_a_warning(tmp_path: Path) -> None:
    production = {"HUD_DATA": str(tmp_path), "HUD_ENV": "production", "SECRET_KEY": "-".join("abcdefgh" * 9)}
    done = check("--deploy", **production, ALLOWED_HOSTS="*")
    assert done.returncode != 0
    assert "hud.W006" in done.stderr


def test_public_reading_in_production_is_mentioned(settings: Settings) -> None:
    settings.PRODUCTION = True
    settings.HUD_PUBLIC_READ = True
    assert "hud.I005" in ids(apps.check_deployment())


@pytest.mark.django_db
def test_a_database_of_a_newer_release_is_refused_and_stays() -> None:
    MigrationRecorder(connection).record_applied("hud", "9999_from_the_future")
    assert ids(apps.check_databases(databases=["default"])) == ["hud.E006"]
    for command, options in (("upgrade", {}), ("migrate", {"skip_checks": False})):
        with pytest.raises(SystemCheckError, match="9999_from_the_future"):
            call_command(command, **options)
    MigrationRecorder(connection).record_unapplied("hud", "9999_from_the_future")
    assert apps.check_databases(databases=["default"]) == []
    call_command("upgrade", verbosity=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HUD_KEEP_SAMPLES_DAYS", "abc"),
        ("HUD_KEEP_AUDIT_DAYS", "0"),
        ("HUD_READ_S", "nan"),
        ("HUD_LEASE_S", "1_0"),
        ("HUD_MAX_RECORDS", "0.5"),
        ("EMAIL_PORT", "smtp"),
        ("WEB_CONCURRENCY", "many"),
        ("HUD_PUBLIC_READ", "yes"),
        ("DATABASE_REPLICA_URL", "mysql://db/hud"),
    ],
)
@pytest.mark.parametrize("program", ["manage.py", "hud/wsgi.py"])
def test_a_wrong_setting_ends_every_program_in_a_line_that_names_it(
    tmp_path: Path, name: str, value: str, program: str
) -> None:
    command = ["manage.py", "archive"] if program == "manage.py" else ["-c", "import hud.wsgi"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "hud.settings", "HUD_DATA": str(tmp_path), name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.split()[0]) == (1, name)
    assert value in line or name == "DATABASE_REPLICA_URL"  # whose value may have a password
