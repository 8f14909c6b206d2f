"""The torchdynamo harness's suite `huggingface`."""

from __future__ import annotations

from runner.schema.suite import Case
from runner.suites.torchdynamo import DTYPES, HarnessSuite

_MODELS = {
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

SUITE = HarnessSuite(
    "huggingface",
    "HuggingFace models, eager against compiled",
    tuple(
        Case(name, title, ("float32",) if name in _ONLY_FLOAT32 else DTYPES)
        for name, title in _MODELS.items()
    ),
    packages=("transformers",),
    class_packages=("transformers", "numpy"),
)
