"""The harness's rules for single models: tolerances, optimizers, batches, exceptions from comparing.

Sources: its `common.py`, `huggingface.py`, `timm_models.py`, `torchbench.py` and their yaml files. What
they say of one model stands in `models.csv` and `tolerances.csv` of its suite.
"""

from dataclasses import dataclass

from runner.formats.torchdynamo.batch_sizes import TINY_BATCH, default_batch_size
from runner.schema.suite import TaskSpec
from runner.suites.tables import rows_of
from runner.suites.torchdynamo import has_trait

_ACCURACY_BATCH = {"huggingface": 1, "torchbench": 4, "timm": 8}
_INVARIANCE_BATCH = {"huggingface": 8, "torchbench": 8, "timm": 16}
_ACCURACY_BATCH_AT_MOST = {"pytorch_unet": 2}


@dataclass(frozen=True)
class AccuracyRules:
    """How the harness compares a model.

    `larger_multiplier`: it allows small tensors of this model a larger error. `widest`: it allows ten times
    eager's (convolutions folded in bfloat16). `skip` is the reason why nothing is compared, or ''.
    """

    tolerance: float
    cosine: bool = False
    larger_multiplier: bool = False
    skip: str = ""
    equal_nan: bool = False
    widest: bool = False


def has(spec: TaskSpec, trait: str) -> bool:
    """Return whether the task's model has a trait in the list of its suite."""
    return has_trait(spec.suite, spec.case, trait)


def accuracy_rules(spec: TaskSpec) -> AccuracyRules:
    """Return the harness's rules for this case in this mode, dtype and on this device."""
    not_compared = spec.mode == "training" and has(spec, "not_compared_in_training")
    return AccuracyRules(
        tolerance=_tolerance(spec),
        cosine=bool(spec.knobs.get("cosine")),
        larger_multiplier=has(spec, "larger_multiplier"),
        skip="its eager mode has no deterministic algorithms" if not_compared else "",
    )


def _tolerance(spec: TaskSpec) -> float:
    """Return that of the first row of the suite's table which the task matches; the user's own file has
    torchbench's. An empty cell matches everything, `freezing` a backend that folds weights."""
    freezes = bool(spec.knobs.get("freezing")) or "freezing" in spec.backend
    facts = {"cases": spec.case, "mode": spec.mode, "dtypes": spec.dtype, "device": spec.device}
    facts["freezing"] = "yes" if freezes else "no"
    rows = rows_of(spec.suite, "tolerances") or rows_of("torchbench", "tolerances")
    return next(
        float(row["tolerance"])
        for row in rows
        if all(not row[name] or value in row[name].split() for name, value in facts.items())
    )


def optimizer_of(spec: TaskSpec, *, for_accuracy: bool = False) -> str:
    """Return none, sgd or adam: the knob's choice, else the harness's (on a CPU: none)."""
    asked = str(spec.knobs.get("optimizer", "harness"))
    if asked != "harness":
        return asked
    if spec.device != "cuda" or has(spec, "no_optimizer"):
        return "none"
    inductor_accuracy = for_accuracy and spec.backend.startswith("inductor")
    if has(spec, "sgd") or (inductor_accuracy and has(spec, "sgd_in_inductor_accuracy")):
        return "sgd"
    return "adam"


def batch_size_of(spec: TaskSpec, *, for_accuracy: bool = False) -> int | None:
    """Return the knob's batch size, else the model's own in the harness; None where only the model knows it.

    An accuracy check takes a small one, even where the knob asks for more.
    """
    tiny = spec.knobs.get("size") == "tiny"
    asked = spec.knobs.get("batch_size")
    own = default_batch_size(spec.suite, spec.case, spec.mode, tiny=tiny)
    if has(spec, "own_batch"):  # it must not be changed
        return own
    if not for_accuracy or spec.suite not in _ACCURACY_BATCH:
        return asked if isinstance(asked, int) else own
    table = _INVARIANCE_BATCH if spec.knobs.get("batch_invariant") else _ACCURACY_BATCH
    small = min(table[spec.suite], _ACCURACY_BATCH_AT_MOST.get(spec.case, 1 << 30))
    if isinstance(asked, int):
        return min(small, asked)
    return min(small, TINY_BATCH) if tiny else small


def trains(spec: TaskSpec, *, for_accuracy: bool = False) -> bool:
    """Return whether the module is put into train(). The harness checks torchbench's training in eval()."""
    if spec.mode != "training" or spec.knobs.get("use_eval_mode"):
        return False
    return not (for_accuracy and (spec.suite == "torchbench" or has(spec, "eval_in_accuracy")))
