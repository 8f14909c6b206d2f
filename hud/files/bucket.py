"""Files in a bucket of S3, or of a server that speaks its protocol."""

import errno
import hashlib
import os
import secrets
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings
from django.core.files.base import ContentFile
from storages.backends.s3 import S3Storage

_LEAST_PART_BYTES = 5 * 2**20  # of an object that the server puts together


def _as_os_error(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method raise an OSError for the errors of boto: FileNotFoundError, or one of `EREMOTEIO`."""

    @wraps(method)
    def call(*arguments: Any, **more: Any) -> Any:
        try:
            return method(*arguments, **more)
        except (BotoCoreError, ClientError) as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") in {"NoSuchKey", "404"}:
                raise FileNotFoundError(str(error)) from error
            raise OSError(errno.EREMOTEIO, str(error)) from error

    return call


class Bucket(S3Storage):  # type: ignore[misc]
    """Files of the bucket and prefix in `HUD_FILES`; credentials, region and endpoint come from AWS' own
    variables. Nodes share it where they read the same random id in its object `data_id`."""

    def __init__(self) -> None:
        bucket, _, prefix = settings.HUD_FILES.removeprefix("s3://").partition("/")
        style = "path" if {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & {*os.environ} else "auto"
        waits = {"connect_timeout": 5, "read_timeout": 20, "retries": {"total_max_attempts": 3}}
        config = Config(**waits, s3={"addressing_style": style})
        super().__init__(bucket_name=bucket, location=prefix, client_config=config, max_memory_size=2**20)
        # no two processes may use one connection
        os.register_at_fork(after_in_child=lambda: self.__setstate__(self.__getstate__()))

    @cached_property
    def identity(self) -> str:
        """Return the id, once this node could write and delete here. Raise OSError."""
        trial = f"trial-{secrets.token_hex(6)}"
        self.save(trial, ContentFile(b""))
        self.delete(trial)
        if not self.exists("data_id"):
            self.save("data_id", ContentFile(secrets.token_bytes(12)))
        return hashlib.sha256(settings.HUD_FILES.encode() + self.read("data_id")).hexdigest()[:12]

    def note_heartbeat(self, moment: float) -> None:
        """Do nothing: a copy of the bucket has another name."""

    def last_heartbeat(self) -> float:
        """Return infinity, if the bucket can be read."""
        self.read("data_id")
        return float("inf")

    def append(self, name: str, start: int, data: bytes) -> None:
        """Put an object anew, with `data` from `start` on; the server copies what stays of a large one."""
        place = self.bucket.Object(self._normalize_name(name))
        if start < _LEAST_PART_BYTES:
            place.put(Body=(self.read(name, 0, start) if start else b"") + data)
            return
        upload = place.initiate_multipart_upload()
        source = {"Bucket": place.bucket_name, "Key": place.key}
        copied = upload.Part(1).copy_from(CopySource=source, CopySourceRange=f"bytes=0-{start - 1}")
        tags = copied["CopyPartResult"]["ETag"], upload.Part(2).upload(Body=data)["ETag"]
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        upload.complete(MultipartUpload={"Parts": parts})

    def read(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Return an object's bytes from `start`, at most `size`. Raise FileNotFoundError."""
        end = start + size - 1 if size >= 0 else ""
        try:
            answer = self.bucket.Object(self._normalize_name(name)).get(Range=f"bytes={start}-{end}")
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidRange":
                return b""
            raise
        return bytes(answer["Body"].read())


for _name in ("_open", "_save", "append", "delete", "exists", "listdir", "read", "size", "get_modified_time"):
    setattr(Bucket, _name, _as_os_error(getattr(Bucket, _name)))
