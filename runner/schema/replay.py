"""A stored kernel as one file that runs with torch alone, in the form that torch writes with
`config.benchmark_kernel`: `get_args`, `call`, `benchmark_all_configs`.

The code of a kernel ends with a line that names what it is called with: operands as dtype, sizes, strides
and the bound of what integers are drawn below, then numbers.
"""

import json
import re
from collections.abc import Sequence

from runner.schema.records import Json

MOST_KERNELS = 200  # of an export
OPERANDS = "\n# operands: "  # the line that says what a stored kernel is called with
_DTYPE = re.compile(r"[a-z]\w{1,30}", re.ASCII)
_MOST_NUMBER = 2**48
_TRITON = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
_CPP = re.compile(r'extern "C"\s+void\s+\w+\((?P<parameters>[^{;]*)\)\s*\{')
_INDEX = re.compile(r"index out of bounds: 0 <= \w+ < (\d+)L*\b")

_HEAD = "import torch\n"
_ARGS = """

def get_args():
    return [
%s    ]


def _operand(dtype, sizes, strides, bound):
    count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
    if dtype.is_floating_point or dtype.is_complex:  # none below 0, whose root is slower to take
        numbers = torch.rand(count, device=DEVICE).to(dtype)
    else:
        numbers = torch.empty(count, device=DEVICE, dtype=dtype).random_(bound)
    return numbers.as_strided(sizes, strides)

"""
_OF_TRITON = """
def call(args):
    with torch.cuda._DeviceGuard(0):
        %(name)s.run(*args, stream=torch.cuda.current_stream().cuda_stream)


def benchmark_all_configs(args):
    with torch.cuda._DeviceGuard(0):
        return %(name)s.benchmark_all_configs(*args)


if __name__ == "__main__":
    from torch._inductor.runtime.benchmarking import benchmarker

    args = get_args()
    call(args)
    for launcher, time_ms in benchmark_all_configs(args).items():
        print(f"{time_ms * 1e3:10.2f} us  {launcher.config}")
    print(f"{benchmarker.benchmark_gpu(lambda: call(args), rep=40) * 1e3:10.2f} us  chosen")
"""
_OF_CPP = """
def call(args):
    kernel(*args)


def benchmark_all_configs(args):  # a CPU's kernel has one
    from torch.utils.benchmark import Timer

    return {"": Timer("call(args)", globals={"call": call, "args": args}).blocked_autorange().median * 1e3}


if __name__ == "__main__":
    print(f"{benchmark_all_configs(get_args())[''] * 1e3:10.2f} us")
"""


def with_operands(code: str, operands: Sequence[Sequence[Json]], numbers: Sequence[int]) -> str:
    """Return the code with the line that says what it is called with: dtype, sizes and strides."""
    bound = min(map(int, _INDEX.findall(code)), default=1)
    called = [[*operand, 2 if operand[0] == "bool" else bound] for operand in operands]
    return f"{code.rstrip()}{OPERANDS}{json.dumps([*called, *numbers])}\n"


def device_and_dtype(stored: str) -> tuple[str, str]:
    """Return the kind of device of a stored kernel and the dtype of its first operand. Raise ValueError where
    what it is called with is not known."""
    code, called = _parts(stored)
    dtype = next((one[0] for one in called if isinstance(one, list)), "")
    return ("cuda" if _TRITON.search(code) else "cpu"), str(dtype)


def _parts(stored: str) -> tuple[str, list[Json]]:
    code, _, line = stored.rpartition(OPERANDS)
    called = json.loads(line) if code else None
    if not isinstance(called, list) or not called:
        raise ValueError("the operands of this kernel are not known")
    return code, called


def replay_file(stored: str) -> str:
    """Return the file of a stored kernel. Raise ValueError where what it is called with is not known."""
    code, called = _parts(stored)
    arguments = "".join(f"        {_argument(one)},\n" for one in called)
    if triton := _TRITON.search(code):
        of_kind = _HEAD + 'DEVICE = "cuda:0"\n' + _ARGS % arguments + _OF_TRITON % {"name": triton[1]}
        return f"{code}\n\n{of_kind}"
    cpp = _CPP.search(code)
    if not cpp or "'''" in code:
        raise ValueError("this is no kernel of inductor")
    types = [" ".join(part.split()[:-1]) for part in cpp["parameters"].split(",")]
    loaded = (
        "from torch._inductor.async_compile import AsyncCompile\n\n"
        'DEVICE = "cpu"\n_compiler = AsyncCompile()\n'
        f"kernel = _compiler.cpp_pybinding({types!r}, r'''\n{code}\n''')\n_compiler.wait(globals())\n"
    )
    return _HEAD + loaded + _ARGS % arguments + _OF_CPP


def _argument(value: Json) -> str:
    """Return an argument as Python has it. Raise ValueError for what `with_operands` does not write."""
    if isinstance(value, list) and len(value) == 4:
        dtype, sizes, strides, bound = value
        numbers = [*sizes, *strides, bound] if isinstance(sizes, list) and isinstance(strides, list) else [-1]
        if isinstance(dtype, str) and _DTYPE.fullmatch(dtype) and all(map(_is_number, numbers)):
            return f"_operand(torch.{dtype}, {tuple(sizes)}, {tuple(strides)}, {bound})"
    elif _is_number(value):
        return str(value)
    raise ValueError("the line of operands is none")


def _is_number(value: Json) -> bool:
    return type(value) is int and 0 <= value < _MOST_NUMBER
