"""Windows: documents longer than a model, read piece by piece, the answers pooled.

A window is as long as the model reads, and shares some tokens with the one before. Its answer
counts by its tokens. With a threshold, a document is read on until the pooled answer is sure: its
margin, the likeliest class's probability less the second's, reaches the threshold. How often that
may differ from reading everything is certified as for budgets: thresholds that are tuned on some
documents are tested on others in a fixed order, by exact tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow, Row
from apportion.data.tokenizer import Tokenizer
from apportion.files import json_text, write_text
from apportion.serving.guarantees.cascade import margins_of
from apportion.serving.guarantees.certificate import IDENTITY, digest_of_texts, read_sealed, sealed
from apportion.serving.guarantees.certifying import draw_texts
from apportion.serving.guarantees.guarantee import (
    binomial_bound,
    binomial_tail,
    check_promise,
    last_certified,
)
from apportion.serving.guarantees.threshold_path import TIES
from apportion.serving.runtime.prediction import Answering, Prediction, batches_of, softmax
from apportion.serving.runtime.session import Runtime

FORMAT, VERSION = "apportion-reading", 1
ROWS = 3000  # documents that are used: a third of them to tune with
_OVERLAP = 8  # one token in so many is read twice, if nobody says
_STEPS = 40  # thresholds that are tested, the safest first
_CHUNK = 256  # documents that are taken at a time
_SLACK = 1e-9  # of a product of two numbers that are meant exactly

Documents = Sequence[Sequence[Sequence[int]]]  # windows of ids


def usual_overlap(words: Tokenizer) -> int:
    """The tokens that a window shares with the one before, if nobody says."""
    return words.length // _OVERLAP


def read_documents(
    model: Answering,
    words: Tokenizer,
    documents: Documents,
    *,
    threshold: float | None = None,
    batch: int = 32,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pooled probabilities [documents, classes], and how many windows of each were read.

    Without a threshold, all of them.
    """
    pooled: NDArray[np.float64] | None = None
    read = np.zeros(len(documents), np.int64)
    for likely, here in _stages(model, words, documents, batch, threshold):
        pooled = likely
        read[here] += 1
    assert pooled is not None, "there are documents, and each has a window"
    return pooled, read


