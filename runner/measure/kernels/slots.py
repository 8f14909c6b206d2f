"""The calls of kernels in inductor's wrapper modules, and the slot of each.

A slot is a place in the program: graph, origin operators, operands, and the number among equal ones. It is
read from the text of the wrapper, in Python or in C++, which is the same from a cache and from a compilation.
Names of kernels, paths, devices and switches are not part of it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from runner.schema.compilations import digest

# Views do no work, and releases of torch list different ones among a kernel's origins.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("t", "transpose", "permute", "view", "_unsafe_view", "reshape", "_reshape_alias", "expand"),
        *("select", "unsqueeze", "squeeze", "slice", "split", "unbind", "alias", "as_strided", "detach"),
    )
)
_SAME_OPERATOR = {"bias_addmm": "addmm", "_mm_plus_mm": "mm_plus_mm"}  # inductor's → ATen's

_IN_CPP = "cpp_wrapper_src"  # the wrapper in C++, with the source of kernels
_SIZES = r"[\[({](?P<%s>[^\])}]*)[\])}]"
_AOT_ID = re.compile(r"# AOT ID: \['(?P<number>\d+)_(?P<direction>\w+)'\]")
_ORIGINS = re.compile(r"(?:#|//) .*Original ATen: \[(?P<origins>[^\]]*)\]")
_HANDLE = re.compile(r"^ *(?:#|//) \[Provenance debug handles\] (?P<handle>\S+:\d+)$")
_CODE = re.compile(  # also in the tuning block of a wrapper in C++
    r"^(?P<name>\w+) = async_compile\.\w+\((?:'(?P<function>\w+)')?[^\n]*'''\n(?P<code>.*?)^'''[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_CPP_KERNEL = re.compile(r'extern "C"[^;{(]*\b(?P<name>cpp_\w+)\([^;{]*\)\s*\{.*?\n\}', re.DOTALL)
_TRITON_IN_CPP = re.compile(r"static \w+ (?P<name>triton_\w+) = nullptr;")
# A C++ wrapper has a Triton kernel's source, or the file of its binary, which is named by a hash.
_TRITON_PART = r'\b{name}(?:_source = R"TRITON\(.*?\)TRITON"| = loadKernel\(.*?\);)'
_FOLDER = re.compile(r'(?<=")/[^"\n]*/(?=[^"/\n]*")')  # in quotes, before a file's name
_ARGUMENT = re.compile(  # of `get_args`
    rf"^ *(?P<name>\w+) = rand_strided\({_SIZES % 'sizes'}, {_SIZES % 'strides'}, "
    r"device=[^,]*, dtype=torch\.(?P<dtype>\w+)"
)
_SYMBOL_OF_ARGUMENT = re.compile(r"^ *(?P<name>\w+) = (?P<value>\d+)$")
_SYMBOL = re.compile(r"^ *(?:int64_t )?(?P<symbol>[su]\d+) = (?P<argument>\w+)")
_ARRAY = re.compile(rf"int64_t (?P<name>int_array_\d+)\[\] = {_SIZES % 'sizes'}")
_ALLOCATED = re.compile(
    rf"^ *(?P<name>\w+) = empty_strided_\w+\({_SIZES % 'sizes'}, {_SIZES % 'strides'}, "
    r"torch\.(?P<dtype>\w+)\)"
)
_ALLOCATED_CPP = re.compile(
    r"aoti_torch_empty_strided\w*\(\d+, (?P<sizes>int_array_\d+), (?P<strides>int_array_\d+), "
    r"cached_torch_dtype_(?P<dtype>\w+),.*&(?P<name>\w+)_handle"
)
_RENAMED = re.compile(r"^ *(?:auto )?(?P<name>\w+) = (?:std::move\()?(?P<value>\w+)\)?;.*reuse")
_SAME_CPP = re.compile(r"aoti_torch_new_tensor_handle\((?P<value>\w+), &(?P<name>\w+)\)")
_VIEW = re.compile(r"^ *(?:auto )?(?P<name>\w+) = (?P<value>.*reinterpret_tensor.*)")
_ITEM = re.compile(r"^ *(?P<name>\w+) = (?P<value>\w+)\[(?P<place>\d+)\]$")
_SIZE_CHECK = re.compile(rf"^ *assert_size_stride\((?P<name>\w+), {_SIZES % 'sizes'}, {_SIZES % 'strides'}")
_GENERATED = re.compile(
    r"^ *(?:(?P<triton>\w+)\.run|call_(?P<triton_cpp>\w+)|(?P<cpp>cpp_\w+))\((?P<operands>.*)\);?$"
)
_LIBRARY = re.compile(
    r"^ *(?:(?P<result>\w+) = )?(?:extern_kernels\.(?P<extern>\w+)"
    r"|(?:torch\.ops\.)?(?P<space>[a-z]\w*)\.(?P<op>\w+)(?:\.\w+)?)\((?P<operands>.*)\)$"
)
_ITERATED = re.compile(r"((?:, \d+L?)+?)(?:, \d+, stream\d+|, stream=\w+)$")  # xnumel, r0_numel
_SUM = re.compile(  # of the parts of a reduction that inductor leaves to ATen
    r"^ *(?P<name>\w+) = (?P<base>\w+)\[[^\]]*\]\.view\((?P<sizes>[\d, ]+)\)\.sum\("
)
_LIBRARY_CPP = re.compile(
    r"aoti_torch_(?:cuda|cpu|xpu|mps)_(?P<op>\w+)\((?P<operands>.*)\)\);"
    r"|aoti_torch_call_dispatcher\(\"(?P<called>\w+::\w+)\"(?P<rest>.*)"
)
_LIBRARIES = ("aten", "prims", "mkldnn", "quantized", "inductor_ops", "inductor")  # or any with torch.ops
_OPERAND = re.compile(
    rf"reinterpret_tensor(?:_wrapper)?\((?P<base>\w+), (?:{_SIZES % 'sizes'}, {_SIZES % 'strides'}"
    r"|\d+, (?P<size_array>\w+), (?P<stride_array>\w+))|(?P<name>[A-Za-z_]\w*)"
)


@dataclass(frozen=True)
class Operand:
    """A tensor that a kernel reads or writes. A size is -1 where it is not known before the call."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = field(default=None, compare=False)  # None if unknown

    @property
    def bytes(self) -> int | None:
        if any(size < 0 for size in self.sizes):
            return None
        return prod(self.sizes) * self.itemsize if self.itemsize else None

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element, 0 if the type is not known."""
        dtype = getattr(torch, self.dtype, None)
        return dtype.itemsize if isinstance(dtype, torch.dtype) else 0

    @property
    def elements(self) -> str:
        """Return type and number of elements, as `bfloat16 4096`."""
        return f"{self.dtype} {'?' if min(self.sizes, default=1) < 0 else prod(self.sizes)}"


@dataclass(frozen=True)
class Call:
    """A call in a wrapper: of a generated kernel, or of a library's operator."""

    name: str  # the kernel's variable, or the operator as `addmm` or `mkldnn._linear_pointwise`
    generated: bool
    origins: tuple[str, ...]
    operands: tuple[Operand, ...]  # with `out=` last
    results: tuple[Operand, ...] = ()  # of an operator without `out=`, where the wrapper says their sizes
    numels: tuple[int, ...] = ()  # of a Triton kernel, the last arguments; () if unknown
    slot: str = ""
    handle: str = ""  # by which inductor's provenance names the call

    @property
    def iterations(self) -> int:
        """Return those of all programs of a Triton kernel together; 0 if unknown."""
        return prod(self.numels) if self.numels else 0


