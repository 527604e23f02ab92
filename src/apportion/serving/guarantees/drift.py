"""Drift: rows of a stream that are audited, and an alarm when too many answers differ.

A certificate holds for texts like those it was made on. An audit asks the whole model about a row
that a smaller budget has answered; which rows, a hash of their ids decides, so that neither the
order of the rows nor their number matters, and nobody has to keep a list.

The alarm is a bet against "at most ε of the answers differ". A bettor who stakes the share γ wins
or loses the factor 1 + γ(loss - ε) on each audit; if the claim is true, his wealth is 1 on average
at any time, so it ever reaches 1/δ with probability δ at most (Ville). Some bettors start with the
first audit, others later: those who come late have lost nothing while all was well.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

_RATES = (1.5, 2.0, 3.0, 5.0, 10.0)  # times ε: what each bettor takes the new risk for


def is_audited(row: str, share: float, *, salt: str = "") -> bool:
    """Whether the row of this id is one of the share that is audited."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of rows that are audited is between 0 and 1, not {share:g}")
    drawn = hashlib.sha256(f"{salt}\n{row}".encode("utf-8", "surrogatepass")).digest()[:8]
    return int.from_bytes(drawn, "big") < share * 2.0**64


class Drift:
    """Watches the audits of a stream: `observe` each, and `alarm` says when to stop trusting.

    The probability of an alarm, ever, is at most delta for as long as the risk is at most epsilon.
    An alarm stays; after it, certify anew and start another watch.
    """

    def __init__(self, *, disagree_at_most: float, delta: float = 0.05) -> None:
        if not 0.0 < disagree_at_most < 1.0 or not 0.0 < delta < 1.0:
            raise ValueError(
                "the share that may differ and the chance of a false alarm are between 0 and 1, "
                f"not {disagree_at_most:g} and {delta:g}"
            )
        self.epsilon, self.delta = disagree_at_most, delta
        self.audited = self.differed = 0
        self.alarm = False
        self._stakes = _stakes(disagree_at_most)
        self._started = np.zeros(len(self._stakes))

    @property
    def wealth(self) -> float:
        """What the bettors have together: 1 at first; 1/delta is an alarm."""
        return float(_wealth(self._started, self.audited))

    def observe(self, differs: bool) -> bool:
        """Takes an audit, whether the answer differed from the whole model's; the alarm."""
        self.audited += 1
        self.differed += bool(differs)
        loss = np.array([float(differs)])
        self._started = _next(self._started, loss, self.audited, self._stakes, self.epsilon)
        self.alarm = self.alarm or self.wealth >= 1.0 / self.delta
        return self.alarm


def first_alarms(
    losses: NDArray[np.bool_], *, disagree_at_most: float, delta: float = 0.05
) -> NDArray[np.int64]:
    """The audit that rang the alarm of each stream, counted from 1; 0 where none did.

    Losses are [streams, audits]. What `Drift` does, for many streams at once.
    """
    stakes = _stakes(disagree_at_most)
    started = np.zeros((len(losses), len(stakes)))
    rang = np.zeros(len(losses), np.int64)
    for number, column in enumerate(losses.T.astype(float), start=1):
        started = _next(started, column[:, None], number, stakes, disagree_at_most)
        rang[(rang == 0) & (_wealth(started, number) >= 1.0 / delta)] = number
    return rang


def _stakes(epsilon: float) -> NDArray[np.float64]:
    """What grows fastest if the risk is that many times ε; all below 1/ε, so wealth stays ≥ 0."""
    rates = np.minimum(np.array(_RATES) * epsilon, (1.0 + epsilon) / 2.0)
    stakes: NDArray[np.float64] = (rates / epsilon - 1.0) / (1.0 - epsilon)
    return stakes


def _next(
    started: NDArray[np.float64],
    loss: NDArray[np.float64],
    number: int,
    stakes: NDArray[np.float64],
    epsilon: float,
) -> NDArray[np.float64]:
    """The wealth of the bettors that have started, [..., stakes], after an audit."""
    joined = started + _waiting(number - 1) - _waiting(number)
    return joined * (1.0 + stakes * (loss - epsilon))


def _waiting(number: int) -> float:
    """What those bettors hold who have not started after so many audits.

    It falls slowly, so that a drift after many good rows is met by bettors who still have money.
    """
    return 1.0 / math.log2(number + 2.0)


def _wealth(started: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    """Of those who have started and those who wait, on average over the stakes."""
    together: NDArray[np.float64] = started.mean(axis=-1) + _waiting(number)
    return together
