"""Cascades: easy texts end at a small budget, the others go on to a larger one.

A text ends at the first level at which the model is sure: there the margin, the likeliest class's
probability less the second's, reaches the level's threshold. What is left goes to the whole model.
Levels share weights, not work: a text that goes on is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.runtime.prediction import batches_of, softmax
from apportion.serving.runtime.session import Runtime

Thresholds = Sequence[float | None]  # one per level below the whole model; None: no text ends there


@dataclass(frozen=True)
class Pool:
    """What each level says of each row: the class, and how sure it is of it."""

    labels: NDArray[np.int64]  # [levels, rows]; the last level is the whole model
    margins: NDArray[np.float64]  # [levels, rows]
    whole: NDArray[np.float64] | None = None  # probabilities of the whole model [rows, classes]

    def __len__(self) -> int:
        return int(self.labels.shape[1])

    def differs(self, ties: float = 0.0) -> NDArray[np.bool_]:
        """Whether a level's class is not the whole model's [levels, rows].

        Where the whole model's own margin is below `ties`, rounding may turn its answer: such a row
        counts as one that differs at every other level.
        """
        different: NDArray[np.bool_] = (self.labels != self.labels[-1]) | (self.margins[-1] < ties)
        different[-1] = False
        return different

    def rows(self, chosen: NDArray[Any] | slice) -> Pool:
        """Some of the rows, or rows drawn again."""
        return Pool(self.labels[:, chosen], self.margins[:, chosen])


def ends_at(margins: NDArray[np.float64], thresholds: Thresholds) -> NDArray[np.int64]:
    """The place of the level at which each row ends, from margins [levels, rows]."""
    wanted = np.array([np.inf if one is None else one for one in thresholds] + [-np.inf])
    places: NDArray[np.int64] = (margins >= wanted[:, None]).argmax(axis=0)
    return places


def stages_of(levels: Sequence[float], thresholds: Thresholds) -> tuple[tuple[float, float], ...]:
    """The levels at which texts may end, each with the least margin that ends one there."""
    pairs = zip(levels[:-1], thresholds, strict=True)
    stages = [(level, least) for level, least in pairs if least is not None]
    return (*stages, (levels[-1], -np.inf))


def margins_of(likely: NDArray[np.float64]) -> NDArray[np.float64]:
    """How sure a model is: the highest probability of each row less the second."""
    two = np.partition(likely, -2, axis=-1)[:, -2:]
    sure: NDArray[np.float64] = two[:, 1] - two[:, 0]
    return sure


def ask(
    runtime: Runtime, encoded: Sequence[Sequence[int]], *, level: float, batch: int = 32
) -> NDArray[np.float64]:
    """The probabilities [rows, classes] of encoded rows at a level, like lengths together."""
    likely = np.empty((len(encoded), len(runtime.classes)))
    for places, inputs in batches_of(runtime.tokenizer, encoded, batch):
        # In double precision: margins of sure answers differ far behind the point.
        likely[places] = softmax(np.asarray(runtime(**inputs, budget=level), np.float64))
    if not np.isfinite(likely).all():
        raise ValueError("an answer of the model is not a number: are its weights damaged?")
    return likely


class Cascade:
    """A runtime that answers each text at the first level that is sure of it.

    `thresholds` has one number per level below the whole model, such as a certificate's; None where
    no text ends. A level at which none ends is not computed.
    """

    def __init__(self, runtime: Runtime, thresholds: Thresholds) -> None:
        check_whole(runtime)
        if len(thresholds) != len(runtime.levels) - 1:
            raise ValueError(
                f"a cascade over {len(runtime.levels)} levels has {len(runtime.levels) - 1} "
                f"thresholds, not {len(thresholds)}"
            )
        self.runtime = runtime
        self.stages = stages_of(runtime.levels, thresholds)

    @classmethod
    def certified(cls, runtime: Runtime, certificate: Certificate) -> Cascade:
        """The cascade of a certificate; one of another model or runtime is refused."""
        certificate.check(runtime.identity)
        if certificate.levels != runtime.levels:
            raise ValueError(
                f"the certificate is of the levels {_listed(certificate.levels)}, and this folder "
                f"has {_listed(runtime.levels)}; certify this folder"
            )
        return cls(runtime, certificate.thresholds)

    @classmethod
    def at(cls, runtime: Runtime, budget: float) -> Cascade:
        """A cascade of one level, which answers every text."""
        cascade = cls.__new__(cls)
        cascade.runtime, cascade.stages = runtime, ((runtime.level_of(budget), -np.inf),)
        return cascade

    def answer(
        self, encoded: Sequence[Sequence[int]], *, batch: int = 32
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The probabilities [rows, classes] of encoded rows, and the level that answered each."""
        likely = np.empty((len(encoded), len(self.runtime.classes)))
        levels = np.empty(len(encoded))
        left = np.arange(len(encoded))
        for level, least in self.stages:
            if not len(left):
                break
            found = ask(self.runtime, [encoded[n] for n in left.tolist()], level=level, batch=batch)
            sure = margins_of(found) >= least
            ending = left[sure]
            likely[ending], levels[ending] = found[sure], level
            left = left[~sure]
        return likely, levels

    def predict(self, texts: Sequence[str], *, batch: int = 32) -> list[tuple[str, float, float]]:
        """The likeliest class of each text, its probability, and the level that answered."""
        likely, levels = self.answer(self.runtime.tokenizer.encode(texts), batch=batch)
        return [
            (self.runtime.classes[int(row.argmax())], float(row.max()), float(level))
            for row, level in zip(likely, levels, strict=True)
        ]


def check_whole(runtime: Runtime) -> None:
    """Complains of a runtime that has no whole model to agree with."""
    if runtime.levels[-1] < 1.0:
        raise ValueError(
            f"the highest level is {runtime.levels[-1]:g}, so there is no whole model to compare "
            "answers with; export with a level of 1"
        )
    if len(runtime.levels) < 2:
        raise ValueError("there is one level only, so no text could end at a smaller one")
    if runtime.facts.get("scales") == "dynamic":
        raise ValueError(
            "dynamic scales make an answer depend on what else is in its batch, so nothing can be "
            "promised of it; export with static scales"
        )


def _listed(levels: Sequence[float]) -> str:
    return ", ".join(f"{level:g}" for level in levels)
