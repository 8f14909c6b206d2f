"""Notes of a compile out of torch's texts: equal in two processes and on two hosts."""

from __future__ import annotations

import pytest

from runner.formats.torch_trace import compile_notes
from runner.schema.compilations import Note

_EXPLAINED = """Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print` with argument types ['str']
    (has_kwargs False)
  Hint: Avoid calling builtin `print`.

  Developer debug context: builtin print [<class 'torch._dynamo.ConstantVariable'>] False

 For more details about this graph break, please visit: https://meta-pytorch.github.io/gb0059.html"""


@pytest.mark.parametrize(
    ("path", "short"),
    [
        (
            "/home/a/.venv/lib/python3.11/site-packages/transformers/models/gpt2/m.py",
            "transformers/models/gpt2/m.py",
        ),
        ("/opt/conda/lib/python3.12/site-packages/torch/nn/linear.py", "torch/nn/linear.py"),
        ("/usr/lib/python3.11/logging/__init__.py", "logging/__init__.py"),
        ("/home/a/pytorch/torch/nn/linear.py", "torch/nn/linear.py"),
        ("/home/a/benchmark/torchbenchmark/models/x/m.py", "torchbenchmark/models/x/m.py"),
        ("/tmp/tmpq3x/model.py", "model.py"),
        ("model.py", "model.py"),
    ],
)
def test_a_path_begins_at_its_package(path: str, short: str) -> None:
    assert compile_notes.short_path(path) == short


@pytest.mark.parametrize("home", ["/home/a", "/tmp/tmp8sd_1/x"])
def test_a_break_has_the_same_text_on_two_hosts(home: str) -> None:
    address = f"0x7f{hash(home) % 2**40:010x}"
    old = f"call_function UserDefinedObject(<f at {address}>) in file `{home}/site-packages/timm/a.py`"
    frames = [(f"{home}/my.py", 3), (f"{home}/site-packages/torch/nn/modules/module.py", 1518)]
    note = compile_notes.graph_break(old, frames)
    assert note == Note("call_function UserDefinedObject(<f at 0x…>) in file `timm/a.py`", "my.py:3")


def test_a_break_is_told_by_kind_and_explanation_without_hints() -> None:
    expected = (
        "Failed to trace builtin operator: Dynamo does not know how to trace builtin operator `print`"
        " with argument types ['str'] (has_kwargs False)"
    )
    assert compile_notes.graph_break(_EXPLAINED, []).reason == expected
    in_trace = (
        "Graph break in user code at /tmp/t.py:7\nGraph Break Reason: Encountered graph break when attempting"
        f" to trace CALL: a function call, e.g. f(x, y):\n\n{_EXPLAINED}\n\nUser code traceback:\n"
        '  File "/tmp/t.py", line 7, in forward\n    print(1)\n'
    )
    assert compile_notes.graph_break_of_trace(in_trace) == Note(expected, "t.py:7")


def test_a_branch_on_data_is_one_break() -> None:
    notes = [
        compile_notes.graph_break("Data-dependent branching", [("m.py", 9)]),
        compile_notes.graph_break("generic_jump TensorVariable()", [("m.py", 9)]),
        compile_notes.graph_break("generic_jump TensorVariable()", [("m.py", 20)]),
    ]
    assert [note.place for note in compile_notes.without_twins(notes)] == ["m.py:9", "m.py:20"]


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("0/0: n == 2             # y = x*n  # mp/t.py:6 in forward\nUser stack trace:\n x", "n == 2"),
        ("L['n'] == 2                  # y = x*n  # home/a/t.py:6 in forward", "n == 2"),
        ("tensor 'L['x']' size mismatch at index 0", "tensor 'x' size mismatch at index 0"),
        ("___check_obj_id(L['self'], 140234998123456)", "___check_obj_id(self, …)"),
    ],
)
def test_a_guard_is_told_without_ids_and_comments(guard: str, reason: str) -> None:
    assert compile_notes.recompile(guard, ("/x/t.py", 5)) == Note(reason, "t.py:5")


def test_a_recompile_counts_once_however_many_entries_it_looked_at() -> None:
    guards = ["0/0: n == 2", "0/1: size", "0/0: n == 2", "0/2: dtype", "0/1: dtype", "0/0: n == 2"]
    notes = compile_notes.recompiles_of_frame(guards, ("t.py", 5))
    assert [note.reason for note in notes] == ["n == 2", "size", "dtype"]


def test_equal_notes_are_summed_the_most_frequent_first_and_bounded() -> None:
    many = [Note(f"r{number:02}") for number in range(80)]
    found = compile_notes.summed([*many, Note("r70", count=4)])
    assert found[0] == Note("r70", count=5)
    assert len(found) == 50


def test_long_texts_take_linear_time() -> None:
    """Each of these once took hours."""
    gap = 300_000
    assert compile_notes.graph_break_of_trace("a" + "\n" * gap + "b").reason == "a"
    assert compile_notes.recompile("a" + " " * gap + "b").reason == "a b"
    assert compile_notes.frames_in('File "a.py", line ' + "9" * 5000)[0][0] == "a.py"
