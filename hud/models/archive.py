"""The manifest of the archive."""

from django.db import models

from hud.models.base import NamedRow
from hud.models.streams import Stream

POINTS, SAMPLES = "points", "samples"  # the kinds of files


class ArchivedMonth(NamedRow):
    """A closed month of a stream in the archive: points and samples of runs whose `order_time` lies in it,
    as two files. What a write leaves behind goes as an orphan (`hud.retention`)."""

    stream = models.ForeignKey(Stream, models.CASCADE, related_name="+")  # not merged: both are written anew
    month = models.DateField()  # its first day, in UTC
    path = models.CharField(max_length=100)  # of its files, without what `file` adds
    versions = models.CharField(max_length=32)  # of its runs' rows, which change with their points
    digest = models.CharField(max_length=64)  # of the content
    points = models.IntegerField()
    sampled = models.IntegerField()  # measurements with several samples
    size_bytes = models.BigIntegerField()
    written = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["stream", "month"], name="archived_month")]

    def file(self, kind: str) -> str:
        return f"{self.path}-{kind}.parquet"
