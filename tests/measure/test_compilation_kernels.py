"""Kernels of a compilation: slots, times, bytes and FLOPs from captures of an H200, and of CPUs.

`tests/samples/inductor-h200.tar.xz` holds inductor's wrappers with the launchers that were chosen, and traces
of three steps (torch 2.11, triton 3.6; comments of the graphs are cut).
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.measure.compiler.counters import blind
from runner.measure.kernels.produced import generated_kernels, kernels_hash, produced
from runner.measure.kernels.profile import owners
from runner.measure.kernels.sizes import library_sizes
from runner.measure.kernels.slots import Call, Graph, Operand, graphs, slot_of
from runner.measure.kernels.tuning import Ranking, config_text, template_config
from runner.measure.timing.gpu_active_time import Work, active_time
from runner.schema.compilations import Compiled, Kernel

_SAMPLE = Path(__file__).parent.parent / "samples" / "inductor-h200.tar.xz"
_STEPS = 3
Capture = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("captures")
    with tarfile.open(_SAMPLE) as archive:
        archive.extractall(target, filter="data")
    return target


def modules_of(capture: Path) -> list[Any]:
    """Return stand-ins for the wrapper modules, with the launchers of their autotuners."""
    launchers = capture / "launchers.json"
    chosen = json.loads(launchers.read_text()) if launchers.exists() else []
    found = []
    for path in sorted(capture.glob("*.py"), key=lambda one: int(one.stem)):
        module = SimpleNamespace(__file__=str(path), call=None)
        for one in chosen:
            if one["module"] == int(path.stem):
                config = SimpleNamespace(**one, num_ctas=1, maxnreg=None)
                launcher = SimpleNamespace(cache_hash=one["cache_hash"], config=config)
                setattr(module, one["name"], SimpleNamespace(launchers=[launcher]))
        found.append(module)
    return found


def steps_of(capture: Path, trace: str = "cuda") -> list[list[Work]]:
    return active_time(json.loads((capture / f"{trace}.json").read_text()), _STEPS).steps


def compiled_of(capture: Path) -> Compiled:
    return produced(modules_of(capture), steps_of(capture)).compiled


def by_name(kernels: tuple[Kernel, ...], part: str) -> list[Kernel]:
    return [kernel for kernel in kernels if part in kernel.name]


def test_a_kernel_has_its_configuration_time_bytes_and_code(folder: Path) -> None:
    found = produced(modules_of(folder / "gather_gemv"), steps_of(folder / "gather_gemv"))
    (kernel,) = found.compiled.kernels
    assert (kernel.kind, kernel.calls) == ("reduction", 1.0)
    assert kernel.config == "XBLOCK=4 R0_BLOCK=2048 num_warps=8 num_stages=1"
    assert set(kernel.origins) == {"aten.index", "aten._to_copy", "aten.view", "aten.mv"}
    # two of the eight matrices are read, not the whole operand
    assert kernel.bytes == 2 * 4096 * 4096 + 2 * 8 + 2 * 4096 + 2 * 8192
    assert kernel.time_us == found.compiled.busy_us == pytest.approx(13.312)
    assert "def triton_red_fused__to_copy_index_mv_view_0(" in found.code[kernel.binary]


@pytest.mark.parametrize(
    "capture", ["gather_gemv", "distillgpt2", "distillgpt2-cpp", "distillgpt2-training", "mobilenetv2"]
)
def test_kernels_add_up_to_the_busy_time(folder: Path, capture: str) -> None:
    """Kernels less overlap are the busy time, and busy time and gaps the span, within 0.5 %."""
    found = compiled_of(folder / capture)
    assert found.busy_us is not None
    assert found.gaps_us is not None
    assert found.overlap_us is not None
    total_us = sum(kernel.time_us or 0.0 for kernel in found.kernels)
    assert total_us - found.overlap_us == pytest.approx(found.busy_us, rel=0.005)
    spans = [max(work.interval[1] for work in step) - step[0].begin_us for step in steps_of(folder / capture)]
    assert found.busy_us + found.gaps_us == pytest.approx(sorted(spans)[1], rel=0.005)
    assert all(kernel.calls for kernel in found.kernels)
    known_us = sum(kernel.time_us or 0.0 for kernel in found.kernels if kernel.bytes is not None)
    assert known_us > 0.9 * total_us


def test_a_librarys_kernels_belong_to_the_operators_that_called_them(folder: Path) -> None:
    found = compiled_of(folder / "distillgpt2")
    attention = [
        kernel for kernel in found.kernels if kernel.origins[-1:] and "attention" in kernel.origins[0]
    ]
    attention = [kernel for kernel in attention if kernel.kind == "library"]
    assert len(attention) == 6
    assert all("sdpa" in kernel.name for kernel in attention)
    assert len({kernel.slot for kernel in attention}) == 6
    assert len({kernel.binary for kernel in attention}) == 1
    # q, k, v and the result of 16 x 12 x 512 x 64, and the mask
    assert {kernel.bytes for kernel in attention} == {2 * (4 * 16 * 12 * 512 * 64 + 16 * 512 * 512)}
    assert {kernel.flops for kernel in attention} == {4 * 16 * 12 * 512 * 512 * 64}
    (head,) = [kernel for kernel in found.kernels if kernel.origins == ("aten.mm",)]
    assert head.flops == 2 * 8192 * 768 * 50264
    # what copies a call's inputs into a CUDA graph is no call of the wrapper
    assert {kernel.kind for kernel in by_name(found.kernels, "multi_tensor_apply")} == {"other"}


def test_the_join_agrees_with_torchs_correlation_ids(folder: Path) -> None:
    """A profile of the C++ wrapper without CUDA graphs says which kernels attention launched."""
    events = json.loads((folder / "distillgpt2-cpp" / "details.json").read_text())["traceEvents"]
    operators = {
        event["args"]["External id"] for event in events if event["cat"] == "cpu_op" and "args" in event
    }
    launched = [event for event in events if event["cat"] in {"kernel", "gpu_memset"} and "args" in event]
    launched.sort(key=lambda event: event["ts"])
    found = graphs(modules_of(folder / "distillgpt2-cpp"))
    for step in steps_of(folder / "distillgpt2-cpp", "details"):
        by_order = [
            work
            for work, owner in zip(step, owners(step, found), strict=True)
            if owner
            and "attention" in found[owner[0]].calls[owner[1]].name
            and not found[owner[0]].calls[owner[1]].generated
        ]
        begun = {work.begin_us for work in step}
        tied = [
            event
            for event in launched
            if event["ts"] in begun and event["args"].get("External id") in operators
        ]
        assert [work.begin_us for work in by_order] == [event["ts"] for event in tied]
        assert len(by_order) == 12  # six calls, each with a memset


def test_names_that_two_graphs_share_go_by_order() -> None:
    def graph(ordinal: int, *calls: tuple[str, bool]) -> Graph:
        made = tuple(Call(name, generated, (), (), slot=f"{ordinal}{name}") for name, generated in calls)
        kernels = {
            name: SimpleNamespace(source="", code="", function=name) for name, generated in calls if generated
        }
        return Graph(ordinal, "inference", made, None, kernels)  # type: ignore[arg-type]

    first = graph(0, ("triton_a", True), ("mm", False), ("triton_b", True))
    second = graph(1, ("addmm", False), ("triton_a", True), ("convolution", False), ("mm", False))
    alone = graph(2, ("bmm", False))
    names = ["Memset", "nvjet_0", "triton_a", "cudnn_conv", "gemm_1", "splitKreduce_kernel", "fill"]
    names += ["triton_a", "nvjet_2", "triton_b", "ampere_bmm"]
    work = [Work(name, float(place), 1.0) for place, name in enumerate(names)]
    assert owners(work, [first, second, alone]) == [
        *[(1, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 3), None],
        *[(0, 0), (0, 1), (0, 2), (2, 0)],
    ]


def slots(capture: Path) -> list[tuple[str, str]]:
    return [
        (f"{graph.ordinal} {graph.direction}", call.slot)
        for graph in graphs(modules_of(capture))
        for call in graph.calls
    ]


def test_slots_do_not_depend_on_compilation_or_wrapper(folder: Path) -> None:
    """Two compilations with their own folders and choices, and the wrapper in C++, have equal slots."""
    assert len(slots(folder / "distillgpt2")) == 56
    assert slots(folder / "distillgpt2") == slots(folder / "distillgpt2-cudagraphs-2")
    assert slots(folder / "distillgpt2") == slots(folder / "distillgpt2-cpp")
    assert slots(folder / "layer_norm") == slots(folder / "layer_norm-cpp")
    assert slots(folder / "mobilenetv2") == slots(folder / "mobilenetv2-2")
    one, other = (compiled_of(folder / name) for name in ("mobilenetv2", "mobilenetv2-2"))
    choices = [{kernel.slot: kernel.choice for kernel in each.kernels} for each in (one, other)]
    assert choices[0].keys() == choices[1].keys()
    flipped = {slot for slot, choice in choices[0].items() if choices[1][slot] != choice}
    assert 0 < len(flipped) < len(choices[0]) / 2
    assert one.variant() != other.variant()


def test_slots_of_a_training_step(folder: Path) -> None:
    found = graphs(modules_of(folder / "distillgpt2-training"))
    assert [(graph.ordinal, graph.direction) for graph in found] == [
        *[(0, "forward"), (1, "forward"), (1, "backward"), (0, "backward"), (2, "inference")]
    ]
    # caches load each backward graph with its forward graph
    loaded = modules_of(folder / "distillgpt2-training")
    in_pairs = graphs([loaded[place] for place in (0, 3, 1, 2, 4)])
    assert {call.slot for graph in in_pairs for call in graph.calls} == {
        call.slot for graph in found for call in graph.calls
    }


def test_the_slot_of_an_autotuner_is_that_of_its_kernel(folder: Path) -> None:
    modules = modules_of(folder / "distillgpt2")
    autotuner = modules[0].triton_poi_fused_add_mul_pow_tanh_view_4
    (kernel,) = by_name(
        compiled_of(folder / "distillgpt2").kernels, "triton_poi_fused_add_mul_pow_tanh_view_4"
    )
    assert slot_of(autotuner, modules) == kernel.slot
    assert slot_of(SimpleNamespace(), modules) == ""
    assert kernel.calls == 6.0


def test_a_switch_of_inductor_is_not_part_of_a_slot(folder: Path, tmp_path: Path) -> None:
    text = (folder / "gather_gemv" / "1.py").read_text()
    for old, new in (
        ("triton_red_fused__to_copy_index_mv_view_0", "triton_red_fused_other_name_7"),
        ("91D1D1166449D9E2EB66EB9770C9E2C3B0FEB787341F27FEB4D3F0338DA50336", "0" * 64),
        ("'coordinate_descent_tuning': True", "'coordinate_descent_tuning': False, 'new_switch': 3"),
        ("/tmp/", "/var/somewhere/else/"),
        ("stream0", "stream3"),
        ("cuda:0", "cuda:3"),
        ("['0_inference']", "['17_inference']"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "0.py").write_text(text)
    assert slots(tmp_path) == slots(folder / "gather_gemv")


@pytest.mark.parametrize("model", ["mlp", "attention", "convolution"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_slots_are_equal_in_two_releases_of_torch(folder: Path, model: str, mode: str) -> None:
    """Wrappers of torch 2.11 and 2.13 for one model, which differ in text and in code."""
    old, new = (folder / f"cpu-torch-{release}" / f"{model}-{mode}" for release in ("2.11", "2.13"))
    assert slots(old) == slots(new)
    assert slots(old)
    assert (old / "0.py").read_text() != (new / "0.py").read_text()


@pytest.mark.parametrize(
    ("capture", "known"),
    [
        ("distillgpt2", "2:e7fd64eb4883c07f"),
        ("distillgpt2-cpp", "2:fcc89d017a9475c6"),
        ("distillgpt2-training", "2:4bfe0045b9d98ee0"),
        ("layer_norm-cpp", "2:85ff2ee037bdfe17"),
        ("mm-max-autotune", "2:e7a01ca30a85dc11"),
        ("mobilenetv2", "2:be2c60ce948e0947"),
    ],
)
def test_the_hash_of_kernels_is_that_of_earlier_releases(folder: Path, capture: str, known: str) -> None:
    """Stored ones are compared with new ones."""
    assert kernels_hash(generated_kernels(modules_of(folder / capture))) == known


def test_a_wrapper_that_cannot_be_read_costs_no_number(tmp_path: Path) -> None:
    (tmp_path / "0.py").write_bytes(b"async_compile = AsyncCompile()\n\xff is no text")
    step = [Work("triton_a", 0.0, 5.0), Work("triton_a", 7.0, 3.0)]
    found = produced(modules_of(tmp_path), [step])
    of_process: dict[str, Any] = {"phases_s": {}, "caches": {}, "graph_breaks": ()}
    of_step = dataclasses.replace(found.compiled, **of_process)
    assert of_step == Compiled(busy_us=8.0, gaps_us=2.0, overlap_us=0.0, blind=dict(blind))
    assert blind["kernels"].startswith("UnicodeDecodeError: ")


def test_without_a_profile_there_are_names_and_no_times(folder: Path) -> None:
    found = produced(modules_of(folder / "mobilenetv2")).compiled
    assert found.busy_us is None
    assert all(kernel.time_us is None for kernel in found.kernels)
    profiled = compiled_of(folder / "mobilenetv2")
    assert {kernel.slot for kernel in found.kernels} == {
        kernel.slot for kernel in profiled.kernels if kernel.origins
    }


def test_a_ranking_belongs_to_the_operator_it_was_made_for(folder: Path) -> None:
    (graph,) = graphs(modules_of(folder / "mm-max-autotune"))
    operands = tuple(Operand("bfloat16", sizes) for sizes in ((1, 512), (1024, 2048), (2048, 512)))
    ranking = Ranking("addmm", operands, (("addmm", 9.5),), "addmm")
    assert [ranking.is_of(call) for call in graph.calls] == [True, False]
    wider = dataclasses.replace(ranking, operands=(*operands[:2], Operand("bfloat16", (2048, 1024))))
    assert not any(wider.is_of(call) for call in graph.calls)


def test_configurations_as_text() -> None:
    config = SimpleNamespace(
        kwargs={"XBLOCK": 4, "R0_BLOCK": 2048}, num_warps=8, num_stages=1, num_ctas=1, maxnreg=None
    )
    assert config_text(config) == "XBLOCK=4 R0_BLOCK=2048 num_warps=8 num_stages=1"
    template = """@triton_heuristics.template(
num_stages=4,
num_warps=8,
)
def triton_mm(arg_A):
    EVEN_K : tl.constexpr = True
    ACC_TYPE : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    INDEX_DTYPE : tl.constexpr = tl.int32
