"""Ingestion of result files: bytes → records → measurements → rows → receipt.

HTTP and the command line call `ingest`; a host's results come through `deliveries.take_results`.
"""

from hud.ingest.receipt import Receipt
from hud.ingest.receive import TooManyRecords, inflate, ingest
from runner.formats.errors import BadUpload
