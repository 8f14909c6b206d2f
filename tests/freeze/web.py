"""Record a dashboard's answers: receipts, exports, pages, and the access of each role."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.freeze import uploads
from tests.freeze.dashboard import Client, Dashboard, Reply, wait_for
from tests.freeze.masks import Masks, Recording, as_json, slug

FORMATS = ("v3", "json", "csv")
METHODS = ("GET", "POST", "PUT", "DELETE")
MISSING = 2**31 - 1  # the id of nothing
_PAGES = """
/ /overview.json /overview.csv /suites/ /suites.json /suites/micro/ /suites/micro.csv
/experiments/{experiment}/ /experiments/{experiment}.json /experiments/{experiment}/rerun /runs/ /runs.json
/runs/{run}/ /runs/{run}.json /runs/{run}/live /runs/{run}/log /runs/{run}/artifacts/1 /runs/{run}/cancel
/hosts/ /hosts.json /hosts/live /hosts/token /hosts/{host}/pause /hosts/{host}/drain /hosts/{host}/detach
/schedules/{schedule} /schedules/{schedule}/delete /keys/ /keys.json /keys/{key}/revoke /login/ /healthz
/readyz /metrics /api/v1/docs /api/v1/openapi.json /admin/ /admin/hud/run/ /admin/hud/host/ /django-rq/
/static/css/hud.css /nothing /logout/ /statusz
"""
_EXPERIMENTS = "/api/v1/experiments?limit=1000&cursor=0"
_RUNS = f"/runs.json?before={MISSING}"
SHOWN = 8  # experiments of each suite whose pages are recorded
_PAGE = re.compile(r"/(?!login/|static/)[^.?]*\?")
_LINK = re.compile(r'href="([^"#]+)"')


def ingest(dashboard: Dashboard, inputs: Path, recording: Recording) -> None:
    """Store all samples and generated uploads, and record receipts and exports."""
    client = dashboard.client(scopes="upload,read")
    receipts: dict[str, Any] = {}
    for upload in uploads.samples(inputs):
        receipts[f"http/samples/{upload.name}"] = _send(client, upload)
    paths = [str(inputs / top) for top in uploads.SAMPLES]
    again = [str(inputs / "tests/samples"), "--partial", "1", "--source", "cli"]
    for options in ([*paths, "--dry-run"], paths, again):
        done = dashboard.manage("ingest", "--json", *options)
        kind = options[-1].lstrip("-") if options is not paths else "plain"
        receipts[f"cli/{kind}/status"] = {"exit": done.returncode, "said": done.stderr}
        for receipt in json.loads(done.stdout):
            name = str(Path(receipt["file"]).relative_to(inputs)).replace("/", "~")
            receipts[f"cli/{kind}/{name}"] = receipt
    for upload in uploads.generated():
        receipts[f"http/generated/{upload.name}"] = _send(client, upload)
    receipts["http/no-key"] = _send(Client(dashboard.port), uploads.Upload("", b"[]"))
    dashboard.judge()
    masks = masks_of(dashboard, inputs)
    for name, receipt in receipts.items():
        recording.write(f"receipts/{name.replace(' ', '_')}.json", masks.value(receipt))
    suites = [item["name"] for item in client.get("/suites.json").json()["items"]]
    for suite in suites:
        for file_format in FORMATS:
            reply = client.get(f"/api/v1/export?format={file_format}&suite={quote(suite)}")
            recording.write(f"exports/{suite}.{file_format}", _export(reply, file_format, masks))
    export = client.get("/api/v1/export?suite=huggingface").body
    taken_back = _send(client, uploads.Upload("", export, "dry_run=1"))
    recording.write("exports/huggingface-taken-back.json", masks.value(taken_back))


def _send(client: Client, upload: uploads.Upload) -> dict[str, Any]:
    path = f"/api/v1/results?{quote(upload.query, safe='=&+:')}" if upload.query else "/api/v1/results"
    reply = client.call("POST", path, upload.body, upload.headers)
    answer: dict[str, Any] = {"status": reply.status, "answer": reply.json()}
    if reply.status == 202:
        found: dict[str, Any] = {}
        place = reply.headers["Location"]

        def ended() -> bool:
            found.update(client.get(place).json())
            return found["state"] in {"done", "succeeded", "failed", "refused"}

        wait_for(ended, f"the import at {place}: {found}", 60)
        answer["import"] = found
    return answer


def _export(reply: Reply, file_format: str, masks: Masks) -> str:
    """Lines in an order of their own, because that of ids is nobody's business."""
    if file_format == "csv":
        head, *rows = masks.csv(reply.text).splitlines()
        return "\n".join([head, *sorted(rows)])
    items = reply.json()["items"] if file_format == "json" else map(json.loads, reply.text.splitlines())
    return "\n".join(sorted(json.dumps(masks.value(item)) for item in items))


