"""Find the part of the compiler that is at fault, by torch's CompilerBisector, and the operators that fail,
by its minifier, within a time limit."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from torch._dynamo import config as dynamo

from runner.formats.torch_trace.compile_notes import plain
from runner.launch.failures import TaskFailure, failure_of
from runner.schema.compilations import EXPLAINABLE, EXPLAINED, Explanation
from runner.schema.records import Json

# folders that will be gone
_OF_THIS_RUN = re.compile(r"^(os\.environ\[.*|.*debug_dir_root.*)\n", re.MULTILINE)
_DUMPS, _COMPARES = 2, 4  # levels of torch: a compile that raises, and also a result that differs
# the whole graph, and what is left of it: both run with torch alone
_FILES = ("minifier_launcher.py", "repro.py")


def explained(
    failure: TaskFailure, again: Callable[[float], str], limit_s: float
) -> tuple[TaskFailure, dict[str, Json]]:
    """Return the failure with the part of the compiler at fault in its reason, and that part as a fact of its
    record; the failure as it is where the compiler is not at fault or `limit_s` is 0.

    `again` repeats what failed within the seconds that are left, as `explain` says, and returns its status or
    raises.
    """
    if not limit_s or failure.status not in EXPLAINABLE:
        return failure, {}

    def works(left_s: float) -> bool:
        try:
            status = again(left_s)
        except Exception as error:
            status = failure_of(error).status
            if status == "timed_out":
                raise TimeoutError from error
        if failure.status == "wrong":
            return status != "wrong"
        return status not in ("failed", "crashed")

    return with_explanation(failure, explain(works, limit_s))


def with_explanation(failure: TaskFailure, explanation: Explanation) -> tuple[TaskFailure, dict[str, Json]]:
    reason = f"{explanation.text()}; {failure.reason}"  # what is cut off is at the end
    return TaskFailure(failure.status, failure.code, reason), {EXPLAINED: explanation.to_json()}


def explain(works: Callable[[float], bool], limit_s: float) -> Explanation:
    """Return the part without which `works` returns True again.

    `works` compiles by `torch.compile` and checks the result; the bisector makes torch.compile take other
    backends and leave out passes meanwhile. It is called 10 to 30 times, each with the seconds that are left,
    and may fork: the bisector keeps its state in files. It raises TimeoutError if these do not suffice.
    """
    from torch._inductor import config  # noqa: PLC0415 - not every backend needs inductor
    from torch._inductor.compiler_bisector import CompilerBisector  # noqa: PLC0415 - as above
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # noqa: PLC0415 - as above

    ends = time.monotonic() + limit_s
    backend, subsystem = "", ""

    def test() -> bool:
        nonlocal backend, subsystem
        backend, subsystem = CompilerBisector.get_backend() or "", CompilerBisector.get_subsystem() or ""
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return works(left_s)

    with contextlib.suppress(Exception):  # a host without a C++ compiler
        pick_vec_isa()  # takes seconds, and each fork would do it again
    try:
        # one thread: the workers that compile would start likewise
        with config.patch(compile_threads=1), _applications(CompilerBisector) as applications:
            culprit = CompilerBisector.do_bisect(test)
            detail = (culprit and culprit.debug_info) or applications(culprit)
    except TimeoutError:
        problem = f"not finished within {limit_s:.0f} s, at {subsystem or backend}"
        return Explanation(backend if subsystem else "", problem=problem)
    except RuntimeError as error:  # two equal tests of one part ended differently
        return Explanation(backend, subsystem, problem=f"not the same each time: {plain(str(error))}")
    if culprit is None:
        return Explanation(problem="it did not fail again")
    return Explanation(
        culprit.backend,
        culprit.subsystem or "",
        culprit.bisect_number if detail != culprit.subsystem else None,
        plain(detail),
        "" if culprit.backend != "eager" else "dynamo's capture, or the model itself",
    )


@contextlib.contextmanager
def _applications(bisector: Any) -> Iterator[Callable[[Any], str]]:
    """Note in a file which pass or node each application of a subsystem is about, and yield a function that
    reads the one of a result, '' if there is none.

    Up to torch 2.11 the bisector itself notes it in the memory of the process that compiles, which may be a
    fork.
    """
    original = bisector.disable_subsystem
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "applications"

        def disable_subsystem(
            backend: str, subsystem: str, debug_info: Callable[[], str] | None = None
        ) -> bool:
            number = bisector.get_system_counter(subsystem, increment=False)
            disabled = bool(original(backend, subsystem, debug_info))
            if debug_info and bisector.get_system_counter(subsystem, increment=False) > number:
                with path.open("a") as file:
                    file.write(f"{backend} {subsystem} {number}={plain(debug_info())}\n")
            return disabled

        def noted(culprit: Any) -> str:
            lines = path.read_text().splitlines() if culprit and path.exists() else []
            start = f"{culprit.backend} {culprit.subsystem} {culprit.bisect_number}=" if lines else ""
            return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")

        bisector.disable_subsystem = disable_subsystem
        try:
            yield noted
        finally:
            bisector.disable_subsystem = original


def minify(
    again: Callable[[], object], folder: Path, *, wrong: bool, after: Literal["dynamo", "aot"], limit_s: float
) -> None:
    """Repeat what failed, `wrong` or by raising, and leave in `folder` the graph at fault and what the
    minifier makes of it in time. Call it in a process of its own."""
    ends = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # where torch leaves its results
        levels = {"repro_after": after, "repro_level": _COMPARES if wrong else _DUMPS}
        # it raises what the task has already reported as its result
        with dynamo.patch(debug_dir_root=scratch, **levels), contextlib.suppress(Exception):
            again()
        launchers = list(Path(scratch).rglob(_FILES[0]))
        with contextlib.suppress(subprocess.TimeoutExpired):
            for launcher in launchers[:1]:
                left_s = max(1.0, ends - time.monotonic())
                subprocess.run([sys.executable, launcher], cwd=scratch, timeout=left_s, check=False)
        for path in (path for name in _FILES for path in Path(scratch).rglob(name)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / path.name).write_text(_OF_THIS_RUN.sub("", path.read_text()))
