"""Bare repositories with the commits that a test says."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def create_mirror(path: Path, commits: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Make a bare repository whose main line has these titles and files; return the hashes, oldest first."""
    subprocess.run(["git", "init", "--bare", "--quiet", "--initial-branch=main", str(path)], check=True)
    stream = ""
    for number, (title, files) in enumerate(commits):
        stream += f"commit refs/heads/main\ncommitter Dev {number} <dev@x> {1_700_000_000 + number} +0000\n"
        stream += f"data {len(title.encode())}\n{title}\n"
        for name in files:
            stream += f'M 644 inline "{name}"\ndata {len(str(number))}\n{number}\n'
    git = ["git", f"--git-dir={path}"]
    subprocess.run([*git, "fast-import", "--quiet"], input=stream.encode(), check=True)
    listed = subprocess.run([*git, "rev-list", "--reverse", "main"], capture_output=True, check=True)
    return listed.stdout.decode().split()