@dataclass(frozen=True)
class Generated:
    """A generated kernel: its part of the wrapper's text, without what differs between two caches, its code,
    and the name that a profiler shows."""

    source: str
    code: str
    function: str


@dataclass(frozen=True)
class Graph:
    """A compiled graph: its calls in order and, by their variables, the generated kernels."""

    ordinal: int
    direction: str  # inference, forward, backward
    calls: tuple[Call, ...]
    module: Any = field(default=None, compare=False, repr=False)
    kernels: Mapping[str, Generated] = field(default_factory=dict, compare=False, repr=False)


def graphs(modules: Iterable[Any]) -> list[Graph]:
    """Return the graphs of inductor's wrapper modules, in the order in which they were loaded.

    A backward graph has the ordinal of its forward graph, since caches load the two in another order.
    """
    captured: list[Graph] = []
    ordinals: dict[str, int] = {}
    for module in modules:
        path = getattr(module, "__file__", None)
        text = Path(path).read_text() if path and hasattr(module, "call") else ""
        if "AsyncCompile()" not in text and _IN_CPP not in text:
            continue  # a kernel that max-autotune tries has a `call` too
        # a graph has a number in the process that compiled it; C++ does not say it
        if known := _AOT_ID.search(text):
            number, direction = known["number"], known["direction"]
        else:
            number, direction = "", "forward" if "primals_1" in text else "inference"
            direction = "backward" if "tangents_1" in text else direction
        ordinal = ordinals.get(number, -1) if direction == "backward" else -1
        if ordinal < 0:
            ordinal = sum(graph.direction != "backward" for graph in captured)
        if direction != "backward":
            ordinals[number] = ordinal
        calls, kernels = _of_wrapper(text, f"{ordinal}_{direction}")
        captured.append(Graph(ordinal, direction, calls, module, kernels))
    return captured


