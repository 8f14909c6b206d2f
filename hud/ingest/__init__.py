"""Ingestion of result files: bytes → records → measurements → rows → receipt.

HTTP and the command line call `ingest`; a host's results come through `deliveries.take_results`.
"""

from hud.ingest.compressed import inflate, is_compressed
from hud.ingest.receipt import Receipt
from hud.ingest.receive import TooManyRecords, ingest
from runner.formats.errors import BadUpload
