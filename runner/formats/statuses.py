"""The outside systems' own words for an outcome, each mapped to one of `runner.schema.records.STATUSES`.

Sources: accuracy codes of torchdynamo's harness (`common.py`, check_accuracy), verifier codes of
PyTorch/XLA's experiment runner (`benchmarks/verifier.py`), failure words of torchbench's userbenchmark.
"""

import re

from runner.schema.records import STATUSES

ACCURACY_CODES = {
    **dict.fromkeys(("pass", "pass_due_to_skip"), "ok"),
    **dict.fromkeys(("eager_variation", "eager_two_runs_differ"), "cannot_tell"),
    **dict.fromkeys(("fail_accuracy", "not_bitwise_equivalent"), "wrong"),
    **dict.fromkeys(("OOM", "eager_1st_run_OOM", "eager_2nd_run_OOM"), "oom"),
    "eager_1st_run_fail": "failed", "eager_2nd_run_fail": "failed", "eager_fail_to_run": "failed",
    "fail_to_run": "failed", "model_fail_to_load": "failed", "warmup_failed": "failed",
    "infra_error": "failed",
    "timeout": "timed_out",
}  # fmt: skip
VERIFIER_CODES = {
    "PASS": "ok", "FAIL": "wrong", "NONDETERMINISTIC_EAGER_RUN": "cannot_tell",
    "EAGER_FAILED": "failed", "EXCEPTION_RAISED": "failed",
    "VERIFIER_SKIPPED": "not_run", "VERIFIER_DIDNT_RUN": "not_run",
}  # fmt: skip
# PyTorch/XLA writes "SKIP" for a model that an experiment cannot run; torchbench's userbenchmark the others.
OTHER_CODES = {
    "SKIP": "unsupported", "not_implemented": "unsupported",
    "skip": "not_run", "skip_by_dryrun": "not_run",
    "failed": "failed",
}  # fmt: skip
# What other tools write into `metric.extra_info.status` of a v3 record.
STATUS_WORDS = {
    **{status: status for status in STATUSES},
    "success": "ok", "succeeded": "ok", "passed": "ok", "pass": "ok", "completed": "ok",
    "fail": "failed", "failure": "failed", "error": "failed", "errored": "failed", "exception": "failed",
    "timeout": "timed_out", "timedout": "timed_out", "time_out": "timed_out",
    "out_of_memory": "oom", "cuda_oom": "oom",
    "crash": "crashed", "killed": "crashed", "segfault": "crashed",
    "incorrect": "wrong", "mismatch": "wrong", "fail_accuracy": "wrong", "accuracy_fail": "wrong",
    "not_supported": "unsupported", "not_implemented": "unsupported",
    "skip": "not_run", "skipped": "not_run", "disabled": "not_run",
}  # fmt: skip
_ERRORS = (
    ("oom", re.compile(r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|\bCUDA OOM\b", re.IGNORECASE)),
    ("timed_out", re.compile(r"timed out|Exceeded timeout|TimeoutExpired|TimeoutError", re.IGNORECASE)),
    ("unsupported", re.compile(r"NotImplementedError")),
)
_MAX_CODE = 200
_BATCH_INVARIANCE = re.compile(r"fail_batch_invariance_at_\d+")
_BATCH_RUN = re.compile(r"fail_to_run_at_batch_\d+")


def is_accuracy_code(word: str) -> bool:
    """Return whether torchdynamo's harness writes this word into its accuracy column."""
    return word in ACCURACY_CODES or bool(_BATCH_INVARIANCE.fullmatch(word) or _BATCH_RUN.fullmatch(word))


def status_of(code: str) -> str | None:
    """Return our status for an outside code, or None if no system is known to write it."""
    if _BATCH_INVARIANCE.fullmatch(code):
        return "wrong"
    if _BATCH_RUN.fullmatch(code):
        return "failed"
    return ACCURACY_CODES.get(code) or VERIFIER_CODES.get(code) or OTHER_CODES.get(code)


def status_of_word(word: str) -> str:
    """Return our status for the word of a record's status, '' for one that no tool is known to write."""
    return STATUS_WORDS.get(re.sub(r"[\s-]+", "_", word.strip().lower()), "") if len(word) < _MAX_CODE else ""


def status_of_error(text: str) -> tuple[str, str]:
    """Return our status and a short code for an error text: a known code, else a traceback's last line."""
    text = text.strip()
    known = status_of(text)
    if known:
        return known, text
    status = next((name for name, pattern in _ERRORS if pattern.search(text)), "failed")
    last = text.rsplit("\n", 1)[-1].strip() or "an error without words"
    return status, last[:_MAX_CODE]
