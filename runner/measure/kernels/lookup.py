"""Proven choices of max-autotune's templates in torch's lookup table, which inductor asks on a GPU before it
times candidates. An export names configurations only: entries are made by the torch that reads them."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.schema.records import Json
from runner.system.task_files import read_object, write_json

Entry = tuple[str, dict[str, Any]]  # its key in the table, and a configuration with its template
_MODULE = "torch._inductor.lookup_table"


def entry_of(choice: Any, operator: str) -> Entry | None:
    """Return the entry of a candidate that max-autotune timed; None where the table cannot have it."""
    candidate = (getattr(choice, "annotations", None) or {}).get("ktc")
    if candidate is None or not find_spec(_MODULE):
        return None
    from torch._inductor.lookup_table import LookupTableChoices  # noqa: PLC0415 - not in every release

    key = LookupTableChoices().make_lookup_key(candidate.inputs, operator)
    values, template = candidate.params.to_kwargs(), candidate.template
    plain: dict[str, Any] = {
        name: value for name, value in values.items() if isinstance(value, bool | int | str)
    }
    plain |= {"template_id": template.uid, "template_hash": getattr(template, "src_hash", None)}
    return (key, plain) if key else None


def add(path: Path, entry: Entry) -> None:
    """Add an entry to the table in a file."""
    table = read_object(path) if path.exists() else {}
    write_json(path, {**table, entry[0]: [entry[1]]})


def use(table: Mapping[str, Json], is_here: Callable[[], bool]) -> None:
    """Have inductor ask a table from now on, where `is_here` says that it is of this GPU."""
    if table and find_spec(_MODULE):
        from torch._inductor.lookup_table import LookupTableChoices  # noqa: PLC0415 - as above
        from torch._inductor.virtualized import V  # noqa: PLC0415 - as above

        choices = LookupTableChoices()
        choices._get_lookup_table = lambda: table if is_here() else {}
        V.set_choices_handler(choices)
