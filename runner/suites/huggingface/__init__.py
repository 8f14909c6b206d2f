"""The torchdynamo harness's suite `huggingface`."""

from dataclasses import dataclass, field
from typing import Any

from runner.schema.suite import Case
from runner.suites.torchdynamo import DTYPES, HarnessSuite

_SMALL_T5 = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}


@dataclass(frozen=True)
class Model:
    title: str
    sequence: int
    model: str = ""  # a class of transformers; '' for the one that is called as the case
    settings: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)
    labels: str = "tokens"  # tokens, tokens_but_last, or class
    decoder_inputs: bool = False  # the same tokens go to the decoder
    ends_with_eos: bool = False
    only_zeros: bool = False  # as the harness has it: every token is 0


_LONGFORMER = {
    "attention_window": [512] * 12,
    "max_position_embeddings": 4098,
    "vocab_size": 50265,
    "type_vocab_size": 1,
}
MODELS = {
    "AlbertForMaskedLM": Model("ALBERT xxlarge, masked words", 512),
    "AllenaiLongformerBase": Model(
        "Longformer base, masked words, window 512",
        1024,
        "LongformerForMaskedLM",
        settings=_LONGFORMER,
        tiny={"attention_window": [16, 16]},
    ),
    "BartForCausalLM": Model("BART large's decoder, next word", 1024, ends_with_eos=True),
    "BertForMaskedLM": Model("BERT base, masked words", 512),
    "BlenderbotForCausalLM": Model("Blenderbot 3B's decoder, next word", 128),
    "DistilBertForMaskedLM": Model("DistilBERT, masked words", 128),
    "DistillGPT2": Model("DistilGPT-2, next word", 512, "GPT2LMHeadModel", settings={"n_layer": 6}),
    "ElectraForCausalLM": Model("ELECTRA small, next word", 512),
    "GPT2ForSequenceClassification": Model(
        "GPT-2, a class for each text", 1024, settings={"pad_token_id": 0}, labels="class"
    ),
    "GoogleFnet": Model("FNet base (Fourier transforms, float32 only), masked words", 512, "FNetForMaskedLM"),
    "LayoutLMForMaskedLM": Model("LayoutLM base, masked words", 512),
    "M2M100ForConditionalGeneration": Model(
        "M2M-100 418M, translation", 128, labels="tokens_but_last", decoder_inputs=True
    ),
    "MBartForCausalLM": Model("mBART large's decoder, next word", 1024, ends_with_eos=True),
    "MT5ForConditionalGeneration": Model(
        "mT5 small, text to text", 128, labels="tokens_but_last", decoder_inputs=True
    ),
    "MegatronBertForCausalLM": Model("Megatron BERT 345M, next word", 512),
    "MobileBertForMaskedLM": Model("MobileBERT, masked words", 128),
    "OPTForCausalLM": Model("OPT 125M, next word", 2048),
    "PLBartForCausalLM": Model("PLBART base's decoder, next word", 1024, ends_with_eos=True),
    "PegasusForCausalLM": Model("Pegasus large's decoder, next word", 128),
    "RobertaForCausalLM": Model(
        "RoBERTa base, next word", 512, settings={"pad_token_id": 0}, only_zeros=True
    ),
    "T5ForConditionalGeneration": Model(
        "T5 small, text to text", 1024, labels="tokens_but_last", decoder_inputs=True
    ),
    "T5Small": Model(
        "T5 small, text to text, by its automatic class",
        1024,
        "T5ForConditionalGeneration",
        settings=_SMALL_T5,
        decoder_inputs=True,
    ),
    "TrOCRForCausalLM": Model("TrOCR's decoder, next word", 256),
    "XGLMForCausalLM": Model("XGLM 564M, next word", 128),
    "XLNetLMHeadModel": Model("XLNet large, next word", 512),
    "YituTechConvBert": Model("ConvBERT base, masked words", 512, "ConvBertForMaskedLM"),
}
_ONLY_FLOAT32 = ("GoogleFnet",)

SUITE = HarnessSuite(
    "huggingface",
    "HuggingFace models, eager against compiled",
    tuple(
        Case(name, model.title, ("float32",) if name in _ONLY_FLOAT32 else DTYPES)
        for name, model in MODELS.items()
    ),
    packages=("transformers",),
    class_packages=("transformers", "numpy"),
)
