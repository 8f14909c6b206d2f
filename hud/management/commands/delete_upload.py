"""`manage.py delete_upload ID [--dry-run]`: delete an upload, or say what would go with it."""

from hud.management.commands import delete_run
from hud.models import Upload


class Command(delete_run.Command):
    help = "Delete an upload with everything that only it has. Remaining series are judged again."
    kind = Upload