def read_within(
    runtime: Runtime, documents: Documents, *, budget: float, batch: int = 32
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What `read_documents` returns, of as many windows of each document as its budget pays for."""
    runtime.level_of(budget)  # complains of one that pays for no level
    at_level: dict[float, dict[int, list[Sequence[int]]]] = {}
    for number, document in enumerate(documents):
        levels = levels_of_windows(runtime, budget * len(document))
        for level, window in zip(levels, document, strict=False):
            at_level.setdefault(level, {}).setdefault(number, []).append(window)
    total = np.zeros((len(documents), len(runtime.classes)))
    weight, read = np.zeros(len(documents)), np.zeros(len(documents), np.int64)
    for level, parts in at_level.items():
        here, model = list(parts), partial(runtime, budget=level)
        likely, found = read_documents(model, runtime.tokenizer, list(parts.values()), batch=batch)
        tokens = np.array([sum(map(len, part)) for part in parts.values()], float)
        total[here] += likely * tokens[:, None]
        weight[here] += tokens
        read[here] += found
    return total / weight[:, None], read


def levels_of_windows(runtime: Runtime, paid: float) -> Iterator[float]:
    """The level of each window that is read, where a whole one costs 1.

    The first ones at the highest level, the next at the highest that the rest pays for. So more
    budget never lowers the level of a window.
    """
    for number in count():
        rest = paid - number * runtime.levels[-1]
        if rest + _SLACK < runtime.levels[0]:
            return
        yield runtime.level_of(min(1.0, rest))


def _stages(
    model: Answering,
    words: Tokenizer,
    documents: Documents,
    batch: int,
    threshold: float | None,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """After each window: pooled probabilities, and the documents that it was read of."""
    total: NDArray[np.float64] | None = None
    weight = np.zeros(len(documents))
    sure = np.zeros(len(documents), bool)
    for number in range(max(map(len, documents))):
        here = np.array(
            [n for n, one in enumerate(documents) if len(one) > number and not sure[n]], np.int64
        )
        if not len(here):
            return
        windows = [documents[n][number] for n in here.tolist()]
        for places, inputs in batches_of(words, windows, batch):
            # In double precision: margins of sure answers differ far behind the point.
            found = softmax(np.asarray(model(**inputs), np.float64))
            if not np.isfinite(found).all():
                raise ValueError("an answer of the model is not a number: are its weights damaged?")
            if total is None:
                total = np.zeros((len(documents), found.shape[-1]))
            tokens = np.array([len(windows[place]) for place in places], float)
            total[here[places]] += found * tokens[:, None]
            weight[here[places]] += tokens
        assert total is not None
        likely = total / np.maximum(weight, 1.0)[:, None]
        if threshold is not None:
            sure = margins_of(likely) >= threshold
        yield likely, here


def predict_documents(
    read: Callable[[Documents], tuple[NDArray[np.float64], NDArray[np.int64]]],
    words: Tokenizer,
    classes: Sequence[str],
    rows: Iterable[Row | BadRow],
    *,
    longest: int,
    overlap: int,
    told: dict[str, int] | None = None,
) -> Iterator[Prediction | BadRow]:
    """A prediction for each document, in order; rows that could not be read pass through.

    `read` is `read_documents` or `read_within`, of windows alone. `told` counts documents, their
    windows, and the windows that were read.
    """
    stream = iter(rows)
    while group := list(islice(stream, _CHUNK)):
        texts = [row.text for row in group if isinstance(row, Row)]
        answers: Iterator[list[float]] = iter(())
        if texts:
            documents = words.windows(texts, longest=longest, overlap=overlap)
            likely, windows = read(documents)
            answers = iter(likely.tolist())
            if told is not None:
                told["documents"] = told.get("documents", 0) + len(texts)
                told["windows"] = told.get("windows", 0) + sum(map(len, documents))
                told["read"] = told.get("read", 0) + int(windows.sum())
        for row in group:
            if isinstance(row, BadRow):
                yield row
            else:
                found = next(answers)
                yield Prediction(row.line, classes[found.index(max(found))], tuple(found))


@dataclass(frozen=True)
class Reading:
    """At most `disagree_at_most` of the answers differ from those of all windows, with confidence.

    It holds for documents like those that it was tested on.
    """

    disagree_at_most: float
    confidence: float
    rows: int  # documents that tested
    disagreements: int  # of them
    bound: float  # exact upper bound for this threshold taken alone
    threshold: float | None  # the margin at which reading ends; None: everything is read
    budget: float
    longest: int  # tokens of a document that are read at most
    window: int
    overlap: int
    windows: float  # of a document, on average
    windows_read: float
    seed: int
    tuned_rows: int
    texts: str  # digest of the documents that tested
    identity: dict[str, str]

    def check(self, identity: Mapping[str, str]) -> None:
        """Complains of another model than the one that was certified."""
        for name in IDENTITY:
            if self.identity.get(name) != identity.get(name):
                raise ValueError(
                    f"the certificate of reading is of another {name} than this folder's; certify "
                    "this folder"
                )

    def to_dict(self) -> dict[str, Any]:
        """The certificate as its file has it, with its digest."""
        return sealed({"format": FORMAT, "version": VERSION, **asdict(self)})

    def save(self, path: str | Path) -> None:
        """Writes the certificate whole or not at all."""
        write_text(Path(path), json_text(self.to_dict(), str(path)))

    @classmethod
    def load(cls, path: str | Path) -> Reading:
        """Reads a certificate; one that was edited or is damaged is refused."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no file {path}; `apportion certify --length` writes one")
        refusal = "is not of reading; `apportion certify --length` writes one"
        values = read_sealed(path, format=FORMAT, version=VERSION, refusal=refusal)
        names = {one.name for one in fields(cls)}
        if set(values) - {"format", "version"} != names:
            raise ValueError(f"{path} is not a certificate of this version; certify anew")
        return cls(**{name: values[name] for name in names})


