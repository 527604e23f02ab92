"""Length, the second axis of a budget: the share of a text's tokens that each layer reads.

Costs of units add, costs of length multiply: a layer that reads half of the tokens computes half of
all that it keeps. It imports nothing of apportion: a folder that loads without that has a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST = 8  # tokens that stay, of a text that has as many
PARTS = 1000  # shares are whole parts of it, so that counts are exact wherever they are taken


@dataclass(frozen=True)
class Schedule:
    """The share of a text's tokens that each layer reads, the first layer's first.

    Shares never rise from layer to layer. The first one crops the text; every other one says how
    many tokens go on after the layer before. They are rounded to thousandths. Those that token 0
    attends to most go on or, by position, those that stand first.
    """

    shares: tuple[float, ...]
    by_position: bool = False

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("a schedule has a share for each layer, one at least")
        for share in self.shares:
            number = isinstance(share, int | float) and not isinstance(share, bool)
            if not number or not 1 / PARTS <= share <= 1.0:
                raise ValueError(
                    f"a layer reads a share of the tokens from {1 / PARTS:g} to 1, not {share!r}"
                )
        for layer, (before, share) in enumerate(pairwise(self.shares), start=1):
            if share > before:
                raise ValueError(
                    f"a schedule never rises: layer {layer} can't read {share:g} of the tokens "
                    f"after {before:g}"
                )
        object.__setattr__(self, "shares", tuple(round(share, 3) for share in self.shares))
        object.__setattr__(self, "by_position", self.by_position and not self.is_whole)

    @classmethod
    def everything(cls, layers: int) -> Schedule:
        """Every layer reads all tokens."""
        return cls((1.0,) * layers)

    @property
    def is_whole(self) -> bool:
        """Whether no token is dropped."""
        return self.shares[-1] == 1.0

    def tokens(self, length: int) -> tuple[int, ...]:
        """How many tokens of a text of this length each layer reads."""
        return tuple(kept_tokens(length, share) for share in self.shares)

    def check_length(self, length: int) -> None:
        """Complains of a share that names fewer than 8 of the tokens that a model reads."""
        named = -(-length * parts_of(self.shares[-1]) // PARTS)
        if named < min(LEAST, length):
            raise ValueError(
                f"a share of {self.shares[-1]:g} is {named} of {length} tokens; a layer reads "
                f"{LEAST} at least, a share of {min(1.0, LEAST / length):.3g}"
            )

    def towards(self, other: Schedule, way: float) -> Schedule:
        """The schedule at a share of the way to another one."""
        shares: list[float] = []
        for mine, theirs in zip(self.shares, other.shares, strict=True):
            share = mine + way * (theirs - mine)
            shares.append(min([share, *shares[-1:]]))  # neither rises, but rounding might
        return Schedule(tuple(shares), self.by_position or other.by_position)


def kept_tokens(count: int, share: float) -> int:
    """min(n, max(8, ⌈r·n⌉)): how many of n tokens a share keeps."""
    return min(count, max(LEAST, -(-count * parts_of(share) // PARTS)))


def parts_of(share: float) -> int:
    """A share in thousandths."""
    return round(share * PARTS)


def geometric(layers: int, last: float, *, crop: float = 1.0) -> Schedule:
    """A schedule that falls by the same factor after each layer, from a crop down to a last share.

    Early layers mix words into each other; later ones can do with fewer.
    """
    steps = max(1, layers - 1)
    last = min(last, crop)
    return Schedule(tuple(crop * (last / crop) ** (layer / steps) for layer in range(layers)))


def never_more(schedule: Schedule, than: Sequence[float]) -> bool:
    """Whether no layer reads more tokens than by other shares."""
    return all(mine <= theirs for mine, theirs in zip(schedule.shares, than, strict=True))
