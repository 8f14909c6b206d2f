"""The outside formats, shared by the web application and the runner.

A module offers a `Format`, or several as `FORMATS`: how to recognise and read its files, what its records
mean, and where we write them too, how. Adding a format is a declaration in one of these modules, or a module
and its name in `_MODULES`. At module level the formats need the
standard library only; reading JSON needs msgspec, which hosts do not have.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module

from runner.formats.errors import BadUpload, Fault, MalformedUpload
from runner.formats.format import Describe, Format, Preview, Writer
from runner.formats.readers import v3
from runner.formats.readers.refused import AS_V3, refused
from runner.schema.suite import BadRequest

_MODULES = (  # in the order in which they are asked; v3 takes whatever is JSON
    "torch_trace", "readers.xla", "readers.tritonbench", "readers.kernels", "readers.userbenchmark",
    "readers.microbenchmarks", "readers.serving", "readers.v3",
    "torchdynamo.cachebench", "torchdynamo", "torchdynamo.lists", "readers.gpt_fast", "readers.operators",
    "torchdynamo.pr_time",
)  # fmt: skip
FORMATS: dict[str, Format] = {}
for _name in _MODULES:
    _module = vars(import_module(f"runner.formats.{_name}"))
    _formats: Sequence[Format] = _module.get("FORMATS") or [_module["FORMAT"]]
    FORMATS |= {item.name: item for item in _formats}
WRITERS = {suite: item.writer for item in FORMATS.values() if item.writer for suite in item.writer.suites}


def format_of(name: str, body: bytes) -> Format:
    """Return the named format, or the first that recognises the body. Raise BadUpload for none, and for a
    file that is known and not read."""
    if name:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadUpload(f"no format is called {name!r}", [Fault("?format", f"one of: {known}")])
        return FORMATS[name]
    preview = Preview(body)
    found = next((candidate for candidate in FORMATS.values() if candidate.matches(preview)), None)
    if (found is None or found is v3.FORMAT) and (kind := refused(preview)):
        raise BadUpload(f"this is {kind.name}, which is not read here", [Fault("", kind.instead)])
    if found:
        return found
    known = f"known: {', '.join(FORMATS)}; of another tool {AS_V3}"
    raise MalformedUpload("this is none of the formats known here", [Fault("", known)])


@lru_cache(maxsize=1024)  # records of one upload mostly say the same
def describe_of(benchmark: str) -> Describe:
    """Return what completes the measurements of this benchmark's records."""
    for item in FORMATS.values():
        if benchmark in item.describe:
            return item.describe[benchmark]
    return v3.describe_ours if benchmark.startswith(v3.OURS) else v3.describe_unknown


def writer_of(suites: Sequence[str]) -> type[Writer]:
    """Return the writer that these suites share. Raise BadRequest for none or several."""
    found = {WRITERS.get(suite) for suite in suites}
    (writer, *others) = found or {None}
    if writer is None or others:
        offered = ", ".join(sorted(WRITERS))
        raise BadRequest(f"--format upstream is for suites of one outside system; there are: {offered}")
    return writer
