"""TORCH_TRACE: sums and functions of a process, and the facts of its graphs up to their page."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.models import Compilation, Measurement
from runner.formats import format_of, reasons
from runner.formats.errors import BadUpload
from runner.formats.parameters import Parameters
from runner.schema.compilations import Note
from runner.schema.metrics import metric_info
from tests.support.observed import SAMPLES, observe, observe_sample

_NAME = "dedicated_log_torch_trace_rank_0_sample.log"


def test_a_trace_has_the_sums_of_its_process_and_each_function() -> None:
    parser = observe_sample(_NAME)
    assert not parser.faults
    assert [entry["reason"] for entry in parser.receipt.skipped] == [reasons.BAD_JSON]
    by_place = {(item.knobs.get("function", ""), item.metric): item for item in parser.measurements}
    values = {place: item.samples for place, item in by_place.items()}
    whole = by_place["", "entire_frame_compile_time_s"]
    assert (whole.status, whole.code, whole.samples) == ("failed", "BackendCompilerFailed", [])
    assert values["", "backend_compile_time_s"] == [2.75]
    assert values["", "inductor_compile_time_s"] == [2.0]
    assert values["", "triton_compile_time_s"] == [0.75]
    assert values["", "runtime_autotune_time_s"] == [0.125]
    counts = ("compiles", "graph_breaks", "recompiles", "cudagraph_skips", "compile_failures", "kernel_count")
    assert [values["", name] for name in counts] == [[3], [1], [1], [1], [1], [2]]
    assert values["model.py:forward", "entire_frame_compile_time_s"] == [4.0]
    failed = by_place["model.py:torch_dynamo_resume_in_forward", "entire_frame_compile_time_s"]
    assert (failed.status, failed.code, failed.samples) == ("failed", "BackendCompilerFailed", [])
    for item in parser.measurements:
        info = metric_info(item.metric)
        assert info.unit in {"s", "count"}
        expected = ("torch_trace", "train.py", "inference", "inductor", "cuda", "h200", 0)
        identity = (item.suite, item.case, item.mode, item.backend, item.device, item.arch)
        assert (*identity, item.knobs["rank"]) == expected
        assert (item.environment.torch, item.environment.triton) == ("2.13.0+cu128", "3.5.0")


def test_a_trace_tells_why_graphs_broke_and_were_compiled_again() -> None:
    (compiled,) = (item.compiled for item in observe_sample(_NAME).measurements if item.compiled)
    stop = "Call to `torch._dynamo.graph_break()`: User-inserted graph break. Message: None"
    assert compiled.graph_breaks == (Note(stop, "model.py:9"),)
    again = "tensor 'x' size mismatch at index 0. expected 8, actual 9"
    assert compiled.recompiles == (Note(again, "model.py:7"),)
    assert compiled.cudagraph_skips == (Note("mutated inputs (1 instances)", "model.py:12"),)
    assert compiled.phases_s == {"entire_frame_compile": 3.5, "bytecode_tracing": 0.25}
    assert compiled.caches == {"fx_graph": (1, 1)}


@pytest.mark.django_db
def test_traces_of_one_run_have_each_their_own_time() -> None:
    receipts = []
    for start_us in (1_747_853_582_686_129, 1_747_853_703_000_000):
        metrics = {"co_name": "f", "start_time_us": start_us, "entire_frame_compile_time_s": start_us / 1e16}
        line = {"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
        body = f"V0403 07:28:48.065000 139 torch/_dynamo/utils.py:685] {json.dumps(line)}\n".encode()
        receipts.append(ingest(body, Parameters(filename=_NAME, run_id="ci")))
    assert [receipt.skipped for receipt in receipts] == [[], []]
    assert receipts[0].stored == receipts[1].stored > 0
    whole = Measurement.objects.filter(series__experiment__knobs={}, series__metric__name="kernel_count")
    assert whole.values("order_time").distinct().count() == 2


@pytest.mark.django_db
def test_the_facts_of_a_trace_are_stored_and_shown(client: Client) -> None:
    body = (SAMPLES / _NAME).read_bytes()
    receipt = ingest(body, Parameters(filename=_NAME, suite="huggingface", dtype="bfloat16"))
    again = ingest(body, Parameters(filename=_NAME, suite="huggingface", dtype="bfloat16"))
    assert (again.stored, again.duplicates) == (0, receipt.stored)
    (row,) = Compilation.objects.all()
    assert (row.experiment.suite, row.experiment.dtype, row.number) == ("huggingface", "bfloat16", 0)
    assert row.graph_breaks[0]["place"] == "model.py:9"
    side = f"run:{row.run_id}/experiment:{row.experiment_id}"
    response = client.get("/code.json", {"base": side, "head": side})
    notes = {
        one["kind"]: (one["place"], one["base"], one["head"]) for one in response.json()["graph"]["notes"]
    }
    assert notes == {
        "graph break": ("model.py:9", 1, 1),
        "recompile": ("model.py:7", 1, 1),
        "CUDA-graph skip": ("model.py:12", 1, 1),
    }
    page = client.get("/code/", {"base": side, "head": side}).content.decode()
    assert "User-inserted graph break" in page


def test_older_torch_tells_times_in_seconds_and_breaks_as_restarts() -> None:
    metrics = {
        "co_name": "fn",
        "co_filename": "/a/test_misc.py",
        "co_firstlineno": 5,
        "entire_frame_compile_time_s": 0.5,
        "backend_compile_time_s": None,
        "restart_reasons": [
            "'skip function graph_break in file /a/torch/_dynamo/decorators.py'",
            "builtin: print [<class 'torch._dynamo.variables.misc.StringFormatVariable'>] False",
            "<class 'torch._dynamo.exc.UnspecializeRestartAnalysis'>",
        ],
    }
    line = {"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 0, "attempt": 1}
    body = f"V0403 07:28:48.065000 139 torch/_dynamo/utils.py:685] {json.dumps(line)}\n"
    parser = observe(body, "dedicated_log_torch_trace_x.log")
    values = {item.metric: item.samples for item in parser.measurements if not item.knobs}
    assert values["entire_frame_compile_time_s"] == [0.5]
    assert values["graph_breaks"] == [2]
    assert "backend_compile_time_s" not in values


def test_the_raw_lines_of_tlparse_are_the_same_trace() -> None:
    heads = [line for line in (SAMPLES / _NAME).read_text().splitlines()[:-1] if not line.startswith("\t")]
    lines = [json.dumps(json.loads(line[line.index("{") :]), sort_keys=True) for line in heads]
    body = "\n".join(lines).encode()
    assert format_of("", body).name == "torch_trace"
    values = {
        item.metric: item.samples for item in observe(body).measurements if "function" not in item.knobs
    }
    assert (values["entire_frame_compile_time_s"], values["compiles"]) == ([], [3])
    assert (values["graph_breaks"], values["recompiles"]) == ([1], [1])
    assert values["kernel_count"] == [], "the code is not in this file"


def _event(name: str, kind: str, at_us: float) -> str:
    head = "V1206 15:20:13.926000 1 torch/_dynamo/utils.py:1] "
    event = {"name": name, "ph": kind, "ts": at_us, "pid": 0, "tid": 0}
    return f'{head}{{"chromium_event": {{}}, "frame_id": 0}}\n\t{json.dumps(event)}\n'


def test_older_torch_says_the_time_in_its_events_alone() -> None:
    at_us = 1733527213926572.8
    metrics = 'V1206 15:20:13.926000 1 torch/a.py:1] {"compilation_metrics": {"co_name": "f"}}\n'
    body = _event("dynamo", "B", at_us) + metrics + _event("dynamo", "E", at_us + 1e6)
    parser = observe(body, "trace.log")
    assert {str(item.run.order_time)[:19] for item in parser.measurements} == {"2024-12-06 23:20:13"}
    assert {item.quality for item in parser.measurements} == {None}
    unfinished = observe(body.rpartition("V1206")[0], "trace.log")
    assert {item.quality for item in unfinished.measurements if item.samples} == {"partial"}


@pytest.mark.parametrize("tail", ["", "V1206 15:20:13.926000 1 torch/a.py:1] {", "V1206 15:2"])
def test_a_trace_that_ends_inside_of_a_compile_is_partial(tail: str) -> None:
    start = '{"dynamo_start": {}, "frame_id": 1, "frame_compile_id": 0}'
    metrics = '{"compilation_metrics": {"co_name": "f"}, "frame_id": 0, "frame_compile_id": 0}'
    head = "V1206 15:20:13.926000 1 torch/a.py:1] "
    lines = [metrics] if tail else [metrics, start]
    body = "".join(f"{head}{line}\n" for line in lines) + tail
    items = observe(body, "trace.log").measurements
    assert {item.quality for item in items if item.samples} == {"partial"}
    assert {item.quality for item in observe(f"{head}{metrics}\n", "trace.log").measurements} == {None}


def test_aotinductor_has_the_time_of_its_program_and_the_kernels_of_its_wrapper() -> None:
    head = "V0521 11:53:23.651000 30 torch/_inductor/codecache.py:1650] "
    metrics = {"co_name": None, "start_time_us": 1747853582686129, "end_time_us": 1747853603646017}
    wrapper = """
    static inline void call_triton_poi_fused_mul_1(
    call_triton_poi_fused_mul_1(buf1, 128L, stream, kernels);
    call_triton_poi_fused_mul_1(buf2, 128L, stream, kernels);
    aoti_torch_empty_strided(2, int_array_0);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf3, buf2, arg4_1));
    """
    dump = {"graph_dump": {"name": "inductor_aot_wrapper_code"}, "has_payload": "a"}
    body = head + json.dumps(dump) + wrapper.replace("\n", "\n\t") + "\n"
    parser = observe(body + head + json.dumps({"compilation_metrics": metrics}) + "\n", _NAME)
    values = {item.metric: item.samples for item in parser.measurements if not item.knobs}
    assert values["entire_frame_compile_time_s"] == [20.959888]
    assert values["kernel_count"] == [2]
    assert {item.backend for item in parser.measurements} == {"inductor"}


def test_a_trace_without_compiles_says_what_is_missing() -> None:
    with pytest.raises(BadUpload):
        observe('{"string_table": {"' + "9" * 5000 + '": "/a.py"}, "frame_compile_id": 0}\n')
    with pytest.raises(BadUpload) as caught:
        observe('V0403 07:28:48.065000 139 torch/_logging/structured.py:19] {"str": ["/a/b.py", 0]}\n')
    assert "compilation_metrics" in caught.value.faults[0].detail
