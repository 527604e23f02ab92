"""A small pretrained-looking BERT with its tokenizer, as a folder of Transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from texts import CLUES, FILLER
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer() -> PreTrainedTokenizerFast:
    words = [*SPECIAL, *FILLER, *(word for clue in CLUES.values() for word in clue), *"0123456789"]
    pieces = Tokenizer(models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, **dict(zip(names, SPECIAL, strict=True)), model_max_length=32
    )


def write_pretrained(home: Path) -> Path:
    """An encoder without a head, and its tokenizer."""
    return _write(BertModel, home, intermediate_size=64)


def write_classifier(home: Path, classes: list[str]) -> Path:
    """A classifier of texts as Transformers saves one, with its tokenizer."""
    names = dict(enumerate(classes))
    return _write(
        BertForSequenceClassification,
        home,
        intermediate_size=128,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )


def _write(kind: type, home: Path, **changes: object) -> Path:
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words),
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_size=32,
        max_position_embeddings=32,
        **changes,
    )
    torch.manual_seed(3)
    kind(config).save_pretrained(home)
    words.save_pretrained(home)
    return home
