"""Proven choices of templates in torch's lookup table: real keys and look-ups, on a CPU in place of a card.

Torch asks the table for a GPU only, so here the key of the device is a stand-in, and the candidate is ATen's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.measure.kernels import lookup, pinning
from runner.measure.timing.compile_time import forget_compiles

pytest.importorskip("torch._inductor.lookup_table")
from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

SLOT = "0123456789abcdef"
TEXT = "BLOCK_K=32 BLOCK_M=64 ACC_TYPE=tl.float32 num_warps=4"
ENTRY: lookup.Entry = ("key+mm", {"template_id": "triton::mm", "template_hash": "abc", "BLOCK_K": 32})


@pytest.fixture
def as_card(monkeypatch: pytest.MonkeyPatch, inductor_here: None) -> Iterator[None]:
    monkeypatch.setattr(LookupTableChoices, "_get_device_key", staticmethod(lambda _device: "card"))
    yield
    V.set_choices_handler(InductorChoices())


def multiplied(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[dict[str, Any]]]:
    """Compile a product; return the entries of its candidates and what each look-up in the table gave."""
    entries: list[Any] = []
    answers: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        listed, looked = InductorChoices.get_template_configs, LookupTableChoices.lookup_template_configs

        def listing(*asked: Any, **more: Any) -> Any:
            choices = listed(*asked, **more)
            entries.extend(lookup.entry_of(choice, "mm") for choice in choices)
            return choices

        def looking(*asked: Any, **more: Any) -> Any:
            answers.append(looked(*asked, **more))
            return answers[-1]

        patch.setattr(InductorChoices, "get_template_configs", listing)
        patch.setattr(LookupTableChoices, "lookup_template_configs", looking)
        forget_compiles()
        torch.compile(torch.mm, options={"fx_graph_cache": False})(torch.ones(8, 4), torch.ones(4, 6))
    return entries, answers


def test_inductor_looks_up_what_was_added_where_it_holds(
    tmp_path: Path, as_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry, *_), answers = multiplied(monkeypatch)
    assert not answers
    assert entry[1]["template_id"] == "aten::mm"
    path = tmp_path / "lookup_table.json"
    for one in (ENTRY, entry):
        lookup.add(path, one)
    table = json.loads(path.read_text())
    assert table.keys() == {ENTRY[0], entry[0]}
    lookup.use(table, lambda: True)
    assert [list(answer) for answer in multiplied(monkeypatch)[1]] == [["aten::mm"]]
    lookup.use(table, lambda: False)  # another arch or Triton
    assert multiplied(monkeypatch)[1] == [{}]


def test_what_has_no_template_has_no_entry() -> None:
    assert lookup.entry_of(object(), "mm") is None


@pytest.mark.parametrize(("config", "is_here"), [(TEXT, True), (TEXT, False), ("BLOCK_K=64", True)])
def test_only_the_proven_choice_of_a_slot_gets_into_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, is_here: bool
) -> None:
    monkeypatch.setattr(pinning.Given, "is_here", lambda _given: is_here)
    path = tmp_path / "lookup_table.json"
    value = {"choices": {}, "files": str(tmp_path), "templates": {SLOT: config}, "table": str(path)}
    monkeypatch.setattr(pinning, "_makes", [pinning.Given.from_json(value)])
    pinning.forget_pinned()
    pinning.keep_template("f" * 16, "triton_mm_0", {TEXT: ENTRY})
    assert not path.exists()
    pinning.keep_template(SLOT, "triton_mm_0", {TEXT: ENTRY})
    added = config == TEXT and is_here
    assert path.exists() == added == bool(pinning.pinned_facts())
    if added:
        assert json.loads(path.read_text()) == {ENTRY[0]: [ENTRY[1]]}
        assert pinning.pinned_facts()["pinned"]["failed"][0].startswith("triton_mm_0: ")
    pinning.forget_pinned()
