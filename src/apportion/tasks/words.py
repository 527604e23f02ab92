"""Words: a tokenizer whose tokens are whole words, learned from training texts alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor

PAD, UNKNOWN = "[PAD]", "[UNK]"  # ids 0 and 1


class Words:
    """Texts in, word ids out: lower case, punctuation by itself, truncated to a length."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        truncation, unknown = tokenizer.truncation, tokenizer.token_to_id(UNKNOWN)
        if truncation is None or unknown is None or tokenizer.token_to_id(PAD) != 0:
            raise ValueError(f"a word tokenizer truncates, has {UNKNOWN}, and {PAD} is its first")
        self._tokenizer = tokenizer
        self.unknown: int = unknown
        self.length: int = truncation["max_length"]  # the rest of a text is not read

    @classmethod
    def learn(cls, texts: Iterable[str], length: int, size: int, min_count: int) -> Words:
        """The most frequent words that stand in the texts `min_count` times, `size` with [UNK]."""
        tokenizer = Tokenizer(WordLevel({PAD: 0, UNKNOWN: 1}, unk_token=UNKNOWN))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # \w+ or [^\w\s]+
        trainer = WordLevelTrainer(
            vocab_size=size,
            min_frequency=min_count,
            special_tokens=[PAD, UNKNOWN],
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.enable_truncation(length)
        return cls(tokenizer)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: one at least, `length` at most."""
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        return [encoding.ids or [self.unknown] for encoding in encoded]

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))

    @classmethod
    def from_json(cls, text: str) -> Words:
        """The inverse of `to_json`."""
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"not a tokenizer: {error}") from None
        return cls(tokenizer)


def pad(rows: Sequence[Sequence[int]], width: int | None = None) -> dict[str, Tensor]:
    """Ids and mask of rows of different lengths, padded to a width or to the longest of them."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(width or lengths.max()) < lengths[:, None]  # [rows, width]
    ids = np.zeros(mask.shape, dtype=np.int32)
    ids[mask] = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=lengths.sum())
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
