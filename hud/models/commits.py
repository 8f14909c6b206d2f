"""Commits of the repositories that runs name, from mirrors that an operator configures or pushed by CI."""

from django.db import models

from hud.models.base import NamedRow


class Commit(NamedRow):
    """A commit of a main line; the one before it is its `parent`."""

    repo = models.CharField(max_length=140)  # owner/name
    sha = models.CharField(max_length=64)
    parent = models.CharField(max_length=64, blank=True)  # the first
    title = models.CharField(max_length=300)
    author = models.CharField(max_length=150, blank=True)
    date = models.DateTimeField()
    touched = models.JSONField(default=list)  # files, as deep as folders tell what they are for

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sha", "repo"], name="commit_identity")]
