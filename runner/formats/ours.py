"""The file of `python -m runner run --output FILE`: a line for each task with its records."""

from collections.abc import Iterator

from runner.formats import v3
from runner.formats.format import Format, Item, each, has_keys

_KEYS = {"fingerprint": str, "records": list}


def read(body: bytes, filename: str) -> Iterator[Item]:
    import msgspec

    from runner.formats import json_text

    record_of = v3.record_reader()

    def records(item: json_text.Value) -> Iterator[Item]:
        for index, record in enumerate(item.value["records"]):
            yield record_of(msgspec.json.encode(record), f"{item.pointer}/records/{index}", item.line)

    what = "a line of our runner has a fingerprint and records"
    return each(json_text.values(body, lambda value: has_keys(value, _KEYS), what), records)


FORMAT = Format(
    "ours",
    matches=lambda preview: (
        preview.names("fingerprint", "task", "outcome") and has_keys(preview.first_value, _KEYS)
    ),
    read=read,
)
