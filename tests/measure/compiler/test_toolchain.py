"""What inductor asks of the C++ compiler is kept for the host's other processes, and no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._inductor import codecache, cpp_builder, cpu_vec_isa

from runner.measure.compiler import toolchain


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a process looks for headers; a header takes 1 compile, a probe 1 question."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path / "headers"))
    monkeypatch.setattr(codecache, "_precompile_header", codecache._precompile_header)
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", cpu_vec_isa.VecISA.check_build)
    monkeypatch.setattr(cpp_builder, "get_compiler_version_info", lambda _compiler: "13")
    return tmp_path / "headers"


def share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_shared", False)
    toolchain.share()


def test_a_yes_is_kept_by_what_it_is_about_and_a_no_is_asked_again(
    headers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def check_build(isa: object, code: str) -> bool:
        asked.append(code)
        return "yes" in code

    isa = cpu_vec_isa.VecAVX2()
    for _process in range(2):
        monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
        share(monkeypatch)
        assert [isa.check_build(code) for code in ("yes", "no", "yes, too")] == [True, False, True]
    assert asked == ["yes", "no", "yes, too", "no"]
    monkeypatch.setattr(torch, "__version__", "9.9")
    isa.check_build("yes")
    assert asked[4:] == ["yes"]


@pytest.mark.parametrize("suffix", [".gch", ".pch"])
def test_a_header_that_one_process_compiled_is_there_for_the_next(
    headers: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def precompile(header: str, command: str) -> str:
        path = headers / f"{header}.h"
        if header == "broken":
            raise RuntimeError
        path.with_name(f"{path.name}{suffix}").write_text(command)
        return str(path)

    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    share(monkeypatch)
    codecache._precompile_header("prefix", "-O3")
    with pytest.raises(RuntimeError):
        codecache._precompile_header("broken", "-O3")
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(headers.with_name("of the next")))
    share(monkeypatch)
    found = {path.name: path.read_text() for path in headers.with_name("of the next").iterdir()}
    assert found == {f"prefix.h{suffix}": "-O3"}
