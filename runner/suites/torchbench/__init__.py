"""The torchdynamo harness's suite `torchbench`."""

from dataclasses import dataclass

from runner.schema.suite import Case, TaskSpec
from runner.suites.torchdynamo import DTYPES, HarnessSuite

_TORCHVISION = {
    "alexnet": "AlexNet",
    "densenet121": "DenseNet 121",
    "mnasnet1_0": "MNASNet 1.0",
    "mobilenet_v2": "MobileNet v2",
    "mobilenet_v3_large": "MobileNet v3 large",
    "resnet18": "ResNet 18",
    "resnet50": "ResNet 50",
    "resnet152": "ResNet 152",
    "resnext50_32x4d": "ResNeXt 50 32x4d",
    "shufflenet_v2_x1_0": "ShuffleNet v2 x1.0",
    "squeezenet1_1": "SqueezeNet 1.1",
    "vgg16": "VGG 16",
}
_TORCHBENCHMARK = {
    "BERT_pytorch": "BERT, a PyTorch implementation of its own",
    "LearningToPaint": "LearningToPaint's actor",
    "dcgan": "DCGAN's discriminator",
    "dlrm": "DLRM, eight tables of a million rows",
    "functorch_dp_cifar10": "ResNet 18 with group norm, CIFAR-10",
    "lennard_jones": "Lennard-Jones potential by a small network",
    "llama": "Llama of eight layers, 512 wide",
    "moco": "MoCo on ResNet 50",
    "nanogpt": "nanoGPT, GPT-2 small",
    "nvidia_deeprecommender": "NVIDIA's deep recommender",
    "phlippe_densenet": "A small DenseNet, CIFAR-10",
    "phlippe_resnet": "A small ResNet, CIFAR-10",
    "pyhpc_equation_of_state": "Equation of state of sea water",
    "pyhpc_isoneutral_mixing": "Isoneutral mixing of an ocean model",
    "pyhpc_turbulent_kinetic_energy": "Turbulent kinetic energy of an ocean model",
    "pytorch_unet": "U-Net, segmentation",
}
_NOT_HALF = ("float32", "amp")  # the harness itself runs these under autocast when asked for halves
_AMP_FOR_HALVES = ("pyhpc_turbulent_kinetic_energy",)

OF_TORCHVISION = frozenset(_TORCHVISION)


@dataclass(frozen=True)
class TorchbenchSuite(HarnessSuite):
    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        """Return torchvision for its models; the others come from a checkout, which its run looks for."""
        return ("torchvision",) if task.case in OF_TORCHVISION else ()


SUITE = TorchbenchSuite(
    "torchbench",
    "torchbench models, eager against compiled",
    tuple(
        Case(name, title, _NOT_HALF if name in _AMP_FOR_HALVES else DTYPES)
        for name, title in sorted((_TORCHVISION | _TORCHBENCHMARK).items())
    ),
)
