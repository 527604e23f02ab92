"""Rounding: weights as int8, and which range the inputs of a linear layer are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DAMPING = 0.01  # of the mean square of inputs: channels that were hardly seen stay near zero
_TAILS = {"min-max": 0.0, "99.99 %": 1e-4, "99.9 %": 1e-3}  # share of inputs that are clipped


@dataclass(frozen=True)
class Seen:
    """What a linear layer was given: the range of each channel, and some of the inputs."""

    low: NDArray[Any]  # [channels]
    high: NDArray[Any]
    sample: NDArray[Any]  # [tokens, channels]; zeros where a level had no such channel


@dataclass(frozen=True)
class Scale:
    """Where a linear layer's inputs lie: x ≈ factors · size · (q - zero), q from 0 to 255."""

    size: float
    zero: int
    bits: int = 8  # of the weights; 7 where products of 8 bits saturate
    choice: str = "min-max"
    factors: NDArray[Any] | None = field(default=None, compare=False)  # of channels, if not all 1
    sample: NDArray[Any] | None = field(default=None, compare=False)  # of inputs, over factors

    @classmethod
    def of(cls, low: float, high: float, bits: int, **more: Any) -> Scale:
        """The scale of a range, which is widened to hold zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        size = (high - low) / 255 or 1.0
        return cls(float(size), round(-low / size), bits, **more)

    def weights(self, weight: NDArray[Any], rows: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        """Some rows of a weight as int8, and the scale of each column."""
        if self.factors is not None:
            weight = weight * self.factors[rows, None]
        sample = None if self.sample is None else self.sample[:, rows]
        return round_columns(weight, self.bits, sample)


def quantise_columns(weight: NDArray[Any], bits: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A weight [inputs, outputs] as int8, and the scale of each column; symmetric."""
    largest = 2 ** (bits - 1) - 1
    sizes = np.abs(weight).max(axis=0) / largest
    sizes = np.where(sizes == 0, 1.0, sizes).astype(np.float32)
    return np.clip(np.rint(weight / sizes), -largest, largest).astype(np.int8), sizes


def round_columns(
    weight: NDArray[Any], bits: int, sample: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """What `quantise_columns` returns, but rounded so that outputs for a sample change least.

    Rows are rounded one after the other; what rounding one adds to the outputs is taken back by
    the rows that are still to come, as far as their inputs go together.
    """
    matrix, sizes = quantise_columns(weight, bits)
    if sample is None or not sample.size or len(weight) < 2:
        return matrix, sizes
    inputs = sample.astype(np.float64)
    gram = inputs.T @ inputs
    damping = _DAMPING * np.trace(gram) / len(gram)
    if damping <= 0.0:
        return matrix, sizes
    inverse = np.linalg.inv(gram + damping * np.eye(len(gram)))
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    largest, left = 2 ** (bits - 1) - 1, weight.astype(np.float64)
    for row in range(len(left)):
        matrix[row] = np.clip(np.rint(left[row] / sizes), -largest, largest)
        error = (left[row] - matrix[row] * sizes) / upper[row, row]
        left[row + 1 :] -= np.outer(upper[row, row + 1 :], error)
    return matrix, sizes


def choose_scale(seen: Seen, weight: NDArray[Any], bits: int, *, worth: float) -> Scale:
    """The range at which the outputs of a linear layer change least, on what it was given.

    That of all inputs, or without the farthest of them; of channels as they are, or of equalised
    ones, which move their outliers into the weight. Equalising has to bring the error below
    `worth` of what it is without: 1 where it is free, 0 where it is never done.
    """
    plain = min(_ranked(seen, weight, bits, None), key=lambda pair: pair[0])
    if not worth:
        return plain[1]
    largest = np.maximum(np.abs(seen.low), np.abs(seen.high))
    rows = np.abs(weight).max(axis=1)
    good = (largest > 0) & (rows > 0)
    factors = np.ones_like(largest)
    # The square root shares the difficulty between inputs and weights.
    factors[good] = np.sqrt(largest[good] / rows[good])
    factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
    even = min(_ranked(seen, weight, bits, factors), key=lambda pair: pair[0])
    return even[1] if even[0] < worth * plain[0] else plain[1]


def _ranked(
    seen: Seen, weight: NDArray[Any], bits: int, factors: NDArray[Any] | None
) -> Iterator[tuple[float, Scale]]:
    """Scales by the share of inputs that they clip, each with its error."""
    over = 1.0 if factors is None else factors
    sample = seen.sample / over
    for tail, share in _TAILS.items():
        low, high = (seen.low / over).min(), (seen.high / over).max()
        if share:
            low, high = np.quantile(sample, (share / 2, 1.0 - share / 2))
        choice = tail if factors is None else f"equalised, {tail}"
        more = {"choice": choice, "factors": factors, "sample": sample}
        scale = Scale.of(float(low), float(high), bits, **more)
        rounded = np.clip(np.rint(sample / scale.size) + scale.zero, 0, 255) - scale.zero
        # The squared error of the outputs, the weight being exact.
        error = ((rounded * scale.size - sample) * over) @ weight
        yield float(np.square(error).sum()), scale
