"""Static files: everything in `static/`, and plotly.js from the plotly wheel."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.staticfiles.finders import FileSystemFinder
from django.core.files.storage import FileSystemStorage

PLOTLY_PREFIX = "plotly"
PLOTLY_FILE = "plotly.min.js"


class ProjectFinder(FileSystemFinder):
    """Find files in `STATICFILES_DIRS`, but only one file of the plotly wheel."""

    def find_location(self, root: str, path: str, prefix: str | None = None) -> str | None:
        if prefix == PLOTLY_PREFIX and path != f"{PLOTLY_PREFIX}/{PLOTLY_FILE}":
            return None
        return super().find_location(root, path, prefix)

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Any]]:
        for path, storage in super().list(ignore_patterns):
            assert isinstance(storage, FileSystemStorage)
            if getattr(storage, "prefix", None) != PLOTLY_PREFIX or path == PLOTLY_FILE:
                yield path, storage
