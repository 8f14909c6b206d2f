"""The client of a Compiler HUD: `import compiler_hud` from its wheel, `runner.client` in the repository.

HUD_URL and HUD_KEY name the HUD; in a CI job of GitHub or GitLab its commit, branch and run are known.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from .connection import HudError, KeyRefused, Refused, Unreachable, WrongUsage
from .gate import Verdict, gate_refs
from .hud import Hud, run_by_ci, said_by_ci, with_query

__all__ = (
    "Hud", "HudError", "KeyRefused", "Refused", "Unreachable", "Verdict", "WrongUsage", "compare", "flush",
    "frame", "gate", "log", "regressions", "rerun", "upload",
)  # fmt: skip
_PENDING: list[dict[str, Any]] = []  # logged and not sent


def log(
    case: str,
    metric: str,
    value: float | list[float],
    *,
    unit: str = "",
    direction: str = "",
    suite: str = "custom",
    backend: str = "",
    mode: str = "inference",
    dtype: str = "",
    device: str = "cpu",
    arch: str = "",
    **parameters: Any,
) -> None:
    """Log a result; several values are samples. `direction` is `up` or `down`, what is better; `parameters`
    tell cases apart. All are sent by `flush`, or when the program ends."""
    values = value if isinstance(value, list) else [value]
    own_arch = platform.machine() if device == "cpu" else ""
    about = {"device": device, "arch": arch or own_arch, "knobs": parameters}
    meaning = {name: text for name, text in (("unit", unit), ("direction", direction)) if text}
    if not _PENDING:
        atexit.register(_flush_at_exit)
    _PENDING.append(
        {
            "benchmark": {"name": suite, "mode": mode, "dtype": dtype, "extra_info": about},
            "model": {"name": case, "backend": backend, "origins": [suite]},
            "metric": {"name": metric, "benchmark_values": values, "extra_info": meaning},
        }
    )


def flush(hud: Hud | None = None, **parameters: str) -> dict[str, Any]:
    """Send what was logged as one upload; return its receipt, {} where nothing was."""
    if not _PENDING:
        return {}
    atexit.unregister(_flush_at_exit)
    lines = [json.dumps(record) for record in _PENDING]
    receipt = upload("\n".join(lines).encode(), "logged.jsonl", hud=hud, format="v3", **parameters)
    _PENDING.clear()
    return receipt


def _flush_at_exit() -> None:
    try:
        flush()
    except (HudError, WrongUsage) as error:
        sys.stderr.write(f"compiler_hud: {len(_PENDING)} logged results were not sent: {error}\n")


def upload(
    results: str | Path | bytes, filename: str = "", *, hud: Hud | None = None, **parameters: str
) -> dict[str, Any]:
    """Upload a file that a benchmark wrote, or its content under a name; return the receipt. Parameters are
    those of uploads, such as `arch` and `suite`. Raise Refused with the reason."""
    body = results if isinstance(results, bytes) else Path(results).read_bytes()
    name = filename or (Path(results).name if not isinstance(results, bytes) else "")
    return (hud or Hud()).upload(name, body, {**said_by_ci(os.environ), **parameters})


def frame(hud: Hud | None = None, **filters: str) -> Any:
    """Return measurements as a DataFrame of pandas, with a column `unit`; `attrs["units"]` has all.
    Filters are those of exports, such as suite, case, metric, experiment, branch and stream."""
    import pandas  # noqa: PLC0415 - an extra

    try:
        import pyarrow  # noqa: F401, PLC0415 - with it a million rows take seconds
    except ImportError:
        form, read = "csv", pandas.read_csv
    else:
        form, read = "parquet", pandas.read_parquet
    hud = hud or Hud()
    body = hud.send("GET", f"/api/v1/{with_query('export', {**filters, 'format': form})}")
    table = read(io.BytesIO(body))
    units = table[["metric", "unit"]].drop_duplicates().fillna("")
    table.attrs["units"] = dict(units.itertuples(index=False, name=None))
    return table


def compare(base: str, head: str, *, hud: Hud | None = None, **filters: str) -> dict[str, Any]:
    """Return the comparison of two sides, such as `commit:abc123` and `latest:main`."""
    return (hud or Hud()).get("compare", base=base, head=head, **filters)


def regressions(*, hud: Hud | None = None, **filters: str) -> list[dict[str, Any]]:
    """Return regressions, the newest first. Filters: state, stream, arch, suite, branch."""
    items: list[dict[str, Any]] = (hud or Hud()).get("regressions", **filters)["items"]
    return items


def rerun(experiment: int, *, hud: Hud | None = None, **body: Any) -> int:
    """Start a run of an experiment; return its number. `body` is that of `POST runs`; in a CI job its commit
    and pull request are the job's."""
    return (hud or Hud()).start({**run_by_ci(os.environ), "experiment": experiment, **body})


def gate(base: str, head: str, *, hud: Hud | None = None, budget_min: float = 0.0, **more: Any) -> Verdict:
    """Return whether `head` is slower than `base`, as `python -m runner gate`."""
    return gate_refs(hud or Hud(), base, head, budget_min=budget_min, **more)