def slot_of(autotuner: Any, modules: Iterable[Any]) -> str:
    """Return the slot of a `CachingAutotuner` of the modules that this compilation has loaded so far.

    It is known from the kernel's first call on, which is when inductor tunes it. '' for a kernel of a wrapper
    in C++, which inductor tunes before it writes the wrapper, and for one of no wrapper, as of a template
    that max-autotune tries.
    """
    for graph in graphs(modules):
        names = {name for name, value in vars(graph.module).items() if value is autotuner}
        for call in graph.calls:
            if call.generated and call.name in names:
                return call.slot
    return ""


def _with_slots(graph: str, calls: Sequence[Call]) -> tuple[Call, ...]:
    """Give each call its slot: all calls of a generated kernel have one, each call of a library its own."""
    seen: Counter[str] = Counter()
    of_kernel: dict[str, str] = {}
    with_slots = []
    for call in calls:
        slot = of_kernel.get(call.name) if call.generated else None
        if slot is None:
            origins = sorted(set(call.origins) - _VIEWS) or sorted(set(call.origins))
            # A set, and elements instead of sizes: a kernel that writes in place has an operand less, and a
            # template takes a tensor where a library takes a view of it.
            key = digest(graph, *origins, "", *sorted({operand.elements for operand in call.operands}))
            slot = digest(key, str(seen[key]))
            seen[key] += 1
            if call.generated:
                of_kernel[call.name] = slot
        with_slots.append(replace(call, slot=slot))
    return tuple(with_slots)


@lru_cache(maxsize=64)
def _of_wrapper(text: str, graph: str) -> tuple[tuple[Call, ...], dict[str, Generated]]:
    """Return the calls with their slots, and the generated kernels, of a wrapper's text."""
    cpp = text.partition(_IN_CPP)[2]
    sources = {match["name"]: match[0] for match in _CPP_KERNEL.finditer(cpp)}
    for name in (match["name"] for match in _TRITON_IN_CPP.finditer(cpp)):
        sources[name] = "".join(re.findall(_TRITON_PART.format(name=name), cpp, re.DOTALL))
    sources = {name: _FOLDER.sub("", source) for name, source in sources.items()}
    kernels = {name: Generated(source, source, name) for name, source in sources.items()}
    for match in _CODE.finditer(text):
        source = sources.get(match["name"]) or _FOLDER.sub("", match[0])
        kernels[match["name"]] = Generated(source, match["code"], match["function"] or match["name"])
    return _with_slots(graph, _Scan(text, set(kernels)).calls), kernels


