"""Answers of made-up models: what each level says of each row, and how sure it is."""

from __future__ import annotations

import numpy as np

from apportion.serving.guarantees.cascade import Pool
from apportion.serving.guarantees.certificate import IDENTITY
from apportion.serving.runtime.session import Runtime

PRICES = (0.15, 0.3, 1.0)


def pool(rows: int, seed: int, *, bad: bool = False) -> Pool:
    """Three levels, the last of them whole; a level that is surer differs less often.

    In a `bad` one the smallest level is as often wrong where it is sure.
    """
    draw = np.random.default_rng(seed)
    hard = draw.beta(0.5, 3.0, rows)  # most rows are easy
    labels, margins = np.zeros((3, rows), np.int64), np.ones((3, rows))
    for level, weakness in enumerate((1.0, 0.6)):
        noise = draw.normal(0.0, 0.1, rows)
        margins[level] = np.clip(1.0 - weakness * hard + noise, 0.0, 1.0 - 1e-9)
        wrong = weakness * 0.6 * hard**1.5
        if bad and level == 0:
            wrong = np.full(rows, 0.08)
        labels[level] = draw.random(rows) < wrong
    return Pool(labels, margins)


class Numbers:
    """A tokenizer of texts such as `row 12`: the number is the id, and lengths differ."""

    def encode(self, texts):
        numbers = [int(text.split()[1]) for text in texts]
        return [[number] + [0] * (number % 7) for number in numbers]

    def pad_arrays(self, rows, width=None):
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class Cached(Runtime):
    """A runtime that says what a pool says; it counts the rows that each level was asked."""

    def __init__(self, answers: Pool) -> None:
        self.answers, self.tokenizer = answers, Numbers()
        self.levels, self.costs, self.classes = (0.125, 0.25, 1.0), (0.125, 0.25, 1.0), ("a", "b")
        self.identity = dict.fromkeys(IDENTITY, "x" * 64)
        self.facts, self.threads = {}, 1
        self.asked = dict.fromkeys(self.levels, 0)

    def __call__(self, input_ids, attention_mask=None, *, budget=1.0, token_type_ids=None):
        numbers, level = input_ids[:, 0], self.levels.index(budget)
        self.asked[budget] += len(numbers)
        likely = (1.0 + self.answers.margins[level, numbers]) / 2.0
        likely = np.clip(likely, 0.0, 1.0 - 1e-12)
        both = np.stack([likely, 1.0 - likely], axis=1)
        second = self.answers.labels[level, numbers] == 1
        both[second] = both[second, ::-1]
        return np.log(both)

    def texts(self) -> list[str]:
        return [f"row {number}" for number in range(len(self.answers))]