def certify_reading(
    runtime: Runtime,
    texts: Sequence[str],
    *,
    longest: int,
    overlap: int | None = None,
    budget: float = 1.0,
    disagree_at_most: float = 0.02,
    confidence: float = 0.95,
    rows: int = ROWS,
    batch: int = 32,
    seed: int = 0,
) -> Reading:
    """A certificate: read on until sure, at most so many answers differ from all windows'.

    Labels are not needed. Where no threshold can be certified, everything is read.
    """
    epsilon, delta = check_promise(disagree_at_most, confidence)
    words, level = runtime.tokenizer, runtime.level_of(budget)
    overlap = usual_overlap(words) if overlap is None else overlap
    chosen = draw_texts(
        texts, runtime, epsilon=epsilon, delta=delta, rows=rows, seed=seed, kind="documents"
    )
    tuned = len(chosen) // 3
    documents = words.windows(chosen, longest=longest, overlap=overlap)
    if max(map(len, documents)) == 1:
        raise ValueError(
            f"no document has more than one window of {words.length} tokens, so there is nothing "
            "to leave unread; certify without a length, or give longer documents"
        )

    def model(**inputs: NDArray[Any]) -> NDArray[np.float32]:
        return runtime(**inputs, budget=level)

    early = _watch(model, words, documents[:tuned], batch).early
    cuts = np.quantile(early, np.linspace(1.0, 0.0, _STEPS)) if len(early) else np.array([])
    path = [None, *dict.fromkeys(float(cut) for cut in cuts if cut > 0.0)]
    seen = _watch(model, words, documents[tuned:], batch)
    wrong = [seen.ends(threshold)[1] for threshold in path]
    last = last_certified(binomial_tail(wrong, len(seen.count), epsilon), delta)
    assert last is not None, "reading everything never disagrees, and there are rows enough"
    read, differing = seen.ends(path[last])
    return Reading(
        disagree_at_most=epsilon,
        confidence=confidence,
        rows=len(seen.count),
        disagreements=differing,
        bound=binomial_bound(differing, len(seen.count), delta),
        threshold=path[last],
        budget=level,
        longest=longest,
        window=words.length,
        overlap=overlap,
        windows=float(seen.count.mean()),
        windows_read=float(read.mean()),
        seed=seed,
        tuned_rows=tuned,
        texts=digest_of_texts(chosen[tuned:]),
        identity=dict(runtime.identity),
    )


@dataclass(frozen=True)
class _Watched:
    """What documents say after each of their windows; after the last, nothing changes."""

    labels: NDArray[np.int64]  # [windows, documents]
    margins: NDArray[np.float64]
    count: NDArray[np.int64]  # windows of each document

    @property
    def early(self) -> NDArray[np.float64]:
        """The margins of documents that have windows left."""
        left = np.arange(len(self.margins))[:, None] < self.count - 1
        return self.margins[left]

    def ends(self, threshold: float | None) -> tuple[NDArray[np.int64], int]:
        """How many windows of each document are read, and how many answers differ."""
        if threshold is None:
            return self.count, 0
        sure = self.margins >= threshold
        sure[-1] = True
        place = np.minimum(sure.argmax(axis=0), self.count - 1)
        every = np.arange(len(self.count))
        differs = self.labels[place, every] != self.labels[-1]
        differs |= (self.margins[-1] < TIES) & (place < self.count - 1)
        return place + 1, int(differs.sum())


def _watch(model: Answering, words: Tokenizer, documents: Documents, batch: int) -> _Watched:
    labels, margins = [], []
    for likely, _ in _stages(model, words, documents, batch, None):
        labels.append(likely.argmax(axis=-1))
        margins.append(margins_of(likely))
    count = np.array([len(one) for one in documents])
    return _Watched(np.stack(labels), np.stack(margins), count)
