"""The runner as a wheel, which hosts install from `/runner/`: the files that this HUD itself imports, so that
nothing is built or kept up to date at a deployment. `make wheel` writes it to `dist/`.

It lies in a folder of its own, named by a `.pth` file. Other interpreters of a host get that folder in their
PYTHONPATH, where they would otherwise find every package beside the runner.
"""

import base64
import hashlib
import io
import sys
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

from runner.schema.protocol import sources, version

_FOLDER = "compiler_hud_runner"
_PINNED = ("redis", "rq")  # a host that also has numpy needs nothing else
_WHEEL = "Wheel-Version: 1.0\nGenerator: compiler-hud\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def filename() -> str:
    return f"{_FOLDER}-{version()}-py3-none-any.whl"


@cache
def content() -> bytes:
    head = f"Metadata-Version: 2.1\nName: compiler-hud-runner\nVersion: {version()}\n"
    needs = "".join(f"Requires-Dist: {name}=={metadata.version(name)}\n" for name in _PINNED)
    info = f"{_FOLDER}-{version()}.dist-info"
    files = {f"{_FOLDER}/runner/{name}": source for name, source in sources().items()}
    files[f"{_FOLDER}.pth"] = _FOLDER.encode()
    files[f"{info}/METADATA"] = f"{head}Requires-Python: >=3.10\n{needs}Requires-Dist: numpy\n".encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/RECORD"] = "".join(map(_row, files.items())).encode() + f"{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _row(file: tuple[str, bytes]) -> str:
    name, data = file
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


if __name__ == "__main__":
    path = Path(sys.argv[1], filename())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content())
    sys.stdout.write(f"{path}\n")
