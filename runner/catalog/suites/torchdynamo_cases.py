"""The models of PyTorch's torchdynamo harness that can be built with random weights, without a download."""

from __future__ import annotations

from runner.catalog.suites.suite import Case
from runner.catalog.suites.torchdynamo_knobs import DTYPES

_FLOAT32 = ("float32",)
_NOT_HALF = ("float32", "amp")  # the harness itself runs these under autocast when asked for halves

_HUGGINGFACE = {
    "AlbertForMaskedLM": "ALBERT xxlarge, masked words",
    "AllenaiLongformerBase": "Longformer base, masked words, window 512",
    "BartForCausalLM": "BART large's decoder, next word",
    "BertForMaskedLM": "BERT base, masked words",
    "BlenderbotForCausalLM": "Blenderbot 3B's decoder, next word",
    "DistilBertForMaskedLM": "DistilBERT, masked words",
    "DistillGPT2": "DistilGPT-2, next word",
    "ElectraForCausalLM": "ELECTRA small, next word",
    "GPT2ForSequenceClassification": "GPT-2, a class for each text",
    "GoogleFnet": "FNet base (Fourier transforms, float32 only), masked words",
    "LayoutLMForMaskedLM": "LayoutLM base, masked words",
    "M2M100ForConditionalGeneration": "M2M-100 418M, translation",
    "MBartForCausalLM": "mBART large's decoder, next word",
    "MT5ForConditionalGeneration": "mT5 small, text to text",
    "MegatronBertForCausalLM": "Megatron BERT 345M, next word",
    "MobileBertForMaskedLM": "MobileBERT, masked words",
    "OPTForCausalLM": "OPT 125M, next word",
    "PLBartForCausalLM": "PLBART base's decoder, next word",
    "PegasusForCausalLM": "Pegasus large's decoder, next word",
    "RobertaForCausalLM": "RoBERTa base, next word",
    "T5ForConditionalGeneration": "T5 small, text to text",
    "T5Small": "T5 small, text to text, by its automatic class",
    "TrOCRForCausalLM": "TrOCR's decoder, next word",
    "XGLMForCausalLM": "XGLM 564M, next word",
    "XLNetLMHeadModel": "XLNet large, next word",
    "YituTechConvBert": "ConvBERT base, masked words",
}
_ONLY_FLOAT32 = ("GoogleFnet",)

_TIMM = {
    "adv_inception_v3": "Inception v3, adversarially trained",
    "beit_base_patch16_224": "BEiT base",
    "convnextv2_nano.fcmae_ft_in22k_in1k": "ConvNeXt v2 nano",
    "deit_base_distilled_patch16_224": "DeiT base, distilled",
    "deit_tiny_patch16_224.fb_in1k": "DeiT tiny",
    "dm_nfnet_f0": "NFNet F0",
    "ghostnet_100": "GhostNet",
    "inception_v3": "Inception v3",
    "mobilenetv2_100": "MobileNet v2",
    "mobilenetv3_large_100": "MobileNet v3 large",
    "mobilevit_s": "MobileViT small",
    "nfnet_l0": "NFNet L0",
    "repvgg_a2": "RepVGG A2",
    "swin_base_patch4_window7_224": "Swin base",
    "tf_efficientnet_b0": "EfficientNet B0",
    "visformer_small": "Visformer small",
    "vit_base_patch14_dinov2.lvd142m": "ViT base, DINOv2",
    "vit_base_patch16_siglip_256": "ViT base, SigLIP",
}

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
_AMP_FOR_HALVES = ("pyhpc_turbulent_kinetic_energy",)

HUGGINGFACE = tuple(
    Case(name, title, _FLOAT32 if name in _ONLY_FLOAT32 else DTYPES) for name, title in _HUGGINGFACE.items()
)
TIMM = tuple(Case(name, title, DTYPES) for name, title in _TIMM.items())
TORCHBENCH = tuple(
    Case(name, title, _NOT_HALF if name in _AMP_FOR_HALVES else DTYPES)
    for name, title in sorted((_TORCHVISION | _TORCHBENCHMARK).items())
)
OF_TORCHVISION = frozenset(_TORCHVISION)
