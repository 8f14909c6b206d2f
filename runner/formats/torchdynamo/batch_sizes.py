"""Batch sizes that PyTorch's harness takes where nobody asks for one.

Its CSV writes the size that was used, its JSON lines the one that was asked for (null: the model's own).
With these tables both say the same: a size that is the model's own is no setting. torchbench's are those
of its model files; on an A100 some of its inference sizes differ, and then the size is told as a setting.
"""

import re
from functools import lru_cache

_HUGGINGFACE = {
    "AlbertForMaskedLM": 4, "AllenaiLongformerBase": 4, "BartForCausalLM": 4, "BertForMaskedLM": 16,
    "BlenderbotForCausalLM": 4, "DebertaV2ForMaskedLM": 2, "DistilBertForMaskedLM": 128, "DistillGPT2": 16,
    "ElectraForCausalLM": 32, "GPT2ForSequenceClassification": 4, "GoogleFnet": 16,
    "LayoutLMForMaskedLM": 16, "M2M100ForConditionalGeneration": 16, "MBartForCausalLM": 4,
    "MT5ForConditionalGeneration": 16, "MegatronBertForCausalLM": 4, "MobileBertForMaskedLM": 128,
    "OPTForCausalLM": 2, "PLBartForCausalLM": 8, "PegasusForCausalLM": 32, "RobertaForCausalLM": 16,
    "T5ForConditionalGeneration": 4, "T5Small": 4, "TrOCRForCausalLM": 32, "XGLMForCausalLM": 8,
    "XLNetLMHeadModel": 8, "YituTechConvBert": 16, "meta-llama/Llama-3.2-1B": 1, "google/gemma-2-2b": 1,
    "google/gemma-3-4b-it": 1, "openai/whisper-tiny": 1, "Qwen/Qwen3-0.6B": 1,
    "mistralai/Mistral-7B-Instruct-v0.3": 1, "openai/gpt-oss-20b": 1,
}  # fmt: skip
_TIMM = {
    "adv_inception_v3": 128, "beit_base_patch16_224": 64, "convnextv2_nano.fcmae_ft_in22k_in1k": 128,
    "deit_base_distilled_patch16_224": 64, "deit_tiny_patch16_224.fb_in1k": 128, "dm_nfnet_f0": 128,
    "ghostnet_100": 512, "inception_v3": 128, "mobilenetv2_100": 128, "mobilenetv3_large_100": 512,
    "mobilevit_s": 64, "nfnet_l0": 128, "repvgg_a2": 128, "swin_base_patch4_window7_224": 64,
    "tf_efficientnet_b0": 128, "visformer_small": 128, "vit_base_patch14_dinov2.lvd142m": 64,
    "vit_base_patch16_siglip_256": 64,
}  # fmt: skip
_TORCHBENCH = {  # training, inference
    "BERT_pytorch": (16, 16), "LearningToPaint": (96, 96), "Super_SloMo": (6, 6), "alexnet": (128, 128),
    "cm3leon_generate": (1, 1), "dcgan": (32, 256), "densenet121": (4, 64), "dlrm": (1024, 2048),
    "functorch_dp_cifar10": (64, 64), "hf_Albert": (8, 1), "hf_Bart": (4, 1), "hf_Bert": (4, 1),
    "hf_Bert_large": (4, 1), "hf_BigBird": (2, 1), "hf_DistilBert": (8, 1), "hf_GPT2": (4, 1),
    "hf_GPT2_large": (4, 1), "hf_Longformer": (2, 1), "hf_Reformer": (8, 1), "hf_Roberta_base": (4, 1),
    "hf_T5": (8, 1), "hf_T5_base": (8, 1), "hf_T5_large": (2, 1), "hf_Whisper": (8, 8),
    "lennard_jones": (1000, 1000), "llama": (32, 32), "llama_v2_7b_16h": (1, 1), "maml_omniglot": (5, 5),
    "microbench_unbacked_tolist_sum": (1, 1), "mnasnet1_0": (32, 32), "mobilenet_v2": (96, 16),
    "mobilenet_v3_large": (32, 32), "moco": (32, 32), "modded_nanogpt": (1, 1), "nanogpt": (1, 1),
    "nvidia_deeprecommender": (256, 256), "phlippe_densenet": (128, 128), "phlippe_resnet": (128, 128),
    "pyhpc_equation_of_state": (1048576, 1048576), "pyhpc_isoneutral_mixing": (1048576, 1048576),
    "pyhpc_turbulent_kinetic_energy": (1048576, 1048576), "pytorch_CycleGAN_and_pix2pix": (1, 1),
    "pytorch_stargan": (16, 16), "pytorch_unet": (1, 1), "resnet152": (32, 32), "resnet18": (16, 8),
    "resnet50": (32, 32), "resnext50_32x4d": (8, 8), "sam": (32, 32), "shufflenet_v2_x1_0": (128, 64),
    "soft_actor_critic": (256, 256), "speech_transformer": (32, 1), "squeezenet1_1": (32, 16),
    "timm_efficientdet": (1, 32), "timm_efficientnet": (32, 64), "timm_nfnet": (128, 128),
    "timm_regnet": (32, 32), "timm_resnest": (32, 32), "timm_vision_transformer": (32, 32),
    "timm_vision_transformer_large": (32, 32), "timm_vovnet": (32, 32), "torch_multimodal_clip": (32, 32),
    "tts_angular": (64, 64), "vgg16": (64, 4), "vision_maskrcnn": (1, 1), "yolov3": (8, 8),
}  # fmt: skip
# Models that the lists had in earlier years, whose results are still around.
_FORMER = {
    "timm": {
        "botnet26t_256", "cait_m36_384", "coat_lite_mini", "convit_base", "convmixer_768_32",
        "convnext_base", "crossvit_9_240", "cspdarknet53", "dla102", "dpn107", "eca_botnext26ts_256",
        "eca_halonext26ts", "ese_vovnet19b_dw", "fbnetc_100", "fbnetv3_b", "gernet_l",
        "gluon_inception_v3", "gluon_senet154", "gluon_xception65", "gmixer_24_224", "gmlp_s16_224",
        "hardcorenas_a", "hrnet_w18", "jx_nest_base", "lcnet_050", "legacy_senet154", "levit_128",
        "mixer_b16_224", "mixnet_l", "mnasnet_100", "nasnetalarge", "pit_b_224", "pnasnet5large",
        "poolformer_m36", "regnety_002", "res2net101_26w_4s", "res2net50_14w_8s", "res2next50",
        "resmlp_12_224", "resnest101e", "rexnet_100", "sebotnet33ts_256", "selecsls42b", "spnasnet_100",
        "swsl_resnext101_32x16d", "tf_mixnet_l", "tinynet_a", "tnt_s_patch16_224", "twins_pcpvt_base",
        "vit_base_patch16_224", "volo_d1_224", "xcit_large_24_p8_224",
    },
    "huggingface": {
        "CamemBert",
    },
    "torchbench": {
        "Background_Matting", "DALLE2_pytorch", "attention_is_all_you_need_pytorch",
        "basic_gnn_edgecnn", "basic_gnn_gcn", "basic_gnn_gin", "basic_gnn_sage", "demucs",
        "doctr_det_predictor", "doctr_reco_predictor", "drq", "fastNLP_Bert", "gat", "gcn", "hf_clip",
        "hf_distil_whisper", "hf_T5_generate", "llama_v2_7b", "maml", "mobilenet_v2_quantized_qat",
        "moondream", "opacus_cifar10", "pytorch_struct", "resnet50_quantized_qat", "sage", "sam_fast",
        "simple_gpt", "simple_gpt_tp_manual", "stable_diffusion", "stable_diffusion_text_encoder",
        "stable_diffusion_unet", "tacotron2", "torchrec_dlrm",
    },
}  # fmt: skip
# transformers' classes end so; the huggingface suite takes its models by class, torchbench calls them hf_*
_HUGGINGFACE_CLASS = re.compile(
    r"[A-Z]\w*For(MaskedLM|CausalLM|QuestionAnswering|SequenceClassification|ConditionalGeneration)"
)
_DETECTRON = re.compile(r"detectron2_\w+")
_OF_ANY_MODE = {"huggingface": _HUGGINGFACE, "timm": _TIMM}


TINY_BATCH = 2  # at most, of models of size=tiny


def default_batch_size(suite: str, model: str, mode: str, *, tiny: bool = False) -> int | None:
    """Return the size that the harness takes by itself in a performance run; None if it is not known here."""
    own = _OF_ANY_MODE.get(suite, {}).get(model)
    if suite == "torchbench":
        training, inference = _TORCHBENCH.get(model, (None, None))
        own = training if mode == "training" else inference
    return min(own, TINY_BATCH) if tiny and own is not None else own


@lru_cache(maxsize=4096)
def suite_of_model(model: str) -> str:
    """Return the suite whose list holds or held this model, '' if none or several do."""
    found = {suite for suite, table in _OF_ANY_MODE.items() if model in table}
    found |= {suite for suite, models in _FORMER.items() if model in models}
    if model in _TORCHBENCH or _DETECTRON.fullmatch(model):
        found.add("torchbench")
    if _HUGGINGFACE_CLASS.fullmatch(model):
        found.add("huggingface")
    return found.pop() if len(found) == 1 else ""
