"""The source of kernels that a host delivers with its task: taken apart, and stored once for each content."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection

import msgspec
from django.db import transaction
from django.utils import timezone

from hud.ingest.compilations import KEY, signed
from hud.ingest.receive import inflate
from hud.models import Compilation, Host, KernelBinary, KernelCode, Task, kernels_of
from hud.runs.tasks import leased_task
from runner.formats.errors import Fault, MalformedUpload

KIND = "kernel_code"  # of the artifact: a JSON object of texts by binary, as gzip
_MOST = 10  # largest kernels of a compilation whose source is kept
_MAX_BYTES = 8 * 2**20  # of one artifact's JSON
_MAX_TEXT = 64 * 1024


def take_kernel_code(*, uid: uuid.UUID, token: uuid.UUID, host: Host, data: bytes) -> int:
    """Keep the source of the largest kernels of what the task has delivered; return of how many. The source
    of a binary that is known stays. Raise BadUpload, LeaseBroken, UnknownTask."""
    try:
        texts = msgspec.json.decode(inflate(data, _MAX_BYTES), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise MalformedUpload("this is no code of kernels", [Fault("", str(error))]) from error
    texts = {binary: text for binary, text in texts.items() if KEY.fullmatch(binary)}
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        wanted = _largest(task, texts.keys())
        codes = {
            binary: KernelCode(digest=_digest(text), text=text, delivered=timezone.now())
            for binary in sorted(wanted)
            for text in [texts[binary].replace("\0", "")[:_MAX_TEXT]]
        }
        distinct = {code.digest: code for code in codes.values()}
        KernelCode.objects.bulk_create(
            [distinct[digest] for digest in sorted(distinct)],
            update_conflicts=True,
            unique_fields=["digest"],
            update_fields=["delivered"],
        )
        KernelBinary.objects.bulk_create(
            [KernelBinary(binary=binary, code=distinct[code.digest]) for binary, code in codes.items()],
            ignore_conflicts=True,
        )
    return len(codes)


def _largest(task: Task, binaries: Collection[str]) -> set[str]:
    """Return those of these binaries that are among the ten largest of a compilation of the task."""
    rows = list(
        Compilation.objects.filter(
            run_id=task.run_id, repeat=task.repeat, binaries__overlap=[signed(binary) for binary in binaries]
        )
    )
    kernels = kernels_of(rows)
    wanted: set[str] = set()
    for row in rows:
        there = [kernel for kernel in row.compiled(kernels).kernels if kernel.binary in binaries]
        largest = sorted(there, key=lambda kernel: -(kernel.time_us or 0.0))
        wanted.update(list(dict.fromkeys(kernel.binary for kernel in largest))[:_MOST])
    return wanted


def _digest(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.blake2b(text.encode(), digest_size=16).digest())
