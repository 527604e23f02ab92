"""Terms: what a server sells and what a request may ask of it, as frozen values.

A *tier* is what a caller bought: at most one budget, at least another, a target in milliseconds.
The *terms* of a request are two levels of the model, highest and lowest, and its times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

_SLACK = 1e-6  # as in the exported graph: a budget of 0.1 + 0.2 pays for 0.3
POLICIES = ("ladder", "slackfit", "static")


class Refusal(ValueError):  # noqa: N818 - it is not always the caller's error
    """A request that is not served: one sentence, and a word that the dialects turn to a status."""

    def __init__(self, kind: str, detail: str, **extras: Any) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.extras = kind, detail, extras


@dataclass(frozen=True)
class Tier:
    """What a caller bought. Without `min_budget`, load may lower it to the lowest level."""

    name: str
    max_budget: float
    min_budget: float | None = None
    weight: float = 1.0  # of its answers, when load decides whose budget goes down first
    target_ms: float = 500.0  # answers are due so long after their request came
    price: float = 1.0  # per unit of cost

    def __post_init__(self) -> None:
        named = f"tier {self.name!r}"
        if not self.name or not self.name.isprintable() or set(self.name) & set(": /,\t"):
            raise ValueError(f"{named} needs a name without spaces, colons, commas and slashes")
        for what in ("max_budget", "min_budget"):
            value = getattr(self, what)
            if value is not None and not 0.0 < value <= 1.0:
                raise ValueError(f"{named}: {what} is a number in (0, 1], not {value!r}")
        if self.min_budget is not None and self.min_budget > self.max_budget:
            raise ValueError(
                f"{named}: min_budget {self.min_budget:g} is above max_budget {self.max_budget:g}"
            )
        for what in ("weight", "target_ms"):
            if not 0.0 < getattr(self, what) < float("inf"):
                raise ValueError(
                    f"{named}: {what} is a number above 0, not {getattr(self, what)!r}"
                )
        if not 0.0 <= self.price < float("inf"):
            raise ValueError(f"{named}: price is a number from 0 on, not {self.price!r}")

    def levels_of(self, levels: Sequence[float]) -> tuple[float, float]:
        """The lowest and the highest level that the tier allows."""
        highest = level_below(self.max_budget, levels)
        lowest = level_above(self.min_budget or levels[0], levels)
        if highest is None or lowest is None or lowest > highest:
            allowed = f"{self.min_budget or levels[0]:g} to {self.max_budget:g}"
            have = ", ".join(f"{level:g}" for level in levels)
            raise ValueError(
                f"tier {self.name!r} allows {allowed}; the model has no such level: {have}"
            )
        return lowest, highest


# Weights so far apart that the dearer tier is lowered last, whatever the levels cost.
TIERS = (
    Tier("low-cost", 0.25, weight=1.0),
    Tier("balanced", 0.5, weight=8.0, price=2.0),
    Tier("high-quality", 1.0, weight=64.0, price=4.0),
)


@dataclass(frozen=True)
class Capacity:
    """Threads, and how much may wait for them."""

    workers: int | None = None  # none: by the cores that the process may use
    threads: int | None = None  # of each worker
    max_wait_s: float = 5.0  # predicted, at the lowest budgets; above it, requests are refused
    max_tokens: int = 200_000  # waiting
    max_rows: int = 20_000  # waiting
    max_batch: int = 32
    grace_s: float = 20.0  # to empty the queue after SIGTERM


@dataclass(frozen=True)
class Limits:
    """What one request may bring."""

    body: int = 1_000_000  # bytes
    body_seconds: float = 10.0  # for a body to arrive
    rows: int = 64
    characters: int = 100_000  # of all texts of a request
    timeout_ms: float = 30_000.0  # for an answer, where the request does not say less


@dataclass(frozen=True)
class Rule:
    """Which policy decides, with what it needs."""

    name: Literal["ladder", "slackfit", "static"] = "ladder"
    budget: float = 1.0  # of the static policy
    worth: tuple[float, ...] = ()  # of an answer at each level, say its accuracy


@dataclass(frozen=True)
class Promised:
    """Which certificate is answered by, and how it is watched."""

    file: Path | None = None  # none: the one in the model's folder, if there is one
    audit: float = 0.02  # share of the answers that the whole model is asked about as well


@dataclass(frozen=True)
class Config:
    """A configuration file, checked."""

    name: str = ""  # of the model; empty: that of its folder
    machine: Capacity = field(default_factory=Capacity)
    tiers: tuple[Tier, ...] = TIERS
    limits: Limits = field(default_factory=Limits)
    rule: Rule = field(default_factory=Rule)
    keys: Path | None = None
    promised: Promised = field(default_factory=Promised)

    def fitted(self, levels: Sequence[float]) -> Config:
        """The configuration for a model; tiers that it has no levels for are an error.

        The usual tiers reach up to the lowest level at least, so they suit any model.
        """
        if self.rule.worth and len(self.rule.worth) != len(levels):
            raise ValueError(
                f"[policy] worth has {len(self.rule.worth)} numbers; the model has "
                f"{len(levels)} levels"
            )
        tiers = self.tiers
        if tiers is TIERS:
            tiers = tuple(replace(t, max_budget=max(t.max_budget, levels[0])) for t in tiers)
        for tier in tiers:
            tier.levels_of(levels)
        return replace(self, tiers=tiers)

    def tier(self, name: str) -> Tier:
        """A tier by its name."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        have = ", ".join(tier.name for tier in self.tiers)
        raise Refusal(
            "no-such-tier", f"there is no tier {name[:80]!r}; there are {have}", path="tier"
        )


