"""The torchdynamo harness's suite `timm`."""

from runner.schema.suite import Case
from runner.suites.torchdynamo import DTYPES, HarnessSuite

_MODELS = {
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

SUITE = HarnessSuite(
    "timm",
    "TIMM models, eager against compiled",
    tuple(Case(name, title, DTYPES) for name, title in _MODELS.items()),
    packages=("timm", "torchvision"),
    class_packages=("timm", "torchvision", "numpy"),
)
