"""The kernels that inductor generated: their number, and a hash of all."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from runner.schema.compilations import digest

_GENERATED = ("triton_", "cpp_")
_DEFINED = re.compile(r"= async_compile\.\w+\(")
_CPP_WRAPPER = "cpp_wrapper_src"  # of a wrapper in C++, which holds the kernels' source
_CPP_KERNEL = re.compile(r'extern "C"[^;{(]*\b(?P<name>cpp_\w+)\([^;{]*\)\s*\{.*?\n\}', re.DOTALL)
_TRITON_IN_CPP = re.compile(r"static \w+ (?P<name>triton_\w+) = nullptr;")
# A C++ wrapper has a Triton kernel's source, or the file of its binary, which is named by a hash.
_TRITON_PART = r'\b{name}(?:_source = R"TRITON\(.*?\)TRITON"| = loadKernel\(.*?\);)'
_FOLDER = re.compile(r'(?<=")/[^"\n]*/(?=[^"/\n]*")')  # in quotes, before a file's name
_HASH_RULE = 2  # rule 1 counted each name once, and hashed whole C++ modules


class Kernel(NamedTuple):
    """One generated kernel of one graph; `content` is a hash of its binary (Triton) or its source (C++)."""

    name: str
    content: str


def kernels(modules: list[Any]) -> list[Kernel]:
    """Return the kernels of inductor's wrapper modules.

    Each graph, forward or backward, has a module, and the same name in two of them is two kernels. Raise
    LookupError where none of those that a wrapper defines is recognised.
    """
    kernels = []
    for module in modules:
        path = getattr(module, "__file__", None)
        if not path or not hasattr(module, "call"):
            continue
        wrapper = Path(path).read_text()
        if not (sources := kernel_sources(wrapper)) and _DEFINED.search(wrapper):
            raise LookupError("the wrapper's kernels are not recognised")
        for name, source in sources.items():
            # an autotuned Triton kernel has one launcher, with the hash of the binary that was chosen
            launchers = getattr(getattr(module, name, None), "launchers", None) or []
            binary = str(getattr(launchers[0], "cache_hash", "")) if len(launchers) == 1 else ""
            kernels.append(Kernel(name, binary or digest(source)))
    return kernels


def kernels_hash(kernels: Iterable[Kernel]) -> str:
    """Return a hash that is equal in two processes that run the same kernels (measuring rule 21), in any
    order of their graphs. It begins with the number of its rule: hashes of two rules are not comparable."""
    return f"{_HASH_RULE}:{digest(' '.join(f'{kernel.name}={kernel.content}' for kernel in sorted(kernels)))}"


@lru_cache(maxsize=64)
def kernel_sources(wrapper: str) -> Mapping[str, str]:
    """Return each kernel's source in a wrapper module's text, without what differs between two caches."""
    lines = wrapper.split("\n")
    sources: dict[str, str] = {}
    for node in ast.parse(wrapper).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, source = node.targets[0].id, "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if name == _CPP_WRAPPER:
            sources |= {match["name"]: match[0] for match in _CPP_KERNEL.finditer(source)}
            for triton in (match["name"] for match in _TRITON_IN_CPP.finditer(source)):
                sources[triton] = "".join(re.findall(_TRITON_PART.format(name=triton), source, re.DOTALL))
        elif name.startswith(_GENERATED):
            sources[name] = source
    return {name: _FOLDER.sub("", source) for name, source in sources.items()}
