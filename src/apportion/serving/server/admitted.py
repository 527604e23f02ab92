"""What was admitted: a model, requests to it, their rows, and batches of those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.serving.guarantees.cascade import margins_of
from apportion.serving.server.promise import UNPROMISED, Audit, Promise, Stage, Unpromised
from apportion.serving.server.setting import Setting, Waiting
from apportion.serving.server.terms import Config, Terms

ANSWERED, FAILED, CANCELLED, TIMED_OUT = "answered", "failed", "cancelled", "timed out"


@dataclass(frozen=True, eq=False)
class Model:
    """What answers: a runtime, the terms that it is offered at, what the policy knows of it."""

    runtime: Callable[..., NDArray[np.float32]]
    levels: tuple[float, ...]
    costs: tuple[float, ...]
    classes: tuple[str, ...]
    tokenizer: Tokenizer
    identity: Mapping[str, str]
    config: Config
    setting: Setting
    promise: Promise | Unpromised = UNPROMISED

    def stages_of(self, terms: Terms) -> tuple[Stage, ...]:
        """The cascade that rows of such terms go through; none without a promise."""
        promised = terms.certificate and isinstance(self.promise, Promise)
        return self.promise.stages if promised else ()  # type: ignore[union-attr]

    def cost(self, tokens: int, level: float) -> float:
        """What a row costs: its tokens, times the share of the compute that a level pays for."""
        return tokens * self.costs[self.levels.index(level)]


@dataclass(eq=False)
class Row:
    """One text of a request, and what became of it."""

    request: Request
    ids: list[int]
    facts: Waiting
    asked: float  # the level that an idle server would have run it at
    stages: tuple[Stage, ...] = ()  # of its cascade, from the one that is next
    outcome: str | None = None
    certified: bool | None = None  # none: nobody asked
    tries: int = 0
    probabilities: NDArray[Any] | None = None
    level: float = 0.0
    rung: int = 0
    batch: int = 0
    started: float = 0.0
    ended: float = 0.0
    cost: float = 0.0  # of all levels that it was asked at
    computed: float = 0.0  # seconds that they took

    def told(self, share: NDArray[Any], now: float) -> bool:
        """Takes what a level says of it, and whether that is its answer."""
        self.probabilities = share
        self.cost += self.request.model.cost(len(self.ids), self.level)
        self.computed += now - self.started
        if not self.certified or margins_of(share[None])[0] >= self.stages[0][1]:
            return True
        self.stages = self.stages[1:]
        level = self.stages[0][0]
        # As if it had asked for this level: load that comes now must not choose, among the rows
        # that were promised something, those that are hard.
        self.facts = replace(self.facts, highest=level, lowest=level, alone=False)
        self.asked, self.tries = level, 0
        return False


@dataclass(eq=False)
class Request:
    """Texts that were admitted together; `done` is called once, when all of them have ended."""

    model: Model
    terms: Terms
    received: float
    admitted: float
    done: Callable[[Request], None]
    number: str = ""  # its id, for audits
    rows: list[Row] = field(default_factory=list)
    open: int = 0
    error: BaseException | None = None

    @property
    def expiry(self) -> float:
        """When its client stops waiting."""
        return self.received + self.terms.timeout_ms / 1000.0

    @property
    def outcome(self) -> str:
        """Answered if all of it was; or else what came between."""
        others = [row.outcome for row in self.rows if row.outcome != ANSWERED]
        for outcome in (FAILED, TIMED_OUT, CANCELLED):
            if outcome in others:
                return outcome
        return ANSWERED


@dataclass(eq=False)
class Batch:
    """Rows that run together, at one level of one model."""

    model: Model
    rows: list[Row]
    level: float
    rung: int
    started: float
    predicted: float  # seconds, by the forecast
    audit: Audit | None = None  # in place of rows

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Ids and mask, padded to the longest row: its bucket is for forecasts alone."""
        ids = [self.audit.ids] if self.audit is not None else [row.ids for row in self.rows]
        return self.model.tokenizer.pad_arrays(ids)
