"""The web process before its first request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.bench.application import Application
from tests.bench.figures import Figure
from tests.support.servers import ROOT

_START = """
import resource, sys, time
import hud.wsgi
import django.urls
django.urls.get_resolver().url_patterns
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, "torch" in sys.modules)
"""


def start(_application: Application) -> Iterator[Figure]:
    """CPU time and memory until it could answer, and that torch is not in it."""
    done = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, cwd=ROOT, env=os.environ, check=True
    )
    cpu_s, memory_mib, torch = done.stdout.split()
    yield Figure("start", "web process, CPU until ready", float(cpu_s), "s", 1.5)
    yield Figure("start", "web process, peak memory", float(memory_mib), "MiB", 150)
    yield Figure("start", "torch in the web process", float(torch == "True"), "", 0)