@dataclass(frozen=True)
class Asked:
    """What a request says of its terms; whatever it does not say, its tier does."""

    tier: str | None = None
    budget: float | None = None  # exactly: load does not lower it
    min_budget: float | None = None
    target_ms: float | None = None
    timeout_ms: float | None = None
    certificate: bool = False  # by a cascade, whose last level is the whole model


@dataclass(frozen=True)
class Terms:
    """What a request gets: any level from `lowest` to `highest`, which are levels of the model."""

    tier: str
    highest: float
    lowest: float
    target_ms: float
    timeout_ms: float
    price: float = 1.0
    certificate: bool = False


def agree(
    asked: Asked, config: Config, *, levels: Sequence[float], allowed: Sequence[str] | None = None
) -> Terms:
    """The terms of a request: those of its tier, narrowed by what it asks.

    A request that names no tier gets the first one that it may have and that pays for its budget.
    `allowed` are the tiers that its key bought; none stands for all.
    """
    for what, unit in (
        ("budget", 1.0),
        ("min_budget", 1.0),
        ("target_ms", 1e9),
        ("timeout_ms", 1e9),
    ):
        value = getattr(asked, what)
        if value is not None and not 0.0 < value <= unit:
            limit = "1]" if unit == 1.0 else f"{unit:g}]"
            raise Refusal(
                "bad-field", f"{what} is a number in (0, {limit}, not {value!r}", path=what
            )
    if asked.certificate and (asked.budget, asked.min_budget) != (None, None):
        said = "a certificate has budgets of its own: give no budget and no min_budget"
        raise Refusal("bad-field", said, path="certificate")
    tier = _tier(asked, config, allowed)
    lowest, highest = tier.levels_of(levels)
    if asked.budget is not None:
        level = level_below(asked.budget, levels)
        if level is None:
            raise Refusal(
                "bad-field",
                f"budget {asked.budget:g} is below the lowest level of this model, {levels[0]:g}",
                path="budget",
            )
        if level > highest:
            raise Refusal(
                "tier-not-allowed",
                f"tier {tier.name!r} pays for budgets to {tier.max_budget:g}, not {asked.budget:g}",
            )
        lowest = highest = level
    if asked.min_budget is not None:
        needed = level_above(asked.min_budget, levels)
        if needed is None or needed > highest:
            raise Refusal(
                "bad-field",
                f"min_budget {asked.min_budget:g} is above the highest level that the request "
                f"may have, {highest:g}",
                path="min_budget",
            )
        lowest = max(lowest, needed)
    if asked.certificate and highest < levels[-1]:
        raise Refusal(
            "tier-not-allowed",
            f"a certificate may take the whole model; tier {tier.name!r} pays for budgets to "
            f"{tier.max_budget:g}",
        )
    timeout = min(asked.timeout_ms or config.limits.timeout_ms, config.limits.timeout_ms)
    target = asked.target_ms or tier.target_ms
    return Terms(tier.name, highest, lowest, target, timeout, tier.price, asked.certificate)


def _tier(asked: Asked, config: Config, allowed: Sequence[str] | None) -> Tier:
    if asked.tier is not None:
        tier = config.tier(asked.tier)
        if allowed is not None and tier.name not in allowed:
            have = ", ".join(allowed)
            raise Refusal("tier-not-allowed", f"this key has no tier {tier.name!r}; it has {have}")
        return tier
    tiers = [tier for tier in config.tiers if allowed is None or tier.name in allowed]
    wanted = 1.0 if asked.certificate else asked.budget or asked.min_budget or 0.0
    paying = [tier for tier in tiers if tier.max_budget + _SLACK >= wanted]
    if not paying:
        raise Refusal(
            "tier-not-allowed", f"no tier of this request pays for a budget of {wanted:g}"
        )
    return paying[0]


def level_below(budget: float, levels: Sequence[float]) -> float | None:
    """The highest level that a budget pays for."""
    return max((level for level in levels if level <= budget + _SLACK), default=None)


def level_above(budget: float, levels: Sequence[float]) -> float | None:
    """The lowest level that is at least a budget."""
    return min((level for level in levels if level >= budget - _SLACK), default=None)
