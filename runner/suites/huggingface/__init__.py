"""The torchdynamo harness's suite `huggingface`."""

from runner.suites.torchdynamo import HarnessSuite, cases_of

SUITE = HarnessSuite(
    "huggingface",
    "HuggingFace models, eager against compiled",
    cases_of("huggingface"),
    packages=("transformers",),
    class_packages=("transformers", "numpy"),
    other_cases=r"[\w.-]{1,96}/[\w.-]{1,96}(:forward|:prefill|:decode)?",
)