def _result_of(call: Call, index: int) -> Operand:
    """Return a library's result where its sizes are those of an operand, else one of unknown sizes."""
    if "scaled_dot_product" in call.name:
        likes = call.operands[1:4] if call.name.endswith("_backward") else call.operands[:1]
        if index < len(likes):
            return likes[index]
    return Operand(call.operands[0].dtype if call.operands else "", (-1,))


class _Scan:
    """Reads a wrapper line by line, knowing each tensor's type and sizes."""

    def __init__(self, text: str, generated: set[str]) -> None:
        self.calls: list[Call] = []
        self._generated = generated
        self._tensors: dict[str, Operand] = {}
        self._numbers: dict[str, int] = {}
        self._arrays: dict[str, str] = {}
        self._outputs: dict[str, Call] = {}  # by name of a library's result whose sizes were not checked yet
        self._origins: tuple[str, ...] = ()
        self._handle = ""
        # What a wrapper in C++ has before its source tunes the kernels, in calls of its own.
        lines = _CODE.sub("", text.partition(_IN_CPP)[2] or text).split("\n")
        for line in lines:
            self._argument(line)
        for line in lines:
            self._line(line)

    def _argument(self, line: str) -> None:
        if match := _ARGUMENT.match(line):
            self._tensors[match["name"]] = self._operand(match["dtype"], match["sizes"], match["strides"])
        elif match := _SYMBOL_OF_ARGUMENT.match(line):
            self._numbers[match["name"]] = int(match["value"])

    def _line(self, line: str) -> None:
        if match := _ORIGINS.search(line):
            self._origins = tuple(filter(None, (name.strip() for name in match["origins"].split(","))))
        elif match := _HANDLE.match(line):
            self._handle = match["handle"]
        elif not self._call(line):
            self._tensor(line)

    def _call(self, line: str) -> bool:
        """Add the call in this line; return whether there is one."""
        if match := _GENERATED.match(line):
            name = match["triton"] or match["triton_cpp"] or match["cpp"]
            if name in self._generated:
                self._add(name, True, self._origins, self._operands(match["operands"]))
                sizes = _ITERATED.search(match["operands"])
                if sizes:
                    numels = tuple(map(int, re.findall(r"\d+", sizes[1])))
                    self.calls[-1] = replace(self.calls[-1], numels=numels)
                return True
        if match := _LIBRARY_CPP.search(line):
            self._library_cpp(match)
            return True
        if (match := _SUM.match(line)) and match["base"] in self._tensors:
            part = self._operand(self._tensors[match["base"]].dtype, match["sizes"], "")
            self._add_library("sum", [part])
            self._tensors[match["name"]] = Operand(part.dtype, part.sizes[1:])
            return True
        match = _LIBRARY.match(line)
        if match and (match["extern"] or "torch.ops." in line or match["space"] in _LIBRARIES):
            self._library(match)
            return True
        return False

    def _tensor(self, line: str) -> None:
        """Note the tensor, the size or the array that this line names."""
        if match := _ARRAY.search(line):
            self._arrays[match["name"]] = match["sizes"]
        elif match := _ALLOCATED.match(line) or _ALLOCATED_CPP.search(line):
            sizes, strides = (self._array(match[part]) for part in ("sizes", "strides"))
            self._tensors[match["name"]] = self._operand(match["dtype"], sizes, strides)
        elif match := _SYMBOL.match(line):
            self._numbers[match["symbol"]] = self._numbers.get(match["argument"], -1)
        elif match := _VIEW.match(line):
            for operand in self._operands(match["value"])[:1]:
                self._tensors[match["name"]] = operand
        elif match := _ITEM.match(line):
            if match["value"] in self._outputs:
                call = self._outputs[match["name"]] = self._outputs[match["value"]]
                self._tensors[match["name"]] = _result_of(call, int(match["place"]))
        elif match := _SIZE_CHECK.match(line):
            self._result(match["name"], match["sizes"], match["strides"])
        elif (match := _RENAMED.match(line) or _SAME_CPP.search(line)) and match["value"] in self._tensors:
            self._tensors[match["name"]] = self._tensors[match["value"]]

    def _library(self, match: re.Match[str]) -> None:
        space = "" if match["space"] in {None, "aten"} else f"{match['space']}."
        name = match["extern"] or f"{space}{match['op']}"
        if "transposed=True" in match["operands"]:
            name += "_transposed"
        arguments, _, out = match["operands"].rpartition("out=")
        operands = self._operands(arguments) + self._operands(out) if arguments else self._operands(out)
        self._add_library(name, operands)
        if match["result"]:
            self._outputs[match["result"]] = self.calls[-1]

    def _library_cpp(self, match: re.Match[str]) -> None:
        if match["called"]:
            name, arguments = match["called"].replace("::", ".").removeprefix("aten."), match["rest"]
        else:
            name, arguments = match["op"], match["operands"]
        operands = self._operands(arguments)
        if name.endswith("_out"):  # first of the arguments is what the last is in Python
            name, operands = name.removesuffix("_out"), [*operands[1:], *operands[:1]]
        self._add_library(name, operands)
        for index, handle in enumerate(re.findall(r"&(\w+)_handle", arguments)):
            self._tensors[handle] = _result_of(self.calls[-1], index)

    def _add_library(self, name: str, operands: list[Operand]) -> None:
        name = _SAME_OPERATOR.get(name, name)
        self._add(name, False, (name if "." in name else f"aten.{name}",), operands)

    def _add(self, name: str, generated: bool, origins: tuple[str, ...], operands: list[Operand]) -> None:
        self.calls.append(Call(name, generated, origins, tuple(operands), handle=self._handle))
        self._origins, self._handle = (), ""

    def _result(self, name: str, sizes: str, strides: str) -> None:
        """Note the sizes of a library's result, which inductor checks after the call."""
        call = self._outputs.pop(name, None)
        if call is None:
            return
        self._tensors[name] = self._operand(call.operands[0].dtype if call.operands else "", sizes, strides)
        if self.calls and not self.calls[-1].generated:
            last = self.calls[-1]
            self.calls[-1] = replace(last, results=(*last.results, self._tensors[name]))

    def _operands(self, arguments: str) -> list[Operand]:
        operands = []
        for match in _OPERAND.finditer(arguments):
            base = self._tensors.get(match["base"] or match["name"] or "")
            if base is None:
                continue
            if match["name"]:
                operands.append(base)
            elif match["size_array"]:
                sizes, strides = (self._array(match[part]) for part in ("size_array", "stride_array"))
                operands.append(self._operand(base.dtype, sizes, strides))
            else:
                operands.append(self._operand(base.dtype, match["sizes"], match["strides"]))
        return operands

    def _array(self, text: str) -> str:
        """Return the elements of an array of C++; of a scalar it is a null pointer. Other text as it is."""
        return self._arrays.get(text, "") if text.startswith("int_array") else text

    def _operand(self, dtype: str, sizes: str, strides: str) -> Operand:
        """Return an operand; a dimension with stride 0 repeats one element."""
        numbers = [self._number(text) for text in sizes.split(",") if text.strip()]
        steps = [text.strip().rstrip("L") for text in strides.split(",") if text.strip()]
        repeated = [step == "0" for step in steps] if len(steps) == len(numbers) else [False] * len(numbers)
        own = [self._number(step) for step in steps]
        return Operand(
            dtype,
            tuple(1 if again else size for size, again in zip(numbers, repeated, strict=True)),
            tuple(own) if len(own) == len(numbers) and min(own, default=0) >= 0 else None,
        )

    def _number(self, text: str) -> int:
        """Return a size: a number, a symbol's value in the example inputs, or a product of these."""
        factors = [
            int(part) if part.isdigit() else self._numbers.get(part, -1)
            for part in (part.strip().rstrip("L") for part in text.split("*"))
        ]
        return -1 if min(factors) < 0 else prod(factors)
