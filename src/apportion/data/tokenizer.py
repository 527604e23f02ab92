"""Tokenizers: texts into ids, by words learned from training texts or as a model brought it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer

from apportion.files import read_json

if TYPE_CHECKING:  # an exported folder is run without torch
    from torch import Tensor

_T = TypeVar("_T")
PAD, UNKNOWN = "[PAD]", "[UNK]"  # ids 0 and 1
# Settings that Transformers writes of where and how it was read, not of what the tokenizer is.
_OF_THE_MOMENT = ("is_local", "local_files_only", "max_length", "stride", "name_or_path")
_TAIL = "kept_tail"  # our own setting: it travels with the others, so a checkpoint reads as trained


class Tokenizer:
    """Texts in, token ids out, truncated to a length.

    With `settings`, those of a Transformers tokenizer, it is one that a pretrained model brought:
    they name its special tokens, and let Transformers read it again.
    """

    def __init__(self, tokenizer: Backend, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = None if settings is None else dict(settings)
        padding = tokenizer.token_to_id(_token(settings, "pad_token", PAD))
        unknown = tokenizer.token_to_id(_token(settings, "unk_token", UNKNOWN))
        if tokenizer.truncation is None or unknown is None or padding is None:
            raise ValueError("a tokenizer truncates, and has a token to pad and one for unknown")
        check_processing(tokenizer)
        self._tokenizer = tokenizer
        self.padding: int = padding
        self.unknown: int = unknown
        marks = (_token(settings, name, "") for name in ("cls_token", "sep_token"))
        # What a pretrained model puts around a text; ours has none.
        self.marks = tuple(n for n in map(tokenizer.token_to_id, marks) if n is not None)
        self.length: int = tokenizer.truncation["max_length"]  # the rest of a text is not read
        self.tail: int = (settings or {}).get(_TAIL, 0)  # of these, tokens from a text's end
        if self.tail not in range(self.length):
            raise ValueError(f"a tail is 0 to {self.length - 1} tokens, not {self.tail!r}")
        self._reader = tokenizer
        if self.tail:  # the library drops from one end alone, so all is read, and `_ends` drops
            self._reader = Backend.from_str(tokenizer.to_str())
            self._reader.no_truncation()

    @classmethod
    def learn(cls, texts: Iterable[str], length: int, *, size: int, min_count: int) -> Tokenizer:
        """Whole words, lower case, punctuation by itself: the most frequent of the texts.

        Those that stand in them `min_count` times, `size` with [PAD] and [UNK].
        """
        tokenizer = Backend(WordLevel({PAD: 0, UNKNOWN: 1}, unk_token=UNKNOWN))
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

    @classmethod
    def of(cls, tokenizer: Any, length: int) -> Tokenizer:
        """A fast tokenizer of Transformers that truncates at a length; its own is left alone."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(
                f"a fast tokenizer of Transformers is needed, not a {type(tokenizer).__name__}"
            )
        own = Backend.from_str(backend.to_str())
        own.no_padding()  # `pad` does it
        own.enable_truncation(length)
        with tempfile.TemporaryDirectory() as place:
            tokenizer.save_pretrained(place)
            settings = read_json(Path(place) / "tokenizer_config.json")
        return cls(own, {name: v for name, v in settings.items() if name not in _OF_THE_MOMENT})

    def with_tail(self, tail: int) -> Tokenizer:
        """The same words; of a text that is too long, its first tokens and so many of its last."""
        if self.settings is None:
            raise ValueError("a tail stands in the settings of a pretrained model's tokenizer")
        return Tokenizer.from_json(self.to_json(), {**self.settings, _TAIL: tail})

    @property
    def digest(self) -> str:
        """A hash of what decides how a text is read: the tokenizer, and a tail that is kept."""
        words = self.to_json() + (f"\n{_TAIL} {self.tail}" if self.tail else "")
        return hashlib.sha256(words.encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @property
    def highest(self) -> int:
        """The highest number of a token."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: one at least, `length` at most."""
        encoded = self._reader.encode_batch_fast(list(texts))
        return [self._ends(encoding.ids) or [self.unknown] for encoding in encoded]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each token of `encode` stands in a text; a mark's span is empty."""
        return self._ends(self._reader.encode(text).offsets) or [(0, len(text))]

    def _ends(self, tokens: list[_T]) -> list[_T]:
        """A text's first and last tokens, where a tail is kept and there are too many."""
        if not self.tail or len(tokens) <= self.length:
            return tokens
        return tokens[: self.length - self.tail] + tokens[-self.tail :]

    def windows(self, texts: Sequence[str], *, longest: int, overlap: int) -> list[list[list[int]]]:
        """The ids of each text in windows of `length` that share `overlap` tokens.

        As many windows as read `longest` tokens of it, marks included; the rest is not read.
        """
        marks = self._tokenizer.num_special_tokens_to_add(False)
        if longest <= marks:
            raise ValueError(
                f"texts are read up to a length of {marks + 1} at least, marks included, not "
                f"{longest}"
            )
        step = self.length - overlap - marks
        if overlap < 0 or step < 1:
            raise ValueError(
                f"windows of {self.length} tokens overlap in 0 to {self.length - 1} of them, less "
                f"their marks, not in {overlap}"
            )
        most = 1 + max(0, -(-(longest - self.length) // step))
        left = longest - (most - 1) * step  # for the last one
        wide = Backend.from_str(self._tokenizer.to_str())
        wide.enable_truncation(self.length, stride=overlap)
        found = []
        for encoding in wide.encode_batch(list(texts)):
            parts = [encoding, *encoding.overflowing][:most]
            ids = [part.ids or [self.unknown] for part in parts]
            if len(parts) == most and len(ids[-1]) > left:
                ids[-1] = _cropped(parts[-1], left)
            found.append(ids)
        return found

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens of these ids, as they stand in the vocabulary."""
        return [str(self._tokenizer.id_to_token(int(number))) for number in ids]

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))

    @classmethod
    def from_json(cls, text: str, settings: Mapping[str, Any] | None = None) -> Tokenizer:
        """The inverse of `to_json`."""
        try:
            tokenizer = Backend.from_str(text)
            tokenizer.no_padding()  # `pad` does it
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"not a tokenizer: {error}") from None
        return cls(tokenizer, settings)

    def pad(self, rows: Sequence[Sequence[int]], width: int | None = None) -> dict[str, Tensor]:
        """Ids and mask of rows of different lengths, padded to a width or to the longest."""
        import torch

        return {name: torch.from_numpy(v) for name, v in self.pad_arrays(rows, width).items()}

    def pad_arrays(
        self, rows: Sequence[Sequence[int]], width: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """What `pad` returns, without torch."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        mask = np.arange(width or lengths.max()) < lengths[:, None]  # [rows, width]
        ids = np.full(mask.shape, self.padding, dtype=np.int32)
        ids[mask] = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=lengths.sum())
        return {"input_ids": ids, "attention_mask": mask}


def _cropped(window: Any, length: int) -> list[int]:
    """The first tokens of a window, and its marks."""
    own = [place for place, mark in enumerate(window.special_tokens_mask) if not mark]
    gone = set(own[length - (len(window.ids) - len(own)) :])
    return [token for place, token in enumerate(window.ids) if place not in gone]


def check_processing(tokenizer: Backend) -> None:
    """Complains of settings at which the library would end the program once a text is read."""
    truncation, around = tokenizer.truncation, 0
    if tokenizer.post_processor is not None:
        for template in _templates(json.loads(tokenizer.post_processor.__getstate__())):
            named = [piece.get("SpecialToken", {}).get("id") for piece in template["single"]]
            named += [piece.get("SpecialToken", {}).get("id") for piece in template["pair"]]
            missing = [name for name in named if name and name not in template["special_tokens"]]
            if missing:
                raise ValueError(f"the tokenizer puts {missing[0]} around a text, and has no such")
        around = tokenizer.num_special_tokens_to_add(False)
    if truncation and truncation["stride"] >= max(1, truncation["max_length"] - around):
        raise ValueError(f"the tokenizer truncates with a stride of {truncation['stride']}")


def _templates(processor: Any) -> Iterator[Any]:
    """What puts tokens around a text, by itself or among others."""
    if processor.get("type") == "TemplateProcessing":
        yield processor
    for part in processor.get("processors", ()):
        yield from _templates(part)


def _token(settings: Mapping[str, Any] | None, name: str, ours: str) -> str:
    """A special token by its role; Transformers writes some as a table with their content."""
    token = (settings or {}).get(name) or ours
    return str(token["content"] if isinstance(token, Mapping) else token)