"""
    assert template_config(template) == "ACC_TYPE=tl.float32 BLOCK_M=64 EVEN_K=True num_stages=4 num_warps=8"
    assert template_config("def triton_poi_fused_0(in_ptr0):") == ""


def test_flops_are_those_of_torchs_counter() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    q, grad = torch.rand(2, 3, 8, 16), torch.rand(2, 4, 4, 4)
    x, w, transposed = torch.rand(2, 6, 8, 8), torch.rand(4, 3, 3, 3), torch.rand(6, 2, 3, 3)
    a, b, c = torch.rand(5, 7), torch.rand(7, 9), torch.rand(5, 9)
    batched = (torch.rand(3, 5, 7), torch.rand(3, 7, 9))
    # without groups: torch counts the gradient of a group's weights as often as there are groups
    backward = (
        grad,
        x,
        torch.rand(4, 6, 3, 3),
        None,
        [2, 2],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    )
    cases: list[tuple[str, Any, tuple[Any, ...], int]] = [
        ("mm", aten.mm, (a, b), 2),
        ("addmm", aten.addmm, (c, a, b), 3),
        ("bmm", aten.bmm, batched, 2),
        ("baddbmm", aten.baddbmm, (torch.rand(3, 5, 9), *batched), 3),
        ("convolution", aten.convolution, (x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 2), 2),
        (
            "convolution_transposed",
            aten.convolution,
            (x, transposed, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1),
            2,
        ),
        ("convolution_backward", aten.convolution_backward, backward, 3),
        (
            "_scaled_dot_product_flash_attention",
            torch.nn.functional.scaled_dot_product_attention,
            (q, q, q),
            3,
        ),
    ]

    def operand(tensor: torch.Tensor) -> Operand:
        return Operand(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    for name, function, arguments, tensors in cases:
        with FlopCounterMode(display=False) as counter:
            result = function(*arguments)
        results = tuple(
            operand(one) for one in (result if isinstance(result, tuple) else (result,)) if one is not None
        )
        call = Call(name, False, (), tuple(operand(one) for one in arguments[:tensors]), results)
        if "attention" in name:  # on a CPU torch counts none
            assert library_sizes(call)[1] == 2 * 2 * 2 * 3 * 8 * 8 * 16
            continue
        moved_bytes, flops = library_sizes(call)
        assert flops == counter.get_total_flops(), name
        assert (moved_bytes or 0) > 0
    assert library_sizes(Call("_fft_c2c", False, (), (operand(a),))) == (None, None)
