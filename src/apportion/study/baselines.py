"""Methods of another kind on the same rows: what a model has to beat to be worth its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion.data.task import Task
from apportion.elastic.evaluation import Outcome
from apportion.extras import require

_STRENGTHS = (1.0, 3.0, 10.0)
_NGRAMS = ((1, 1), (1, 2))


@dataclass(frozen=True)
class BagOfWords:
    """Logistic regression on TF-IDF, fitted: texts in, probabilities out."""

    vectorizer: Any
    model: Any
    chosen: dict[str, Any]

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The probability of each class [texts, classes]."""
        likely: NDArray[np.float64] = self.model.predict_proba(self.vectorizer.transform(texts))
        return likely


def tfidf_logistic(task: Task) -> tuple[Outcome, dict[str, Any]]:
    """How logistic regression on TF-IDF does on test, and what was chosen."""
    fitted, test = fit_bag_of_words(task), task.test
    probabilities = fitted(test.texts or ())
    logits = torch.from_numpy(probabilities).clamp(min=torch.finfo(torch.float64).eps).log()
    accuracy = float(test.criterion.score(logits, test.labels).double().mean())
    loss = float(test.criterion.loss(logits, test.labels))
    return Outcome(accuracy, loss, 1.0, len(test)), fitted.chosen


def fit_bag_of_words(task: Task) -> BagOfWords:
    """Logistic regression on TF-IDF of words and word pairs; validation chose its two numbers."""
    if task.train.texts is None or task.validation.texts is None or task.test.texts is None:
        raise ValueError(f"task {task.name!r} has no texts for a baseline of words")
    text, linear = require("sklearn.feature_extraction.text"), require("sklearn.linear_model")
    best: tuple[float, Any, Any, dict[str, Any]] | None = None
    for ngrams in _NGRAMS:
        vectorizer = text.TfidfVectorizer(ngram_range=ngrams)
        rows = vectorizer.fit_transform(task.train.texts)
        held_out = vectorizer.transform(task.validation.texts)
        for strength in _STRENGTHS:
            model = linear.LogisticRegression(C=strength, max_iter=1000)
            model.fit(rows, task.train.labels.numpy())
            accuracy = model.score(held_out, task.validation.labels.numpy())
            if best is None or accuracy > best[0]:
                best = (accuracy, vectorizer, model, {"C": strength, "ngrams": list(ngrams)})
    assert best is not None
    return BagOfWords(*best[1:])


# By name, as experiment files call them.
BASELINES: dict[str, Callable[[Task], tuple[Outcome, dict[str, Any]]]] = {
    "tfidf-logistic": tfidf_logistic,
}
