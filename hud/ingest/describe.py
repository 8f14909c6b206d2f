"""What a record measures, in the words of this project: suite, case, metric, backend, knobs.

Each outside system has its conventions; a sixth system is one more function and its line in `_SYSTEMS`.
"""

from __future__ import annotations

from collections.abc import Callable

from hud.ingest import others
from hud.ingest.exported import about_exported, exported
from runner.catalog.arches import arch_key
from runner.formats.measurement_key import About, Exported, Said, WrongRecord
from runner.formats.parameters import Parameters, switch
from runner.formats.torchdynamo.arguments import torchdynamo
from runner.records import Record

__all__ = ["EXPECTED", "About", "Exported", "WrongRecord", "describe"]

EXPECTED = "TorchInductor, expected by CI"
_SYSTEMS: dict[str, Callable[[Said], About]] = {
    "TorchInductor": torchdynamo,
    EXPECTED: torchdynamo,
    "PyTorch gpt-fast benchmark": others.gpt_fast,
    "TorchCache Benchmark": others.cachebench,
    "operatorbench": others.operatorbench,
    "PyTorch/XLA benchmark": others.xla,
    "torchbench userbenchmark": others.userbenchmark,
    "pr_time_benchmarks": others.pr_time,
    "inductor-kernel-benchmark": others.kernels,
}


def describe(record: Record, given: Parameters) -> About:
    """What the record measures. An export's own word wins over the content, the content over a parameter.

    Raises WrongRecord for a record of our export that is not whole.
    """
    said = Said(record, given)
    stored = exported(record)
    if stored:
        return about_exported(stored, said.device_name)
    about = _system(record.benchmark.name)(said)
    about.mode = about.mode or said.mode
    about.dtype = about.dtype or said.dtype
    about.device = about.device or said.device
    about.device_name = said.device_name
    about.arch = arch_key(said.device_name)
    about.dynamic = about.dynamic or switch(given.dynamic)
    return about


def _system(benchmark: str) -> Callable[[Said], About]:
    ours = others.ours if benchmark.startswith(others.OURS) else others.unknown
    return _SYSTEMS.get(benchmark, ours)
