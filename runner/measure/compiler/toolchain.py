"""What inductor asks of the C++ compiler before its first kernel, once per host and not once per task.

It takes several times as long as a kernel: whether the compiler and the processor take vector instructions,
and a header that it compiles in advance. The kernels of every task stay cold.
"""

import contextlib
import functools
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from runner.system import machine

_HEADERS = "*.[gp]ch"  # of gcc and clang
_MOST_HEADERS = 8  # of 100 MB each, one for each release of torch and set of flags
_shared = False


def share() -> None:
    """Let this process and its forks take the answers and headers that others of this host left."""
    global _shared  # noqa: PLW0603 - torch's functions are replaced once
    if _shared:
        return
    _shared = True
    from torch._inductor import codecache, cpu_vec_isa  # noqa: PLC0415 - not every backend needs inductor

    store = machine.cache_folder() / "toolchain"
    store.mkdir(exist_ok=True)
    cpu_vec_isa.VecISA.check_build = _remembered(cpu_vec_isa.VecISA.check_build, store)
    if hasattr(codecache, "_precompile_header"):  # from torch 2.8 on
        headers = Path(codecache._HEADER_DIR)
        headers.mkdir(parents=True, exist_ok=True)
        for header in store.glob(_HEADERS):
            if not (headers / header.name).exists():
                (headers / header.name).symlink_to(header)
        codecache._precompile_header = _published(codecache._precompile_header, store)


def _remembered(check_build: Any, store: Path) -> Any:
    """Keep the yes of a probe by all that it is about. A no may come of a busy host, and is asked again."""

    def check(isa: Any, code: str) -> bool:
        from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler  # noqa: PLC0415

        compiler = get_cpp_compiler()
        about = (torch.__version__, torch.__file__, compiler, get_compiler_version_info(compiler))
        parts = (*about, machine.cpu_name(), isa.build_arch_flags(), code)
        answer = store / hashlib.sha256(repr(parts).encode()).hexdigest()
        if answer.exists():
            return True
        takes: bool = check_build(isa, code)
        if takes:
            with contextlib.suppress(OSError):  # a full disk: the next process asks again
                answer.touch()
        return takes

    return check


def _published(precompile: Any, store: Path) -> Any:
    """Copy each header to the store when it is whole: a task may be killed while it compiles one."""

    @functools.cache
    def published(*asked: Any, **command: Any) -> str:
        path: str = precompile(*asked, **command)
        compiled = next(Path(path).parent.glob(f"{Path(path).name}{_HEADERS}"), None)
        if compiled and not (store / compiled.name).exists():
            partial = store / f"{os.getpid()}.partial"
            with contextlib.suppress(OSError):
                shutil.copyfile(compiled, partial)
                partial.rename(store / compiled.name)
                for old in sorted(store.glob(_HEADERS), key=lambda one: one.stat().st_mtime)[:-_MOST_HEADERS]:
                    old.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)
        return path

    return published
