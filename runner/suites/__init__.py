"""The suites, a folder each: `__init__.py` defines SUITE in plain Python, `run.py` measures with torch.

A new suite is a folder and a line here.
"""

from importlib import import_module

from runner.schema.suite import SUITES, UNLISTED, suite_of
from runner.suites.file import file_suite

__all__ = ["CEILINGS", "SUITES", "suite_of"]

CEILINGS = "ceilings"  # the suite that measures what a host itself reaches
_FOLDERS = (
    "huggingface",
    "timm",
    "torchbench",
    "micro",
    "operators",
    "gpt_fast",
    "cache",
    "xla",
    CEILINGS,
)
for _folder in _FOLDERS:
    _suite = import_module(f"runner.suites.{_folder}").SUITE
    SUITES[_suite.name] = _suite
UNLISTED["file"] = file_suite
