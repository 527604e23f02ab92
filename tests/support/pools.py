"""Answers of made-up models: what each level says of each row, and how sure it is."""

from __future__ import annotations

import numpy as np

from apportion.serving.cascade import Pool

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
