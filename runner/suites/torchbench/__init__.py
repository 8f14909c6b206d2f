"""The torchdynamo harness's suite `torchbench`: models of torchvision, and of torchbench's own repository."""

from dataclasses import dataclass

from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import HarnessSuite, cases_of, has_trait


@dataclass(frozen=True)
class TorchbenchSuite(HarnessSuite):
    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        """Return torchvision for its models; the others come from a checkout, which its run looks for."""
        return ("torchvision",) if has_trait(self.name, task.case, "torchvision") else ()


SUITE = TorchbenchSuite("torchbench", "torchbench models, eager against compiled", cases_of("torchbench"))