def masks_of(dashboard: Dashboard, inputs: Path) -> Masks:
    """Names for what the dashboard holds by now."""
    client = dashboard.client(scopes="read")
    experiments = {item["id"]: slug(item) for item in _items(client, _EXPERIMENTS)}
    seen: Counter[str] = Counter()
    runs = {}
    for run in sorted(_items(client, _RUNS), key=lambda run: int(run["run"])):
        name = re.sub(r"[^\w.-]+", "_", f"{run['title']}~{run['filename'] or run['external_id'] or ''}")
        seen[name] += 1
        runs[run["run"]] = f"{name}~{seen[name]}"
    texts = {f"{inputs}/": "", str(dashboard.data.parent): "<scratch>", str(dashboard.checkout): "<checkout>"}
    return Masks(experiments, runs, texts | {f"127.0.0.1:{dashboard.port}": "<address>"})


def _items(client: Client, path: str) -> Iterator[dict[str, Any]]:
    """The items of all pages; `path` ends with the parameter that names the next page, and the first one."""
    while True:
        page = client.get(path).json()
        yield from page["items"]
        if not page["next"]:
            return
        path = f"{path.rpartition('=')[0]}={page['next']}"


def pages(dashboard: Dashboard, inputs: Path, recording: Recording) -> None:
    """Record every page as JSON and CSV, and the statuses of all that its HTML leads to."""
    masks = masks_of(dashboard, inputs)
    anonymous, operator = dashboard.client(), dashboard.operator()
    recording.write("openapi.json", as_json(anonymous.get("/api/v1/openapi.json").json()))
    top = ["/", "/suites/", "/runs/", "/hosts/"]
    suites = [f"/suites/{quote(item['name'])}/" for item in anonymous.get("/suites.json").json()["items"]]
    experiments = _of_each_suite(masks, SHOWN)
    runs = [f"/runs/{number}/" for number in sorted(masks.runs, key=masks.runs.__getitem__)][::2]
    addresses = [*top, *suites, *experiments, *runs]
    starts = [*top, *suites, *_of_each_suite(masks, 1), *runs[::20]]
    addresses += [link for link in _linked(anonymous, starts) if link.partition("?")[0] in addresses]
    statuses = []
    for address in addresses:
        seen = [client.get(address).status for client in (anonymous, operator)]
        statuses.append(f"{masks.text(address)} anonymous, operator: {seen}")
        for kind in ("json", "csv"):
            reply = operator.get(_as(address, kind))
            name = f"pages/{_file_of(masks.text(address))}.{kind}"
            recording.write(name, _masked(reply, masks))
    for kind in ("json", "csv"):
        recording.write(f"pages/keys.{kind}", _masked(operator.get(f"/keys.{kind}"), masks))
    for path in ("experiments?limit=1000", "hosts", "queue", "schedules"):
        recording.write(f"pages/api/{path}.json", _masked(operator.get(f"/api/v1/{path}"), masks))
    for address in _of_each_suite(masks, 1):
        number = address.split("/")[2]
        for metric in sorted(
            {item["metric"] for item in anonymous.get(_as(address, "json")).json()["metrics"]}
        )[:4]:
            reply = anonymous.get(f"/api/v1/series/{number}/{quote(metric, safe='')}")
            recording.write(
                f"pages/api/series/{masks.experiments[int(number)]}/{_file_of(metric)}.json",
                _masked(reply, masks),
            )
    recording.write("pages/statuses.txt", "\n".join(sorted(statuses)))


