"""The configuration of the worker of one accelerator."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.host.spool import write_json
from runner.system.interpreters import Interpreter


@dataclass(frozen=True)
class WorkerConfig:
    """The agent writes it for each worker it starts, in a file that only its owner may read."""

    hud: str  # address
    key: str = field(repr=False)
    host: str
    accelerator: int  # its number at the hud
    name: str  # cpu, cuda:0
    lock: str  # name of its lock
    visible: str  # CUDA_VISIBLE_DEVICES
    queue: str
    redis_url: str = field(repr=False)  # with the password of this host's Redis user
    data: str  # the agent's data folder
    pythons: Mapping[str, Interpreter]

    def save(self) -> Path:
        path = Path(self.data) / "workers" / f"{self.name.replace(':', '-')}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(self))
        return path

    @classmethod
    def load(cls, path: Path) -> WorkerConfig:
        value = json.loads(path.read_bytes())
        pythons = {name: Interpreter(**entry) for name, entry in value.pop("pythons").items()}
        return cls(pythons=pythons, **value)
