"""Bodies and parameters of uploads: good, bad and unusual ones."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLES = ("hud/samples", "tests/samples")
_PARAMETERS = f"""
suite=huggingface mode=training dtype=amp backend=eager device=cpu arch=cpu-x86_64 batch_size=4 dynamic=1
commit={"a" * 40} commit_date=2026-09-01 branch=refs/heads/main repo=pytorch/pytorch torch=2.12.0 cuda=12.8
driver=570.1 host=box run_time=2026-09-02T00:00:00Z run_id=r-1 source=hand provenance=told filename=x.json
"""
_BAD_PARAMETERS = f"""
colour=red format=nonsense run_time=2009-01-01 run_time=2200-01-01 run_time=soon dynamic=7 dry_run=maybe
partial=2
batch_size=many device=toaster commit=zz dtype= suite=a/b arch=H200 run_time=2026-01-01&run_time=2026-01-02
host={"h" * 400}
"""
_STATUSES = "ok oom failed crashed timed_out wrong cannot_tell unsupported not_run ?"
_METRICS = ("accuracy", "compilation_latency", "speedup", "peak_memory", "never heard of", "x" * 300)
_ARCHES = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "a toaster")
_VALUES: Sequence[Any] = (None, "fast", 3, [-1.0], [1e300], [0.0], [1, None], [[1.0]], [True])
_BAD_BODIES = (
    b"", b"{", b"1", b"[]", b"{}", b"\0", '["é"]'.encode("latin-1"), b"[" * 2000, b"a,b\n1,2\n",
    b'["a", "b"]', b'{"model": 1, "model": 2}', b'{"model": {"name": "m"}}',
)  # fmt: skip


@dataclass(frozen=True)
class Upload:
    name: str
    body: bytes
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def record(number: int, upload: int = 0, **changes: Any) -> dict[str, Any]:
    """A v3 record of the experiment with this number; `changes` replace parts of it: `model__name=…`."""
    latency_ms = 5 + number / 100 + upload / 7
    runner = {"name": "h200-17", "type": "NVIDIA H200", "extra_info": {"cuda": "13.0", "driver": "580.65"}}
    said = {"device": "cuda", "arch": "NVIDIA H200", "batch_size": 16, "freezing": False}
    made: dict[str, Any] = {
        "benchmark": {"name": "TorchInductor", "mode": "inference", "dtype": "bfloat16", "extra_info": said},
        "model": {"name": f"model_{number}", "backend": "inductor", "origins": ["torchbench"]},
        "metric": {"name": "abs_latency", "benchmark_values": [latency_ms + k / 1000 for k in range(3)]},
        "runners": [runner],
        "dependencies": {"torch": {"version": "2.13.0+cu130", "sha": "9f3c1d2"}},
    }
    for path, value in changes.items():
        place, (*above, last) = made, path.split("__")
        for step in above:
            place = place[step]
        place[last] = value
    return made


def as_body(content: Any) -> bytes:
    return json.dumps(content).encode()


def upload(name: str, content: Any, query: str = "", **headers: str) -> Upload:
    return Upload(
        name, as_body(content), query, {key.replace("_", "-"): text for key, text in headers.items()}
    )


def generated() -> Iterator[Upload]:
    """Uploads in the order in which they are sent: later ones meet what earlier ones left."""
    few = [record(number) for number in range(12)]
    for night in range(6):  # enough history for verdicts; the last night is slower
        nightly = [record(number, 20 if night == 5 else 0, head_sha=f"{night:040x}") for number in range(12)]
        query = f"run_time=2026-10-0{night + 1}T03:00:00Z&source=nightly&run_id=night-{night}"
        yield upload(f"night-{night}", nightly, query)
    for name in ("again", "again-same"):
        yield upload(name, few, "source=again")
    yield Upload("again-as-lines", b"\n".join(map(as_body, few)), "source=again")
    packed = gzip.compress(as_body(few), mtime=0)
    yield Upload("again-gzip", packed, "source=again", {"Content-Encoding": "gzip"})
    yield Upload("gzip-broken", packed[:50], "", {"Content-Encoding": "gzip"})
    yield upload("brotli", few, Content_Encoding="br")
    for name, number in (("idempotent", 1), ("idempotent-same", 1), ("idempotent-other", 2)):
        yield upload(name, record(number, 3), Idempotency_Key="freeze-1")
    for given in _PARAMETERS.split():
        yield upload(f"parameter-{given[:40]}", record(20), given)
    plain = {
        "model": {"name": "m"},
        "metric": {"name": "speedup", "benchmark_values": [1.5]},
        "benchmark": {},
    }
    yield upload("parameters-all", plain, "&".join(_PARAMETERS.split()))
    yield upload("parameters-none", plain)
    yield upload("two-hosts", [record(30, runners=[{"name": name, "type": "NVIDIA H200"}]) for name in "ab"])
    yield upload("two-commits", [record(31, head_sha=letter * 40, head_branch="b") for letter in "ab"])
    for values in (0, 9):
        yield upload(f"workflow-{values}", record(32, values, job_id=7, workflow_id=8, run_attempt=1))
    yield from _unusual()
    yield from _refused()
    large = [record(number, 1, metric__name=f"metric_{k}") for k in range(60) for number in range(12)]
    yield upload("large", large, "source=large")


def _unusual() -> Iterator[Upload]:
    for status in _STATUSES.split():
        said = {"status": status, "code": "code", "reason": "words"}
        yield upload(f"status-{status}", record(41, metric__extra_info=said))
        without = record(40, metric__benchmark_values=[], metric__extra_info=said)
        yield upload(f"status-{status}-without-value", without)
    for number, value in enumerate([*_VALUES, [math.nan]]):
        yield upload(f"values-{number}", record(42, metric__benchmark_values=value))
    for name in _METRICS:
        yield upload(f"metric-{name[:20]}", record(43, metric__name=name))
    for arch in _ARCHES:
        yield upload(f"arch-{arch}", record(45, benchmark__extra_info={"device": "cuda", "arch": arch}))
    yield upload("target", record(44, metric__target_value=4.0))
    knobs = {"device": "cpu", "knobs": {"D": 1024}, "dynamic": True}
    yield upload("knobs", record(46, benchmark__extra_info=knobs))
    for number, model in enumerate(("Modèle ½ 模型", "a\0b", "n" * 3000)):
        yield upload(f"unicode-{number}", record(47, model__name=model))


def _refused() -> Iterator[Upload]:
    good, bad = record(50), record(51) | {"metric": "none"}
    for query in ("", "partial=1", "partial=1&dry_run=1"):
        yield upload(f"one-bad-{query}", [good, bad], query)
        yield upload(f"only-bad-{query}", [bad], query)
    for number, body in enumerate(_BAD_BODIES):
        yield Upload(f"body-{number}", body)
    for query in _BAD_PARAMETERS.split():
        yield upload(f"query-{query[:40].replace('/', '_')}", good, query)


def samples(inputs: Path) -> Iterator[Upload]:
    """The sample files as somebody posts them who has read no manifest; nothing is stored."""
    for path in sorted(path for top in SAMPLES for path in (inputs / top).rglob("*")):
        if path.suffix in {".json", ".jsonl", ".csv"} and path.name != "manifest.json":
            name = str(path.relative_to(inputs)).replace("/", "~")
            yield Upload(f"{name}-named", path.read_bytes(), f"dry_run=1&filename={path.name}")
            yield Upload(f"{name}-unnamed", path.read_bytes(), "dry_run=1&partial=1")