def _of_each_suite(masks: Masks, most: int) -> list[str]:
    """Addresses of up to `most` experiments, spread evenly over the names of each suite's."""
    suites: dict[str, list[tuple[str, int]]] = {}
    for number, name in masks.experiments.items():
        suites.setdefault(name.partition("~")[0], []).append((name, number))
    return [
        f"/experiments/{number}/"
        for _suite, found in sorted(suites.items())
        for _name, number in sorted(found)[:: -(-len(found) // most)]
    ]


def _linked(client: Client, addresses: Iterable[str]) -> list[str]:
    """Addresses with a query that these pages link to, up to two of each path."""
    found: dict[str, set[str]] = {}
    for address in addresses:
        for link in _LINK.findall(client.get(address).text):
            target = link.replace("&amp;", "&")
            target = address + target if target.startswith("?") else target
            if _PAGE.match(target):
                found.setdefault(target.partition("?")[0], set()).add(target)
    return [target for _path, some in sorted(found.items()) for target in sorted(some)[:2]]


def _as(address: str, kind: str) -> str:
    path, mark, query = address.partition("?")
    path = "/overview" if path == "/" else path.rstrip("/")
    return f"{path}.{kind}{mark}{query}"


def _file_of(address: str) -> str:
    return re.sub(r"[^\w.=,+~/?&-]+", "_", address.strip("/")) or "overview"


def _masked(reply: Reply, masks: Masks) -> str:
    if reply.status != 200:
        return f"status {reply.status}\n"
    return as_json(masks.value(reply.json())) if reply.kind == "application/json" else masks.csv(reply.text)


def access(dashboard: Dashboard, recording: Recording, *, private: bool = False) -> None:
    """Record for each role what each method of each route answers; of a `private` one, what can be read.
    Each role has a spare host and a schedule to act on; the role `host` has the key of that host."""
    operator, admin = dashboard.operator(), dashboard.client(scopes="admin")
    *shown, log_out = _PAGES.split()  # logging out comes last
    routes = [*shown, *sorted(operator.get("/api/v1/openapi.json").json()["paths"]), log_out]
    run = min(item["run"] for item in operator.get("/runs.json").json()["items"])
    known = {"experiment": next(_items(operator, _EXPERIMENTS))["id"], "run_id": run, "run": run}
    known |= {"metric": "speedup", "kind": "log", "uid": "00000000-0000-4000-8000-000000000000"}
    roles = {"nobody": dashboard.client(), "read": dashboard.client(scopes="read"), "operator": operator}
    if not private:
        roles |= {scope: dashboard.client(scopes=scope) for scope in ("upload", "run")}
        roles |= {
            "admin": admin,
            "wrong key": Client(dashboard.port, "hud_wrong"),
            "host": dashboard.client(),
        }
    for role, client in roles.items():
        spare = _spare(admin, f"spare-{role.replace(' ', '-')}{'-private' * private}")
        own_key = spare.pop("key")  # in a path, `key` is that of somebody else
        client.key = own_key if role == "host" else client.key
        lines = []
        for route in routes:
            for method in ("GET",) if private else METHODS:
                path = route.format_map(defaultdict(lambda: MISSING, {**known, **spare}))
                kind = (
                    "application/json" if route.startswith("/api/") else "application/x-www-form-urlencoded"
                )
                body = None if method == "GET" else b"{}" if route.startswith("/api/") else b""
                reply = client.call(method, path, body, {"Content-Type": kind})
                lines.append(f"{method} {route} {reply.status} {_code(reply)}".rstrip())
        recording.write(f"access/{role}{' private' * private}.txt", "\n".join(lines))


def _spare(admin: Client, name: str) -> dict[str, Any]:
    """Make a host and a schedule that nobody needs; return their ids and the host's key."""
    token = admin.post("/api/v1/hosts/tokens", {}).json()["token"]
    host = admin.post("/api/v1/hosts/register", {"token": token, "name": name}).json()
    asked = {"name": name, "suite": "ceilings", "cron": "0 0 1 1 *", "enabled": False}
    schedule = admin.post("/api/v1/schedules", asked).json()["id"]
    ids = {"host": host["host"], "host_id": host["host"], "schedule": schedule, "schedule_id": schedule}
    return ids | {"key": host["key"]}


def _code(reply: Reply) -> str:
    if reply.kind == "application/problem+json":
        return str(reply.json().get("code", "problem"))
    place = reply.headers.get("Location", "").partition("?")[0]
    return re.sub(r"\d+", "#", place) or reply.kind
