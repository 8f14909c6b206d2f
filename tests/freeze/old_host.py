"""A host of an older checkout that goes on working when its dashboard comes back as the new one."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from tests.freeze.dashboard import Client, Dashboard, clean_environment, free_port, wait_for
from tests.freeze.masks import Recording

NAME = "old-host"
CASES = ("copy", "read")
_AWAY_S = 40  # in which the first task ends, and less than a lease lasts


def old_host(checkout: Path, old: Path, scratch: Path, recording: Recording) -> None:
    """Queue two runs for a host of `old`; its dashboard stops during the first, and this one's takes over.

    What waits in the host's spool and what waits in its queue must arrive, or the host must be told that the
    two do not understand each other (`other_protocol`).
    """
    data, port = scratch / "shared", free_port()
    with Dashboard(old, data, port) as before:
        client = before.client(scopes="read,run,admin")
        token = client.post("/api/v1/hosts/tokens", {}).json()["token"]
        log = scratch / "agent.log"
        command = [".venv/bin/python", "-m", "runner", "attach", "--hud", before.url, "--token", token]
        command += ["--name", NAME, "--devices", "cpu", "--data", str(scratch / "agent")]
        with log.open("wb") as file:
            environment = clean_environment() | {"RUNNER_LOCKS": str(scratch / "agent-locks")}
            agent = subprocess.Popen(
                command, cwd=old, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            wait_for(lambda: _online(client), "the old host", 60)
        except BaseException:
            agent.kill()
            raise
        wanted = {"suite": "ceilings", "device": "cpu", "host": NAME}
        runs = {case: client.start_run(**wanted, cases=[case]) for case in CASES}
        wait_for(lambda: client.get(runs[CASES[0]]).json()["state"] == "running", "the first run", 60)
    try:
        time.sleep(_AWAY_S)  # the length of the outage
        with Dashboard(checkout, data, port):
            client = Client(port, key=client.key)
            wait_for(lambda: all(map(client.ended, runs.values())) or _refused(log), "the runs", 240)
            recording.write("old_host/other_protocol.txt", f"{_refused(log)}\n")
            for case, run in runs.items():
                export = f"/api/v1/export?format=json&run={run.rpartition('/')[2]}"
                shown = ("case", "metric", "unit", "status")
                results = [[item[name] for name in shown] for item in client.get(export).json()["items"]]
                said = {name: client.get(run).json()[name] for name in ("state", "reason")}
                recording.write(f"old_host/{case}.json", said | {"results": sorted(results)})
            left = [path.name for path in (scratch / "agent" / "spool").glob("*")]
            recording.write("old_host/spool.json", left)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)


def _online(client: Client) -> bool:
    return NAME in json.dumps(client.get("/hosts.json").json())


def _refused(log: Path) -> bool:
    return "protocol" in log.read_text(errors="replace")
