"""A WordPiece tokenizer trained on the snippets themselves, as a transformers tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nearpeak.tasks.standard_library.snippets import MASK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["MOST_TOKENS", "VOCABULARY", "train_tokenizer"]

VOCABULARY = 8_000
MOST_TOKENS = 512
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK]


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learn the vocabulary from the training snippets (never from the held-out ones)."""
    from tokenizers import trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = _bare_tokenizer()
    trainer: Any = trainers.WordPieceTrainer(  # the stub lacks the keyword arguments
        vocab_size=vocabulary, special_tokens=SPECIAL, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    _wrap_in_cls_and_sep(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MOST_TOKENS,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def _bare_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer: Any = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    # Code joins words by underscores; WordPiece learns more from the words.
    underscores = pre_tokenizers.Split(Regex("_"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([underscores, pre_tokenizers.BertPreTokenizer()])
    return tokenizer


def _wrap_in_cls_and_sep(tokenizer: Any) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
