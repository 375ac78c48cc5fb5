"""Sizes of well-known models, so that they can be predicted by name without a network.

Facts from the `config.json` that each model is published with; what is not named here is the default of the
configuration class in transformers.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KNOWN_MODELS", "TASKS"]

_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def _gpt2(width: int, layers: int, heads: int) -> tuple[str, dict[str, Any]]:
    return "GPT2Config", {"n_embd": width, "n_layer": layers, "n_head": heads}


def _decoder(
    kind: str, vocabulary: int, width: int, inner: int, layers: int, heads: int, groups: int, **more: Any
) -> tuple[str, dict[str, Any]]:
    return kind, {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        **more,
    }


def _t5(width: int, inner: int, layers: int, heads: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "T5Config", {"d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads, **more}


def _opt(width: int, inner: int, layers: int, heads: int, **more: Any) -> tuple[str, dict[str, Any]]:
    settings = {"hidden_size": width, "ffn_dim": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    return "OPTConfig", settings | more


def _pythia(width: int, layers: int, heads: int) -> tuple[str, dict[str, Any]]:
    return "GPTNeoXConfig", {
        "vocab_size": 50_304,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


def _vit(width: int, inner: int, layers: int, heads: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "ViTConfig", {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


KNOWN_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base-uncased": ("BertConfig", {}),
    "bert-base-cased": ("BertConfig", {"vocab_size": 28_996}),
    "bert-large-uncased": ("BertConfig", _LARGE),
    "bert-large-cased": ("BertConfig", {**_LARGE, "vocab_size": 28_996}),
    "distilbert-base-uncased": ("DistilBertConfig", {}),
    "roberta-base": ("RobertaConfig", {"vocab_size": 50_265, "max_position_embeddings": 514}),
    "roberta-large": ("RobertaConfig", {**_LARGE, "vocab_size": 50_265, "max_position_embeddings": 514}),
    "deberta-v3-base": (
        "DebertaV2Config",
        {
            "vocab_size": 128_100,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "relative_attention": True,
            "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "type_vocab_size": 0,
            "position_biased_input": False,
        },
    ),
    "ModernBERT-base": ("ModernBertConfig", {}),
    "ModernBERT-large": (
        "ModernBertConfig",
        {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624},
    ),
    "distilgpt2": _gpt2(768, 6, 12),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "opt-125m": _opt(768, 3072, 12, 12),
    "opt-350m": _opt(1024, 4096, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 8192, 24, 32),
    "gpt-neo-125m": (
        "GPTNeoConfig",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
    ),
    "pythia-70m": _pythia(512, 6, 8),
    "pythia-160m": _pythia(768, 12, 12),
    "pythia-410m": _pythia(1024, 24, 16),
    "pythia-1b": _pythia(2048, 16, 8),
    "pythia-1.4b": _pythia(2048, 24, 16),
    "t5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "t5-large": _t5(1024, 4096, 24, 16),
    "Llama-2-7b": _decoder("LlamaConfig", 32_000, 4096, 11_008, 32, 32, 32),
    "Llama-3-8B": _decoder("LlamaConfig", 128_256, 4096, 14_336, 32, 32, 8),
    "Llama-3.1-8B": _decoder("LlamaConfig", 128_256, 4096, 14_336, 32, 32, 8),
    "Llama-3.2-1B": _decoder("LlamaConfig", 128_256, 2048, 8192, 16, 32, 8, head_dim=64, tie_word_embeddings=True),
    "Llama-3.2-3B": _decoder("LlamaConfig", 128_256, 3072, 8192, 28, 24, 8, head_dim=128, tie_word_embeddings=True),
    "TinyLlama-1.1B": _decoder("LlamaConfig", 32_000, 2048, 5632, 22, 32, 4),
    "Mistral-7B": _decoder("MistralConfig", 32_000, 4096, 14_336, 32, 32, 8),
    "Qwen2.5-0.5B": _decoder("Qwen2Config", 151_936, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
    "Qwen2.5-1.5B": _decoder("Qwen2Config", 151_936, 1536, 8960, 28, 12, 2, tie_word_embeddings=True),
    "Qwen2.5-7B": _decoder("Qwen2Config", 152_064, 3584, 18_944, 28, 28, 4),
    "DeepSeek-R1-Distill-Qwen-1.5B": _decoder("Qwen2Config", 151_936, 1536, 8960, 28, 12, 2),
    "Qwen3-0.6B": _decoder("Qwen3Config", 151_936, 1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True),
    "Qwen3-1.7B": _decoder("Qwen3Config", 151_936, 2048, 6144, 28, 16, 8, head_dim=128, tie_word_embeddings=True),
    "Qwen3-4B": _decoder("Qwen3Config", 151_936, 2560, 9728, 36, 32, 8, head_dim=128, tie_word_embeddings=True),
    "vit-base-patch16-224": _vit(768, 3072, 12, 12, num_labels=1000),
    "vit-large-patch16-224": _vit(1024, 4096, 24, 16, num_labels=1000),
    "resnet-50": ("ResNetConfig", {"num_labels": 1000}),
    "convnext-tiny-224": ("ConvNextConfig", {"num_labels": 1000}),
}
"""Name (without the organisation) → (configuration class, its settings)."""
SHORT_NAMES = {"bert-base": "bert-base-uncased", "bert-large": "bert-large-uncased", "vit-b": "vit-base-patch16-224"}
KNOWN_MODELS |= {short: KNOWN_MODELS[name] for short, name in SHORT_NAMES.items()}
KNOWN_MODELS |= {"resnet50": KNOWN_MODELS["resnet-50"], "convnext-t": KNOWN_MODELS["convnext-tiny-224"]}
KNOWN_MODELS |= {name.lower(): known for name, known in list(KNOWN_MODELS.items())}

TASKS: dict[str, tuple[str, str]] = {
    "causal-lm": ("ForCausalLM", "AutoModelForCausalLM"),
    "seq2seq-lm": ("ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
    "masked-lm": ("ForMaskedLM", "AutoModelForMaskedLM"),
    "image-classification": ("ForImageClassification", "AutoModelForImageClassification"),
    "sequence-classification": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "token-classification": ("ForTokenClassification", "AutoModelForTokenClassification"),
    "question-answering": ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
    "speech-seq2seq": ("ForSpeechSeq2Seq", "AutoModelForSpeechSeq2Seq"),
    "ctc": ("ForCTC", "AutoModelForCTC"),
    "audio-classification": ("ForAudioClassification", "AutoModelForAudioClassification"),
    "semantic-segmentation": ("ForSemanticSegmentation", "AutoModelForSemanticSegmentation"),
    "image-text-to-text": ("ForImageTextToText", "AutoModelForImageTextToText"),
    "base": ("Model", "AutoModel"),
}
"""Task → (end of the class names that do it, transformers' class that finds them). BERT-like models do several: the
order decides where nothing else does."""
