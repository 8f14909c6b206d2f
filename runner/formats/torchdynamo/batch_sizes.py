"""The models of PyTorch's harness, and the batch sizes that it takes where nobody asks for one.

Its CSV writes the size that was used, its JSON lines the one that was asked for (null: the model's own). With
`batch_sizes.csv` both say the same: a size that is the model's own is no setting. torchbench's are those of
its model files; on an A100 some of its inference sizes differ, and then the size is told as a setting. Models
without sizes were in the lists in earlier years, and their results are still around.
"""

import re
from functools import lru_cache

from runner.schema.tables import rows

# transformers' classes end so; the huggingface suite takes its models by class, torchbench calls them hf_*
_HUGGINGFACE_CLASS = re.compile(
    r"[A-Z]\w*For(MaskedLM|CausalLM|QuestionAnswering|SequenceClassification|ConditionalGeneration)"
)
_DETECTRON = re.compile(r"detectron2_\w+")
TINY_BATCH = 2  # at most, of models of size=tiny
_MODELS = {(row["suite"], row["model"]): row for row in rows(__file__, "batch_sizes.csv")}


def default_batch_size(suite: str, model: str, mode: str, *, tiny: bool = False) -> int | None:
    """Return the size that the harness takes by itself in a performance run; None if it is not known here."""
    sizes = _MODELS.get((suite, model), {})
    own = sizes.get("training" if mode == "training" else "inference")
    return min(int(own), TINY_BATCH if tiny else int(own)) if own else None


@lru_cache(maxsize=4096)
def suite_of_model(model: str) -> str:
    """Return the suite whose list holds or held this model, '' if none or several do."""
    suites = {suite for suite, name in _MODELS if name == model}
    if _DETECTRON.fullmatch(model):
        suites.add("torchbench")
    if _HUGGINGFACE_CLASS.fullmatch(model):
        suites.add("huggingface")
    return suites.pop() if len(suites) == 1 else ""
