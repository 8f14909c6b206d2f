"""The torchdynamo harness's suite `timm`."""

from runner.suites.torchdynamo import HarnessSuite, cases_of

SUITE = HarnessSuite(
    "timm",
    "TIMM models, eager against compiled",
    cases_of("timm"),
    packages=("timm", "torchvision"),
    class_packages=("timm", "torchvision", "numpy"),
    other_cases=r"\w{1,80}(\.\w{1,80})?",
)
