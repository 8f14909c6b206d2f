"""The outside systems' own words for an outcome, each mapped to one of `runner.records.STATUSES`.

Sources: accuracy codes of torchdynamo's harness (`common.py`, check_accuracy), verifier codes of
PyTorch/XLA's experiment runner (`benchmarks/verifier.py`).
"""

from __future__ import annotations

import re

ACCURACY_CODES = {
    "pass": "ok",
    "pass_due_to_skip": "ok",
    "eager_variation": "cannot_tell",
    "eager_two_runs_differ": "cannot_tell",
    "fail_accuracy": "wrong",
    "not_bitwise_equivalent": "wrong",
    "OOM": "oom",
    "eager_1st_run_OOM": "oom",
    "eager_2nd_run_OOM": "oom",
    "eager_1st_run_fail": "failed",
    "eager_2nd_run_fail": "failed",
    "fail_to_run": "failed",
    "model_fail_to_load": "failed",
    "eager_fail_to_run": "failed",
    "warmup_failed": "failed",
    "infra_error": "failed",
    "timeout": "timed_out",
}
VERIFIER_CODES = {
    "PASS": "ok",
    "FAIL": "wrong",
    "NONDETERMINISTIC_EAGER_RUN": "cannot_tell",
    "EAGER_FAILED": "failed",
    "EXCEPTION_RAISED": "failed",
    "VERIFIER_SKIPPED": "not_run",
    "VERIFIER_DIDNT_RUN": "not_run",
}
_BATCH_INVARIANCE = re.compile(r"fail_batch_invariance_at_\d+")
_BATCH_RUN = re.compile(r"fail_to_run_at_batch_\d+")


def status_of(code: str) -> str | None:
    """Our status for an outside code, or None for a word that no system is known to write."""
    if _BATCH_INVARIANCE.fullmatch(code):
        return "wrong"
    if _BATCH_RUN.fullmatch(code):
        return "failed"
    return ACCURACY_CODES.get(code) or VERIFIER_CODES.get(code)
