"""Splitting: rows drawn from a file, each class with its share."""

from __future__ import annotations

import numpy as np

from apportion.data.rows import Row
from apportion.data.sources import Part


def stratified(
    part: Part,
    size: int,
    name: str,
    generator: np.random.Generator,
    *,
    least: int = 0,
    left_over: int = 0,
) -> tuple[list[Row], list[Row]]:
    """So many rows, each class with its share (largest remainders first), and the rest of them.

    Of each class so many are taken at the `least`, and so many `left_over`, if there are enough.
    """
    if size > len(part.rows):
        raise ValueError(
            f"{part.where.split(',')[0]}: {size:,} {name} rows were asked for, "
            f"{len(part.rows):,} are there"
        )
    order = generator.permutation(len(part.rows))
    of_class: dict[str, list[int]] = {}
    for position in order:
        of_class.setdefault(part.rows[position].label, []).append(int(position))
    labels = sorted(of_class)
    exact = [size * len(of_class[label]) / len(part.rows) for label in labels]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(labels)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_remainder[: size - sum(counts)]:
        counts[n] += 1
    sizes = [len(of_class[label]) for label in labels]
    counts = _within(counts, [min(least, n) for n in sizes], [n - left_over for n in sizes])
    chosen = {p for label, n in zip(labels, counts, strict=True) for p in of_class[label][:n]}
    taken = [part.rows[p] for p in order if p in chosen]
    rest = [row for p, row in enumerate(part.rows) if p not in chosen]
    return taken, rest


def _within(counts: list[int], lowest: list[int], highest: list[int]) -> list[int]:
    """Counts between bounds with the same sum, if that can be: the largest classes make up for it.

    Where it can't be, they are as they were.
    """
    if not sum(lowest) <= sum(counts) <= sum(highest):
        return counts
    found = [min(max(n, low), high) for n, low, high in zip(counts, lowest, highest, strict=True)]
    while missing := sum(counts) - sum(found):
        step = 1 if missing > 0 else -1
        room = [
            (high - n if missing > 0 else n - low, -place)
            for place, (n, low, high) in enumerate(zip(found, lowest, highest, strict=True))
        ]
        found[-max(room)[1]] += step
    return found
