"""The user ids of an installation where root runs it: fours that no other installation of the machine has."""

import fcntl
import zlib
from contextlib import suppress
from pathlib import Path

FIRST_UID, _INSTALLATIONS = 60_580, 150  # in the range that systemd leaves unused
END_UID = FIRST_UID + 4 * _INSTALLATIONS
# a link to the folder of each installation, until the machine restarts
_NOTES = Path("/run/compiler-hud/uids")


def first_uid(data: Path) -> int:
    """Return the first of the four user ids of an installation, which stay its own while its folder exists.
    Where that cannot be noted, one installation in 150 has the same."""
    data = data.resolve()
    number = zlib.crc32(bytes(data)) % _INSTALLATIONS
    with suppress(OSError):
        _NOTES.mkdir(parents=True, exist_ok=True)
        with (_NOTES / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            noted = {path.readlink(): int(path.name) for path in _NOTES.glob("[0-9]*") if path.exists()}
            if data in noted:
                return FIRST_UID + 4 * noted[data]
            others = ((number + step) % _INSTALLATIONS for step in range(_INSTALLATIONS))
            number = next((other for other in others if other not in noted.values()), number)
            (_NOTES / str(number)).unlink(missing_ok=True)
            (_NOTES / str(number)).symlink_to(data)
    return FIRST_UID + 4 * number


def benchmark_uids(first: int, data: Path, accelerators: int) -> list[int]:
    """Return a user id for the benchmarks of each accelerator: `first`, and where there are more, those of
    fours that are noted for their homes below the agent's data folder, which are created."""
    uids = [first]
    while len(uids) < accelerators:
        home = home_of(data, len(uids))
        home.mkdir(parents=True, exist_ok=True)
        four = first_uid(home)
        uids += range(four, four + 4)
    return uids[:accelerators]


def home_of(data: Path, slot: int) -> Path:
    """Return the home of the benchmarks of an agent's first, second, … accelerator."""
    return data / (f"benchmarks-{slot}" if slot else "benchmarks")
