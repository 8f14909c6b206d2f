"""Kernels as files that run with torch alone: of an H200's captures, and one of this CPU that is run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.measure.compiler.counters import modules
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import produced
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.replay import OPERANDS, replay_file, with_operands
from tests.measure.test_compilation_kernels import folder, modules_of, steps_of

__all__ = ["folder"]
ARGUMENTS = [
    f"_operand(torch.{dtype}" for dtype in ("bfloat16", "bfloat16", "int64", "int8")
]  # of gather_gemv
CODE = "@triton.jit\ndef triton_poi_fused_add_0(in_ptr0, xnumel, XBLOCK : tl.constexpr):\n    pass\n"


def test_a_kernel_of_this_cpu_runs_alone(tmp_path: Path) -> None:
    def gathered(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.softmax(table[places].T, -1)

    tuning.watch()
    forget_compiles()
    torch.compile(gathered)(torch.randn(7, 16), torch.randint(7, (64,)))
    texts = [text for text in produced(modules()).code.values() if OPERANDS in text]
    assert texts
    for number, text in enumerate(texts):
        file = tmp_path / f"kernel_{number}.py"
        file.write_text(replay_file(text))
        command = [sys.executable, str(file)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout.split()[0]) > 0
    assert any(", 7)" in replay_file(text) for text in texts)  # places are drawn from the table's rows


def test_triton_kernels_are_called_as_in_the_model(folder: Path) -> None:
    found = produced(modules_of(folder / "gather_gemv"), steps_of(folder / "gather_gemv"))
    (stored,) = found.code.values()
    text = replay_file(stored)
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"get_args", "call", "benchmark_all_configs"} <= functions.keys()
    (result,) = functions["get_args"].body
    assert isinstance(result, ast.Return)
    assert isinstance(result.value, ast.List)
    arguments = [ast.unparse(argument) for argument in result.value.elts]
    kernel = functions[found.compiled.kernels[0].name]
    parameters = [argument.arg for argument in kernel.args.args if not argument.annotation]
    assert len(arguments) == len(parameters)
    assert sorted(argument.split(", ")[0] for argument in arguments if "torch" in argument) == ARGUMENTS
    assert stored.partition(OPERANDS)[0] + "\n" in text


@pytest.mark.parametrize(
    "line",
    [
        "",
        '\n# operands: [["float32", [4], [1], "__import__(1)"]]',
        '\n# operands: [["float32); evil(", [4], [1], 1]]',
        "\n# operands: [-1]",
        "\n# operands: [true]",
        '\n# operands: ["x"]',
        "\n# operands: nothing",
        "\n# operands: []",
        "\n# operands: 5",
    ],
)
def test_what_names_no_operands_is_no_file(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own too
        replay_file(CODE + line)


def test_integers_are_drawn_below_the_least_bound_that_the_code_checks() -> None:
    check = '    tl.device_assert(tmp1 < {0}, "index out of bounds: 0 <= tmp1 < {0}")\n'
    operands: list[list[Any]] = [["int64", [4], [1]], ["bool", [4], [1]]]
    for checks, bound in (("", 1), (check.format(9) + check.format(5), 5)):
        text = replay_file(with_operands(CODE + checks, operands, [4]))
        assert f"_operand(torch.int64, (4,), (1,), {bound})" in text
        assert "_operand(torch.bool, (4,), (1,), 2)" in text
